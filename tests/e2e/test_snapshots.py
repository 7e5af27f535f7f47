"""Tests real nodes that are behind the kept log: one gets a new disk, or was away for long, and is sent the state."""

import shutil
from typing import Any

import pytest

from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.state.machine import applied_state
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.e2e.fixtures import own_cluster

pytestmark = pytest.mark.process

SEGMENT_BYTES = 64 * 1024
OPTIONS = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--segment-bytes", str(SEGMENT_BYTES))
BODY = "x" * 2_000
RECEIVING = "receiving the state after entry"
STARTED = "starting with the state after entry"

cluster = own_cluster(OPTIONS)


def produce(cluster: ClusterProcess, name: str, requests: int) -> None:
    """Send this number of requests of 20 messages with ids of their own, each acknowledged."""
    for number in range(requests):
        payload = {"messages": [{"body": BODY, "message_id": f"{name}-{number}-{at}"} for at in range(20)]}
        key = {"Idempotency-Key": f"{name}-{number}"}

        def sent(payload: dict[str, Any] = payload, key: dict[str, str] = key) -> bool:
            for node in cluster.alive():
                try:
                    reply = node.request("POST", "/v1/topics/kept/messages", payload=payload, headers=key)
                except OSError:
                    continue
                if reply.status == 200:
                    return True
            return False

        wait_for(sent, f"message {name}-{number} to be taken")


def cut(node: NodeProcess) -> int:
    """Shorten the log of a stopped node as retention does; return the first index that is kept then."""
    index = Index.open(str(node.data_dir / "index"))
    applied = applied_state(index).index
    index.close()
    log = CommitLog.open(
        PosixDisk(), str(node.data_dir / "log"), segment_bytes=SEGMENT_BYTES, cache_bytes=0, applied_index=applied
    )
    log.drop_before(min(applied, log.synced_index))
    first = log.first_index
    log.close()
    return first


def agree(cluster: ClusterProcess) -> bool:
    """Return whether all nodes are ready and hold the same state."""
    views = [node.status() for node in cluster.nodes.values()]
    if not all(node.ready() for node in cluster.nodes.values()):
        return False
    return len({(view["hash_index"], view["state_hash"]) if view else None for view in views}) == 1


def cut_all_but(cluster: ClusterProcess, away: NodeProcess) -> None:
    """Stop all nodes; then shorten the logs of all but one, so that they begin after the entries of that one."""
    for node in cluster.nodes.values():
        if node.running():
            assert node.terminate() == 0
    firsts = [cut(node) for node in cluster.nodes.values() if node is not away]
    assert min(firsts) > 1


def test_a_replaced_disk_is_filled_and_the_node_votes_again(cluster: ClusterProcess) -> None:
    replaced = cluster.nodes[3]
    leader = cluster.wait_leader()
    assert leader.request("PUT", "/v1/topics/kept", payload={"queues": 2}).status == 201
    produce(cluster, "before", 20)
    cut_all_but(cluster, replaced)
    shutil.rmtree(replaced.data_dir)
    cluster.start()
    wait_for(lambda: agree(cluster), "all nodes to agree")
    assert STARTED in replaced.output()
    metrics = replaced.request("GET", "/metrics").body.decode()
    assert "keelmq_snapshots_received_total 1.0" in metrics
    produce(cluster, "after", 2)
    wait_for(lambda: agree(cluster), "all nodes to agree again")
    wait_for(lambda: "from now on this node votes" in replaced.output(), "the new disk to vote")
    cluster.nodes[1].kill()
    produce(cluster, "by-two", 2)  # the remaining two are a majority only if both count


def test_kill_of_either_end_in_the_middle_does_no_harm(cluster: ClusterProcess) -> None:
    away = cluster.nodes[2]
    leader = cluster.wait_leader()
    assert leader.request("PUT", "/v1/topics/kept", payload={"queues": 2}).status == 201
    produce(cluster, "first", 2)
    wait_for(lambda: agree(cluster), "all nodes to agree")
    assert away.terminate() == 0
    produce(cluster, "second", 60)
    cut_all_but(cluster, away)
    cluster.start()
    wait_for(lambda: RECEIVING in away.output(), "a snapshot to begin")
    away.kill()
    away.start()
    wait_for(lambda: away.output().count(RECEIVING) > 1 or STARTED in away.output(), "another one")
    sender = cluster.wait_leader(among=[node for node in cluster.alive() if node is not away])
    sender.kill()
    wait_for(lambda: cluster.wait_leader(among=cluster.alive()), "another leader")
    sender.start()
    produce(cluster, "third", 2)
    wait_for(lambda: agree(cluster), "all nodes to agree again")
    assert STARTED in away.output()
    assert not [node.node_id for node in cluster.nodes.values() if "fatal" in node.output()]
