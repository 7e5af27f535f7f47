"""Tests disks that are put back to an earlier state: an older copy of the data directory, or one that lost most."""

import shutil
import time
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import own_cluster
from tests.e2e.small_disk import MIB, fill

pytestmark = pytest.mark.process

PATH = "/v1/topics/kept/messages"
SEVERAL_ELECTIONS_S = 5.0
"""Several times the longest election timeout of these clusters, in seconds."""

cluster = own_cluster(topic="kept", settled=True)


def copy_of(node: NodeProcess) -> Path:
    """Return a copy of the node's present directory, taken while the node is stopped."""
    node.terminate()
    copy = node.data_dir.with_suffix(".copy")
    shutil.copytree(node.data_dir, copy)
    node.start()
    return copy


def put_back(node: NodeProcess, copy: Path) -> None:
    shutil.rmtree(node.data_dir)
    copy.rename(node.data_dir)


def lose_all_but_identity(node: NodeProcess) -> None:
    for path in node.data_dir.iterdir():
        if path.name != "identity":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("left", ["an older copy", "the identity alone"])
def test_a_node_that_forgot_what_it_acknowledged_is_filled_by_the_leader(cluster: ClusterProcess, left: str) -> None:
    node = cluster.follower()
    copy = copy_of(node)
    cluster.wait_ready()
    cluster.send(PATH, 40)
    cluster.wait_same_state()
    node.kill()
    if left == "an older copy":
        put_back(node, copy)
    else:
        lose_all_but_identity(node)
    node.start()
    cluster.wait_ready()
    cluster.send(PATH, 5, "later")
    cluster.wait_same_state()
    assert node.max_offset("kept") == 45
    wait_for(lambda: "from now on this node votes" in node.output(), "the node to vote again")
    said = "lacks data that it acknowledged" if left == "an older copy" else "holds an identity and no log"
    assert node.output().count(said) == 1, node.output()
    wait_for(lambda: "disk_is_new" not in {code for code, _ in node.alarms()}, "the alarm to be over")


def no_leader_among(cluster: ClusterProcess, seconds: float) -> bool:
    """Return whether none of the running nodes leads for this number of seconds."""
    until_s = time.monotonic() + seconds
    wait_for(lambda: cluster.leader() is not None or time.monotonic() > until_s, "a leader, or the end of the time")
    return cluster.leader() is None


def test_a_disk_put_back_and_a_node_that_lags_elect_nobody(tmp_path: Path, small_disk: Path) -> None:
    """The node that lags has no room for the messages and still knows that they are committed."""
    cluster = ClusterProcess(tmp_path)
    lagging = cluster.nodes[3]
    lagging.arguments[lagging.arguments.index("--data-dir") + 1] = str(small_disk / "node")
    with cluster:
        cluster.make_topic("kept")
        cluster.wait_same_state()

        def led_by_another() -> bool:
            if cluster.wait_leader() is not lagging:
                return True
            lagging.terminate()
            cluster.wait_leader()
            lagging.start()
            return False

        wait_for(led_by_another, "another node to lead")
        cluster.wait_ready()
        put = next(node for node in cluster.nodes.values() if node not in (cluster.wait_leader(), lagging))
        copy = copy_of(put)
        cluster.wait_ready()
        fill(small_disk / "ballast")
        payload = {"messages": [{"body": "x" * MIB}]}
        sent = 0
        while "cannot take entry" not in lagging.output():  # the segment it has may still have room
            cluster.call("POST", PATH, payload, key=f"large{sent}")
            sent += 1
        cluster.send(PATH, 20)
        (leader,) = (node for node in cluster.nodes.values() if node not in (put, lagging))
        cluster.hand_over(leader)
        committed = leader.known_status()["commit_index"]
        wait_for(lambda: knows_committed(lagging) >= committed, "the node that lags to hear of it")
        leader.kill()
        put.kill()
        put_back(put, copy)
        (small_disk / "ballast").unlink()
        put.start()
        assert no_leader_among(cluster, SEVERAL_ELECTIONS_S), "together they lack acknowledged messages"
        assert "waiting for a node that has it" in lagging.output()
        assert f"entry {committed} of term" in str(lagging.known_status()["waits_for"])
        refused = lagging.request("PUT", "/v1/topics/t", payload={"queues": 1}).json()["detail"]
        assert f"entry {committed} of term" in refused, "the entry it waits for"
        assert f"{leader.node_id} (last heard " in refused
        assert f"not heard: {leader.node_id} (never heard)" in str(put.known_status()["waits_for"])
        leader.start()
        cluster.wait_leader()
        cluster.wait_same_state()
        assert {node.max_offset("kept") for node in cluster.nodes.values()} == {sent + 20}


def knows_committed(node: NodeProcess) -> int:
    status = node.status()
    return int(status["known_committed_index"]) if status else 0


def test_a_node_never_cuts_what_it_knew_to_be_committed_before_it_was_killed(cluster: ClusterProcess) -> None:
    """No node that is up knows of the entry: the others go on without it, and the node that comes back reports that."""
    leader = cluster.wait_leader()
    put, off = [node for node in cluster.nodes.values() if node is not leader]
    copy = copy_of(put)
    cluster.wait_ready()
    cluster.hand_over(leader)
    off.kill()
    cluster.send(PATH, 20)
    leader.kill()
    put.kill()
    put_back(put, copy)
    put.start()
    off.start()
    cluster.send(PATH, 5, "later", among=[put, off])
    leader.start()
    assert leader.wait_exit() == ExitCode.FATAL, leader.output()
    said = leader.output()
    assert "which is committed here" in said
    assert "cutting the log" not in said
    assert "keelmqd log dump" in said, "the next step"
