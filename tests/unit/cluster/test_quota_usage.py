"""Shown usage of quotas: the principals that were at work lately, and their rest."""

from pathlib import Path
from typing import Any

from tests.unit.cluster.conftest import Node, node_config, running_node

USAGE = "/v1/cluster/quotas"
KIB = 1 << 10


def named(page: Any) -> list[str]:
    return [each["principal"] for each in page["principals"]]


async def test_what_is_left_is_shown_and_may_be_a_debt(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text(f"[anonymous]\nrequests_per_s = 3\nin_bytes_per_s = {KIB}\nconnections = 5\nweight = 4\n")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, quota_file=str(file)), fatal) as node:
        assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
        node.clock.now_ms += 60_000
        message = {"messages": [{"body": "x" * 5 * KIB}]}
        assert (await node.call("POST", "/v1/topics/orders/messages", message)).status == 200
        assert (await node.call("GET", "/v1/topics")).status == 429
        page = (await node.call("GET", f"{USAGE}?kind=address")).body
        (usage,) = page["principals"]
        assert -5 * KIB < usage.pop("in_bytes_left") < -4 * KIB
        assert usage == {
            "principal": "127.0.0.1",
            "requests_per_s": 3,
            "in_bytes_per_s": KIB,
            "out_bytes_per_s": 0,
            "filter_ms_per_s": 0,
            "connections": 5,
            "long_polls": 0,
            "held_bytes": 0,
            "weight": 4,
            "requests_left": 2,
            "out_bytes_left": None,
            "filter_ms_left": None,
            "connections_left": 4,
            "long_polls_left": None,
            "held_bytes_left": None,
            "throttled": None,
        }
        assert (page["node_id"], page["limited"], page["next"]) == (1, True, None)
        assert named((await node.call("GET", USAGE)).body) == []
        node.clock.now_ms += 60_000
        (usage,) = (await node.call("GET", f"{USAGE}?kind=address")).body["principals"]
        assert (usage["requests_left"], usage["in_bytes_left"]) == (3, KIB), "a bucket holds one burst at most"
    assert not fatal


async def test_users_are_shown_page_by_page_with_their_refusals(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text("[default]\nrequests_per_s = 1\n")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, quota_file=str(file)), fatal) as node:
        quotas = node.core.quotas
        assert quotas is not None
        for name in ("carol", "alice", "bob"):
            quotas.of_user(name).begin(quotas.steady_s(), 0)
        first = (await node.call("GET", f"{USAGE}?limit=2")).body
        assert (named(first), first["next"]) == (["alice", "bob"], "bob")
        second = (await node.call("GET", f"{USAGE}?limit=2&after=bob")).body
        assert (named(second), second["next"]) == (["carol"], None)
        assert {each["throttled"] for each in first["principals"]} == {0}
        for query in ("limit=0", "limit=1001", "kind=node", "more=1"):
            assert (await node.call("GET", f"{USAGE}?{query}")).body["code"] == "invalid_request", query
    assert not fatal


async def test_a_node_without_quotas_shows_nobody(node: Node) -> None:
    assert (await node.call("GET", USAGE)).body == {"node_id": 1, "limited": False, "principals": [], "next": None}
