"""Finds and traces messages on real nodes: every replica answers the same, also after failovers and restarts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess

pytestmark = pytest.mark.process

MESSAGES = "/v1/topics/orders/messages"
GROUP = "/v1/groups/shop"
CALM = ("--election-timeout-ms", "3000", "--heartbeat-ms", "100")
"""Options of nodes whose leader rarely changes by itself: plain requests follow none, and some tests end it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcess]:
    """Return three nodes with a topic, and messages of every kind, some consumed and one given back."""
    with ClusterProcess(tmp_path, nodes=3, options=CALM) as running:
        leader = running.wait_leader()
        leader.call("PUT", "/v1/topics/orders", {"queues": 2})
        leader.call("PUT", GROUP, {"retry_max_attempts": 1, "retry_delays_ms": [0]})
        for number in range(3):
            message = {"body": f"plain {number}", "message_id": f"m{number}", "keys": ["red", f"k{number}"], "queue": 0}
            leader.call("POST", MESSAGES, {"messages": [message]})
        half = {"body": "half", "topic": "orders", "queue": 1, "keys": ["red"]}
        for transaction_id, decision in (("t1", "commit"), ("t2", "rollback")):
            request = {"transaction_id": transaction_id, "producer_group": "pg", "messages": [half]}
            leader.call("POST", "/v1/transactions", request)
            leader.call("POST", f"/v1/transactions/{transaction_id}/{decision}")
        late = {"body": "late", "message_id": "late", "keys": ["red"], "delay_ms": 3_600_000}
        leader.call("POST", MESSAGES, {"messages": [late]})
        member = leader.call("POST", f"{GROUP}/members", {"topics": ["orders"], "client_id": "till-1"})
        fence = {"member_id": member["member_id"], "generation": member["generation"]}
        bad = {"topic": "orders", "queue": 0, "offset": 1, "reason": "no stock"}
        given = leader.call("POST", f"{GROUP}/retries", {**fence, "messages": [bad]})
        fence["generation"] = given["generation"]
        done = {"topic": "orders", "queue": 0, "offset": 2}
        leader.call("PUT", f"{GROUP}/offsets", {**fence, "offsets": [done]})
        running.wait_same_state()
        yield running


QUESTIONS = (
    *(f"/v1/messages/{each}" for each in ("m0", "m1", "m2", "t1-0", "t2-0", "late")),
    *(f"/v1/messages/{each}/trace" for each in ("m0", "m1", "m2", "t1-0", "t2-0", "late")),
    *(f"{MESSAGES}?key={key}" for key in ("red", "k1", "nobody")),
    MESSAGES,
    f"{MESSAGES}?limit=2",
)


def answers(node: NodeProcess) -> list[Any]:
    return [node.call("GET", question) for question in QUESTIONS]


def names(trace: Any) -> list[str]:
    (only,) = trace["traces"]
    return [event["event"] for event in only["events"]]


def check(found: list[Any]) -> None:
    """Check the answers that every node has to give."""
    by_question = dict(zip(QUESTIONS, found, strict=True))

    def bodies(question: str) -> list[str]:
        return [message["body"] for message in by_question[question]["messages"]]

    assert [bodies(f"/v1/messages/m{number}") for number in range(3)] == [[f"plain {number}"] for number in range(3)]
    states = [by_question[f"/v1/messages/{each}"]["messages"][0]["state"] for each in ("t1-0", "t2-0", "late")]
    assert states == ["visible", "rolled_back", "scheduled"]
    assert bodies(f"{MESSAGES}?key=red") == ["plain 0", "plain 1", "plain 2", "half"]
    assert (bodies(f"{MESSAGES}?key=k1"), bodies(f"{MESSAGES}?key=nobody")) == (["plain 1"], [])
    assert bodies(MESSAGES) == ["plain 0", "plain 1", "plain 2", "half"]
    traces = {each: by_question[f"/v1/messages/{each}/trace"] for each in ("m0", "m1", "m2", "t1-0", "t2-0", "late")}
    assert names(traces["m0"]) == ["produced", "consumed"]
    assert names(traces["m1"]) == ["produced", "given_back", "given_again", "consumed"]
    assert names(traces["m2"]) == ["produced"]
    assert names(traces["t1-0"]) == ["prepared", "committed", "visible"]
    assert names(traces["t2-0"]) == ["prepared", "rolled_back"]
    assert names(traces["late"]) == ["scheduled"]
    consumed = traces["m0"]["traces"][0]["events"][1]
    assert (consumed["group"], consumed["client_id"], consumed["committed_offset"]) == ("shop", "till-1", 2)


def unchanged(cluster: ClusterProcess, expected: list[Any], disturb: Callable[[], None]) -> None:
    disturb()
    cluster.wait_leader(among=cluster.alive())
    cluster.wait_same_state()
    for node in cluster.alive():
        assert answers(node) == expected


def test_every_replica_tells_the_same_after_failovers_and_restarts(cluster: ClusterProcess) -> None:
    expected = answers(cluster.wait_leader())
    check(expected)
    for node in cluster.alive():
        assert answers(node) == expected
    killed = cluster.wait_leader()
    unchanged(cluster, expected, killed.kill)
    unchanged(cluster, expected, killed.start)
    for node in cluster.alive():
        node.kill()
    unchanged(cluster, expected, cluster.start)


def test_a_follower_asks_the_leader_for_what_it_does_not_find(cluster: ClusterProcess) -> None:
    follower, leader = cluster.follower(), cluster.wait_leader()
    for path in ("/v1/messages/nobody", "/v1/messages/nobody/trace"):
        reply = follower.request("GET", path)
        assert (reply.status, reply.headers["location"]) == (307, f"{leader.url}{path}")
        assert leader.request("GET", path).json()["code"] == "message_not_found"
