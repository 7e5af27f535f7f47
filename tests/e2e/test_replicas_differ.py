"""Tests a replica that differs from the others: the cluster goes on, the node is named, and one command mends it."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import KEELMQ, own_cluster
from tests.rewrite import rewrite_record

pytestmark = pytest.mark.process

PATH = "/v1/topics/kept/messages"

cluster = own_cluster(topic="kept", settled=True)


def keelmq(cluster: ClusterProcess, *arguments: str) -> "subprocess.CompletedProcess[str]":
    servers = ",".join(node.url for node in cluster.alive())
    command = [*KEELMQ, *arguments, "--servers", servers]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def replica(node: NodeProcess) -> dict[str, Any]:
    status = node.status()
    return dict(status["replica"]) if status else {}


def make_differ(node: NodeProcess, index: int) -> None:
    node.terminate()
    (segment,) = (node.data_dir / "log").glob("*.log")
    rewrite_record(segment, index)
    node.start()


def status_is_good(cluster: ClusterProcess) -> bool:
    return keelmq(cluster, "cluster", "status").returncode == 0


@pytest.mark.parametrize("who", ["a follower", "the leader"])
def test_the_replica_that_differs_is_named_and_rebuilt(cluster: ClusterProcess, who: str) -> None:
    leader = cluster.wait_leader()
    cluster.send(PATH, 20)
    cluster.wait_same_state()
    wait_for(lambda: status_is_good(cluster), "a status without alarms")
    node = leader if who == "the leader" else cluster.follower()
    index = leader.known_status()["applied_index"] - 5
    make_differ(node, index)
    wait_for(lambda: replica(node).get("differs") and replica(node)["exact"], "the node to know that it differs")
    assert replica(node)["first_index"] == index
    others = [each for each in cluster.nodes.values() if each is not node]

    key = ("replica_differs", str(node.node_id))
    wait_for(lambda: all(key in each.alarms() for each in cluster.nodes.values()), "the alarm on every node")
    wait_for(lambda: f"from entry {index} on" in node.alarms().get(key, ""), "the alarm to name the entry")
    command = f"keelmq cluster rebuild {node.node_id}"
    wait_for(lambda: all(command in each.alarms().get(key, "") for each in cluster.nodes.values()), "the next step")
    shown = keelmq(cluster, "cluster", "status")
    assert shown.returncode == 1
    assert f"cluster rebuild {node.node_id}" in shown.stdout
    examined = json.loads(keelmq(cluster, "doctor", "--seconds", "0", "--json").stdout)["findings"]
    found = [each for each in examined if each["code"] in ("alarm_replica_differs", "hashes_differ")]
    assert [each["code"] for each in found] == ["alarm_replica_differs"], "one cause is told once, by all nodes"
    assert found[0]["what"] == f"node {node.node_id} has the alarm replica_differs"

    assert not node.ready()
    cluster.send(PATH, 10, "meanwhile", among=others)
    answer = node.request("GET", "/v1/topics/kept/queues/0/messages?offset=0")
    assert answer.status == 307, "it serves no reads, the leader does"
    assert all(each.running() for each in cluster.nodes.values())

    node.kill()
    node.start()
    wait_for(lambda: replica(node).get("differs"), "the node to know it after a restart as well")

    def rebuilt() -> bool:
        done = keelmq(cluster, "cluster", "rebuild", str(node.node_id), "--json")
        if done.returncode != 0:  # it has just started, and has not heard the others yet
            assert "quorum_at_risk" in done.stderr, done.stderr
            return False
        return bool(json.loads(done.stdout)["filled_by"] == sorted(each.node_id for each in others))

    wait_for(rebuilt, "the rebuild to be taken")
    wait_for(lambda: status_is_good(cluster), "the cluster to be whole again")
    cluster.wait_ready()
    cluster.wait_same_state()
    assert not replica(node)["differs"]
    wait_for(
        lambda: [each["agrees"] for each in replica(node)["compared"]] == [True, True], "the comparison to be good"
    )
    wait_for(lambda: "from now on this node votes" in node.output(), "the node to vote again")
    cluster.send(PATH, 5, "afterwards")


def test_a_node_killed_while_it_is_rebuilt_goes_on_with_it(cluster: ClusterProcess) -> None:
    """The decision is made, and the process dies before, or in the middle of, carrying it out."""
    cluster.send(PATH, 20)
    cluster.wait_same_state()
    node = cluster.follower()
    node.kill()
    (node.data_dir / "rebuild").write_text('{"joins":false}')
    (node.data_dir / "hard_state").unlink()
    node.start()
    cluster.wait_ready()
    cluster.wait_same_state()
    assert not (node.data_dir / "rebuild").exists()
    wait_for(lambda: "from now on this node votes" in node.output(), "the node to vote again")


def test_a_rebuild_that_leaves_the_data_on_no_majority_is_refused(cluster: ClusterProcess) -> None:
    cluster.send(PATH, 5)
    cluster.wait_same_state()
    leader = cluster.wait_leader()
    gone, node = [each for each in cluster.nodes.values() if each is not leader]
    gone.kill()

    wait_for(lambda: str(gone.node_id) not in connected(node), "the others to notice")
    answer = node.request("POST", f"/v1/cluster/rebuild?node_id={node.node_id}")
    assert (answer.status, answer.json()["code"]) == (409, "quorum_at_risk"), answer
    assert not (node.data_dir / "rebuild").exists()


def test_two_nodes_never_give_their_copies_up_at_once(cluster: ClusterProcess) -> None:
    """Each of the two would rely on the copy of the other."""
    leader = cluster.wait_leader()
    cluster.send(PATH, 20)
    cluster.wait_same_state()
    others = [each for each in cluster.nodes.values() if each is not leader]
    with ThreadPoolExecutor(len(others)) as pool:
        answers = list(pool.map(lambda node: node.request("POST", "/v1/cluster/rebuild"), others))
    codes = [answer.json().get("code") for answer in answers]
    assert sorted(answer.status for answer in answers) in ([200, 409], [409, 409]), answers
    assert {"quorum_at_risk"} >= set(filter(None, codes)), answers
    cluster.wait_ready()
    cluster.wait_same_state()

    def rebuilt() -> bool:
        answer = others[0].request("POST", "/v1/cluster/rebuild")
        return answer.status == 200

    wait_for(rebuilt, "a rebuild to be taken when nobody else is rebuilt")


def connected(node: NodeProcess) -> list[str]:
    status = node.status()
    return [str(each["node_id"]) for each in status["nodes"] if each["connected"]] if status else []


def test_a_bit_that_flips_in_an_old_segment_is_found_and_named(tmp_path: Path) -> None:
    """Nobody reads that record; the node goes on, reports the damage, and is rebuilt."""
    options = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--segment-bytes", "65536")
    with ClusterProcess(tmp_path, options=(*options, "--scrub-interval-ms", "100")) as cluster:
        leader = cluster.wait_leader()
        assert leader.request("PUT", "/v1/topics/kept", payload={"queues": 1}).status == 201
        node = cluster.follower()
        while len(list((node.data_dir / "log").glob("*.log"))) < 3:
            assert leader.request("POST", PATH, payload={"messages": [{"body": "x" * 8_000}]}).status == 200
        cluster.wait_same_state()
        segment = min((node.data_dir / "log").glob("*.log"))
        with open(segment, "r+b") as file:
            file.seek(30_000)
            byte = file.read(1)
            file.seek(30_000)
            file.write(bytes([byte[0] ^ 1]))
        wait_for(lambda: "record_damaged" in {code for code, _ in node.alarms()}, "the scrubber to find it")
        (detail,) = [detail for (code, _), detail in node.alarms().items() if code == "record_damaged"]
        assert segment.name in detail
        assert "position" in detail
        assert "keelmq_scrub_damaged_segments 1.0" in node.request("GET", "/metrics").body.decode()
        assert not status_is_good(cluster)
        assert keelmq(cluster, "cluster", "rebuild", str(node.node_id)).returncode == 0
        wait_for(lambda: status_is_good(cluster), "the cluster to be whole again")
        cluster.wait_same_state()


def test_two_that_differ_say_so_and_the_third_decides(cluster: ClusterProcess) -> None:
    """While the third node is down, nobody knows which of the two is right: only the leader serves."""
    cluster.send(PATH, 20)
    cluster.wait_same_state()
    node, third = [each for each in cluster.nodes.values() if each is not cluster.wait_leader()]
    third.kill()
    cluster.send(PATH, 20, "without")  # entries that the third never had, so that it cannot vouch for either
    wait_for(
        lambda: len({(each.status() or {}).get("applied_index") for each in cluster.alive()}) == 1, "both to have it"
    )
    make_differ(node, node.known_status()["applied_index"] - 3)
    pair: list[NodeProcess] = []

    def both_say_so() -> bool:
        """Return whether both nodes report that they differ. Sorts `pair`, the leader first: it commits nothing."""
        views = {each: each.status() for each in cluster.alive()}
        pair[:] = sorted(views, key=lambda each: (views[each] or {}).get("role") != "leader")
        if [(view or {}).get("role") for view in (views[each] for each in pair)] != ["leader", "follower"]:
            return False
        compared = [
            {each["node_id"]: each["agrees"] for each in (view or {})["replica"]["compared"]} for view in views.values()
        ]
        return all(False in each.values() for each in compared)

    wait_for(both_say_so, "both to know that they differ")
    assert not any(replica(each)["differs"] for each in pair)
    wait_for(lambda: all("replica_differs" in {code for code, _ in each.alarms()} for each in pair), "the alarms")
    assert "no majority says which of them is right" in str(pair[0].alarms())
    assert not status_is_good(cluster)
    assert pair[0].request("GET", "/v1/topics/kept").status == 200
    assert pair[1].request("GET", "/v1/topics/kept").status == 307
    assert not pair[1].ready()
    third.start()
    # It follows the node that leads, whichever that is: then two have the same data.
    wait_for(lambda: any(replica(each).get("differs") for each in pair), "the third node to decide")
    (outvoted,) = (each for each in pair if replica(each).get("differs"))
    cluster.send(PATH, 5, "on", among=[each for each in cluster.nodes.values() if each is not outvoted])
