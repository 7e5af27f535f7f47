"""Tests that a node that knows no leader, and so cannot know that something is missing, never answers 404."""

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.cluster_process import ClusterProcess, wait_for

pytestmark = pytest.mark.process

PATHS = [
    "/v1/topics/known",
    "/v1/topics/known/queues/0/messages?offset=0",
    "/v1/topics/known/queues/0/messages?offset=1",
    "/v1/topics/known/queues/0/offsets?at=latest",
    "/v1/groups/known",
    "/v1/groups/known/offsets",
    "/v1/transactions/known",
]


def only_the_leader_answers(cluster: ClusterProcess, path: str) -> bool:
    return sorted(node.request("GET", path).status for node in cluster.nodes.values()) == [200, 307, 307]


def test_nothing_is_said_to_be_missing_before_there_is_a_leader(tmp_path: Path) -> None:
    """Found by chaos (seed 21, five nodes): a consumer that was started together with the cluster accepted
    `topic_not_found` as an answer. A node's applied state is flushed only now and then; after a kill the node begins at
    an older state.
    """
    with ClusterProcess(tmp_path, nodes=3) as cluster:
        leader = cluster.wait_leader()
        assert leader.request("PUT", "/v1/topics/known", payload={}).status == 201
        offsets = {"offsets": [{"topic": "known", "queue": 0, "offset": 0}]}
        assert leader.request("PUT", "/v1/groups/kept/offsets", payload=offsets).status == 200
        for node in cluster.nodes.values():
            node.kill()
        leader.start()
        wait_for(lambda: leader.status() is not None, "the node to answer")
        for path in PATHS:
            reply = leader.request("GET", path)
            code = reply.json().get("code")
            assert reply.status == 200 or (reply.status, code) == (503, "no_leader"), f"{path}: {reply}"
        for path in ("/v1/groups/kept", "/v1/groups/kept/offsets"):
            reply = leader.request("GET", path)
            assert (reply.status, reply.json().get("code")) == (503, "no_leader"), f"{path}: only the leader's to say"
            assert reply.headers["retry-after"]
        cluster.start()
        cluster.wait_ready()
        assert leader.request("GET", "/v1/topics/known").status == 200
        for path in ("/v1/groups/kept", "/v1/groups/kept/offsets"):
            wait_for(partial(only_the_leader_answers, cluster, path), f"one node to answer {path}")
        assert leader.request("GET", "/v1/topics/unknown").status in (307, 404), "with a leader there is an answer"
