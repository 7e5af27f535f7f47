"""Tests nodes that pause, die or do not belong: the answers to clients, and that no acknowledged message is lost."""

import threading
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import STEADY, ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import own_cluster

pytestmark = pytest.mark.process

IN_FLIGHT_BYTES = 128 * 1024
OPTIONS = ("--election-timeout-ms", "1500", "--heartbeat-ms", "100")
PATH = "/v1/topics/faults/messages"

cluster = own_cluster(OPTIONS, topic="faults")
steady = own_cluster(STEADY, topic="faults")
hasty = own_cluster(
    (
        *(*STEADY, "--request-timeout-ms", "400"),
        *("--max-in-flight-bytes", str(IN_FLIGHT_BYTES), "--max-request-bytes", str(IN_FLIGHT_BYTES)),
    )
)
"""Nodes that soon give up a write, and take few bytes at a time."""


def stored(node: NodeProcess) -> list[str]:
    """Return the ids of all stored messages, page by page: an answer of a busy machine ends early."""
    found: list[str] = []
    offset, end = 0, 1
    while offset < end:
        path = f"/v1/topics/faults/queues/0/messages?offset={offset}&max_messages=10000&max_bytes=16000000"
        page = node.request("GET", path).json()
        found += [message["message_id"] for message in page["messages"]]
        offset, end = page["next_offset"], page["max_offset"]
    return found


def followers(cluster: ClusterProcess, leader: NodeProcess) -> list[NodeProcess]:
    return [node for node in cluster.nodes.values() if node is not leader]


def test_without_a_majority_writes_are_unknown_then_refused_and_done_once_when_it_returns(
    hasty: ClusterProcess,
) -> None:
    leader = hasty.wait_leader()
    hasty.call("PUT", "/v1/topics/faults", {"queues": 1})
    others = followers(hasty, leader)
    for node in others:
        node.pause()
    body = "x" * (IN_FLIGHT_BYTES * 3 // 4)
    unknown = leader.send(PATH, "k1", body)
    assert (unknown.status, unknown.json()["code"]) == (503, "unknown_outcome")
    assert unknown.headers["retry-after"] == "1"
    overloaded = leader.send(PATH, "k2", body)
    assert (overloaded.status, overloaded.json()["code"]) == (429, "overloaded")
    assert overloaded.headers["retry-after"] == "1"
    for node in others:
        node.resume()

    def done(key: str) -> bool:
        return hasty.wait_leader().send(PATH, key, body).status == 200

    for key in ("k1", "k2"):
        wait_for(lambda key=key: done(key), f"the retry of {key}")  # type: ignore[misc]
    assert stored(hasty.wait_leader()) == ["k1-0", "k2-0"]
    hasty.wait_same_state()


def test_a_node_that_lost_its_majority_says_so_and_still_reads(cluster: ClusterProcess) -> None:
    cluster.send(PATH, 1)
    cluster.wait_same_state()  # whoever leads by now has it
    leader = cluster.wait_leader()
    for node in followers(cluster, leader):
        node.kill()

    def stepped_down() -> bool:
        status = leader.status()
        return status is not None and status["leader_id"] is None

    wait_for(stepped_down, "the leader to step down")
    for method, path, payload in (
        ("POST", PATH, {"messages": [{"body": "x"}]}),
        ("PUT", "/v1/topics/other", {}),
        ("POST", "/v1/transactions/t/commit", {}),
        ("POST", "/v1/groups/g/members", {"topics": ["faults"]}),
        ("GET", "/v1/producer-groups/g/checks", None),
    ):
        reply = leader.request(method, path, payload=payload)
        assert (reply.status, reply.json()["code"], reply.headers["retry-after"]) == (503, "no_leader", "1"), path
    ready = leader.request("GET", "/readyz")
    assert (ready.status, ready.json()["code"]) == (503, "not_ready")
    assert leader.request("GET", "/healthz").status == 200
    assert stored(leader) == ["k0-0"]
    for node in followers(cluster, leader):
        node.start()
    again = cluster.call("POST", PATH, {"messages": [{"body": "x"}]}, key="k0")
    assert again["results"][0]["duplicate"]


def test_killing_each_node_in_turn_under_load_loses_nothing(cluster: ClusterProcess) -> None:
    acknowledged: list[str] = []
    stop = threading.Event()

    def load(worker: int) -> None:
        number = 0
        while not stop.is_set():
            key, number = f"w{worker}-{number}", number + 1
            while not stop.is_set():
                try:
                    leader = cluster.leader()
                    if leader is not None and leader.send(PATH, key).status == 200:
                        acknowledged.append(f"{key}-0")
                        break
                except OSError:
                    continue

    workers = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    try:
        for node in cluster.nodes.values():
            reached = len(acknowledged) + 20
            wait_for(lambda reached=reached: len(acknowledged) >= reached, "messages")  # type: ignore[misc]
            node.kill()
            reached = len(acknowledged) + 20
            wait_for(lambda reached=reached: len(acknowledged) >= reached, "further messages")  # type: ignore[misc]
            node.start()
            cluster.wait_ready()
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    cluster.wait_same_state()
    for node in cluster.nodes.values():
        found = stored(node)
        assert len(found) == len(set(found))
        assert set(acknowledged) <= set(found)


def test_a_paused_leader_does_not_acknowledge_what_the_others_never_saw(cluster: ClusterProcess) -> None:
    cluster.send(PATH, 1, "before")
    old = cluster.wait_leader()
    old.pause()
    cluster.send(PATH, 1, "during", among=followers(cluster, old))
    old.resume()
    late = old.send(PATH, "late")
    assert late.status in (200, 307, 503)
    cluster.wait_ready()
    cluster.wait_same_state()
    found = stored(cluster.wait_leader())
    assert found[:2] == ["before0-0", "during0-0"]
    assert late.status != 200 or found[2:] == ["late-0"]


def test_a_follower_that_was_cut_off_comes_back_and_counts_for_the_majority(cluster: ClusterProcess) -> None:
    """The follower is frozen, misses writes, catches up, and then is the one that makes writes durable."""
    leader = cluster.wait_leader()
    isolated, other = followers(cluster, leader)
    isolated.pause()
    keys = [f"during-{number}" for number in range(50)]

    def done(node: NodeProcess, key: str) -> bool:
        return node.send(PATH, key).status == 200

    for key in keys:
        wait_for(lambda key=key: done(cluster.wait_leader(among=[leader, other]), key), key)  # type: ignore[misc]
    isolated.resume()
    cluster.wait_ready()
    cluster.wait_same_state()
    assert stored(isolated)[:50] == [f"{key}-0" for key in keys]
    gone = next(node for node in followers(cluster, cluster.wait_leader()) if node is not isolated)
    gone.kill()
    wait_for(lambda: done(cluster.wait_leader(), "after"), "a write that needs the node that came back")
    assert "after-0" in stored(cluster.wait_leader())


def test_a_peer_of_another_cluster_is_not_listened_to(steady: ClusterProcess, tmp_path: Path) -> None:
    """The stranger knows the addresses, claims a member's id and is in a higher term."""
    leader = steady.wait_leader()
    before = leader.known_status()
    victim = followers(steady, leader)[0]
    http_port, peer_port = free_ports(2)
    stranger = NodeProcess(leader.node_id, tmp_path / "stranger", http_port, peer_port)
    stranger.arguments = [
        *("--cluster-id", "other", "--node-id", str(stranger.node_id), "--data-dir", str(stranger.data_dir)),
        *("--election-timeout-ms", "200", "--heartbeat-ms", "50", "--min-free-bytes", "0"),
        *("--peer", f"{stranger.node_id}=127.0.0.1:{peer_port}={stranger.url}"),
        *("--peer", f"{victim.node_id}=127.0.0.1:{victim.peer_port}={victim.url}"),
    ]
    stranger.start()
    try:
        wait_for(lambda: "refused a peer connection" in victim.output(), "the refusal")
        assert stranger.request("GET", "/readyz").status == 503
        assert leader.send(PATH, "k1").status == 200
    finally:
        stranger.kill()
    after = leader.known_status()
    assert (after["term"], after["leader_id"]) == (before["term"], leader.node_id)
    steady.wait_same_state()
