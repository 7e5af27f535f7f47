"""Tests the limits of numbers: one more is refused by name, existing objects go on, and freed room can be used."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, Reply, ok

pytestmark = pytest.mark.process

LIMITS = {
    "topics": 2,
    "groups": 2,
    "group_members": 2,
    "check_urls": 2,
    "users": 2,
    "undecided_transactions": 2,
    "timers": 2,
}
ORDERS = "/v1/topics/orders"


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    limits = [part for name, limit in LIMITS.items() for part in (f"--max-{name.replace('_', '-')}", str(limit))]
    options = ("--election-timeout-ms", "300", "--heartbeat-ms", "50", *limits)
    with ClusterProcess(tmp_path_factory.mktemp("capacity"), nodes=1, options=options) as running:
        node = running.wait_leader()
        ok(node.request("PUT", ORDERS, payload={"queues": 1}))
        yield node


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json()["code"], reply.json()["limit"]) == (status, code, 2)
    assert ("retry-after" in reply.headers) == (status == 429)


def gauge(node: NodeProcess, name: str) -> float:
    lines = node.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_topics(node: NodeProcess) -> None:
    ok(node.request("PUT", "/v1/topics/second", payload={}))
    refused(node.request("PUT", "/v1/topics/third", payload={}), 409, "too_many_topics")
    assert ok(node.request("PUT", ORDERS, payload={"queues": 2}))["queues"] == 2
    assert gauge(node, "keelmq_topics") == 2
    ok(node.request("DELETE", "/v1/topics/second"))
    ok(node.request("PUT", "/v1/topics/third", payload={}))


def test_groups_whatever_creates_them(node: NodeProcess) -> None:
    offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": 0}]}
    ok(node.request("PUT", "/v1/groups/a/offsets", payload=offsets))
    ok(node.request("PUT", "/v1/groups/b", payload={}))
    for method, path, payload in (
        ("PUT", "/v1/groups/c", {}),
        ("PUT", "/v1/groups/c/offsets", offsets),
        ("POST", "/v1/groups/c/members", {"topics": ["orders"]}),
        ("POST", "/v1/groups/c/pop", {"topic": "orders"}),
        ("POST", "/v1/groups/c/clone-offsets", {"source": "a"}),
        ("POST", "/v1/groups/c/retries", {"messages": offsets["offsets"]}),
    ):
        refused(node.request(method, path, payload=payload), 409, "too_many_groups")
    ok(node.request("PUT", "/v1/groups/a/offsets", payload=offsets))
    assert gauge(node, "keelmq_groups") == 2
    ok(node.request("DELETE", "/v1/groups/b"))
    ok(node.request("PUT", "/v1/groups/c", payload={}))


def test_users(node: NodeProcess) -> None:
    for name in ("a", "b"):
        ok(node.request("PUT", f"/v1/users/{name}", payload={}))
    refused(node.request("PUT", "/v1/users/c", payload={}), 409, "too_many_users")
    ok(node.request("PUT", "/v1/users/a", payload={"certificates": ["a"]}))
    ok(node.request("POST", "/v1/users/a/tokens", payload={}))
    ok(node.request("DELETE", "/v1/users/b"))
    ok(node.request("PUT", "/v1/users/c", payload={}))


def test_members(node: NodeProcess) -> None:
    def join(member_id: str) -> Reply:
        return node.request("POST", "/v1/groups/g/members", payload={"topics": ["orders"], "member_id": member_id})

    ok(join("a"))
    ok(join("b"))
    refused(join("c"), 409, "too_many_members")
    ok(join("a"))
    assert gauge(node, "keelmq_group_members") == 2
    ok(node.request("DELETE", "/v1/groups/g/members/b"))
    ok(join("c"))


def test_check_urls(node: NodeProcess) -> None:
    def set_url(group: str, url: str | None) -> Reply:
        return node.request("PUT", f"/v1/producer-groups/{group}", payload={"check_url": url})

    ok(set_url("a", "http://127.0.0.1:1/checks"))
    ok(set_url("b", "http://127.0.0.1:1/checks"))
    refused(set_url("c", "http://127.0.0.1:1/checks"), 409, "too_many_check_urls")
    ok(set_url("a", "http://127.0.0.1:2/checks"))
    ok(set_url("c", None))
    ok(set_url("b", None))
    ok(set_url("c", "http://127.0.0.1:1/checks"))


def test_undecided_transactions(node: NodeProcess) -> None:
    def half(name: str) -> dict[str, Any]:
        return {"transaction_id": name, "producer_group": "p", "messages": [{"topic": "orders", "body": "x"}]}

    both = {"transactions": [half("b"), half("c")]}
    ok(node.request("POST", "/v1/transactions", payload=half("a")))
    ok(node.request("POST", "/v1/transactions", payload=half("b")))
    refused(node.request("POST", "/v1/transactions", payload=half("c")), 429, "too_many_transactions")
    assert ok(node.request("POST", "/v1/transactions", payload=half("a")))["duplicate"]
    results = ok(node.request("POST", "/v1/transactions/batch", payload=both))["results"]
    assert results[0]["duplicate"]
    assert results[1]["problem"]["code"] == "too_many_transactions"
    ok(node.request("POST", "/v1/transactions/a/rollback"))
    ok(node.request("POST", "/v1/transactions", payload=half("c")))


def test_timers(node: NodeProcess) -> None:
    def send(key: str | None = None, **more: Any) -> Reply:
        headers = {} if key is None else {"Idempotency-Key": key}
        payload = {"messages": [{"body": "x", **more}]}
        return node.request("POST", f"{ORDERS}/messages", payload=payload, headers=headers)

    for name in ("a", "b"):
        ok(send(name, delay_ms=3_600_000, message_id=name))
    refused(send(delay_ms=3_600_000), 429, "too_many_timers")
    refused(send("c", delay_ms=3_600_000), 429, "too_many_timers")
    assert ok(send("b", delay_ms=3_600_000, message_id="b"))["results"][0]["duplicate"], "its answer may have been lost"
    ok(send())
    ok(node.request("DELETE", f"{ORDERS}/scheduled/a"))
    ok(send(delay_ms=3_600_000))
