"""Groups with their lag: by name page by page, by topic, and those with the largest lag, which many may ask for."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.budgets.pace import Pace
from cluster.groups import lags
from store.commands.groups import DeleteGroup
from store.commands.views import GroupOffset
from tests.unit.cluster.conftest import Node


async def fill(node: Node, lag_of: dict[str, int], topic: str = "orders") -> None:
    """Make a topic with ten messages, and groups that lag as given, each in one of its two queues."""
    assert (await node.call("PUT", f"/v1/topics/{topic}", {"queues": 2, "type": "any"})).status == 201
    messages = [{"body": "x", "queue": 0}] * 10
    assert (await node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})).status == 200
    for group, lag in lag_of.items():
        offsets = [{"topic": topic, "queue": queue, "offset": 0 if queue else 10 - lag} for queue in range(2)]
        assert (await node.call("PUT", f"/v1/groups/{group}/offsets", {"offsets": offsets})).status == 200


async def listed(node: Node, query: str = "") -> Any:
    answer = await node.call("GET", f"/v1/lags{query}")
    assert answer.status == 200, answer.body
    return answer.body


def names(page: Any) -> list[str]:
    return [each["group"] for each in page["groups"]]


async def test_groups_are_listed_by_name_with_their_lag(node: Node) -> None:
    await fill(node, {"a": 0, "b": 3})
    assert (await node.call("PUT", "/v1/groups/b", {"retry_max_attempts": 0})).status == 200
    given = {"messages": [{"topic": "orders", "queue": 0, "offset": 7, "reason": "no account"}]}
    assert (await node.call("POST", "/v1/groups/b/retries", given)).status == 200
    joined = {"topics": ["orders"], "member_id": "m", "session_timeout_ms": 1_800_000}
    assert (await node.call("POST", "/v1/groups/a/members", joined)).status == 201
    first = await listed(node, "?limit=1")
    shown = {"group": "a", "topics": ["orders"], "members": 1, "lag": 0, "dead_letters": 0, "paused": None}
    assert first == {"groups": [shown], "next": "a"}
    second = await listed(node, "?limit=1&after=a")
    assert (names(second), second["next"]) == (["b"], None)
    (found,) = second["groups"]
    stored = (await node.call("GET", "/v1/topics/orders/queues/0/messages?offset=7")).body["messages"][0]
    assert (found["lag"], found["dead_letters"], found["members"]) == (3, 1, 0)
    assert found["waits_since_ms"] == stored["stored_at_ms"]


async def test_groups_that_read_a_topic_are_found_by_it(node: Node) -> None:
    await fill(node, {"a": 1, "c": 1})
    await fill(node, {"a": 3, "b": 1}, "payments")
    joined = {"topics": ["payments"], "member_id": "m", "session_timeout_ms": 1_800_000}
    assert (await node.call("POST", "/v1/groups/d/members", joined)).status == 201
    assert names(await listed(node, "?topic=orders")) == ["a", "c"]
    assert names(await listed(node, "?topic=payments")) == ["a", "b", "d"], (
        "a member reads it, and has committed nothing"
    )
    lags_of_a = [(await listed(node, query))["groups"][0]["lag"] for query in ("", "?topic=orders", "?topic=payments")]
    assert lags_of_a == [4, 1, 3]
    assert names(await listed(node, "?topic=orders&after=a")) == ["c"]
    assert names(await listed(node, "?topic=none")) == []
    refused = await node.call("GET", "/v1/lags?topic=a%20b")
    assert (refused.status, refused.body["code"]) == (400, "invalid_topic")


async def test_those_with_the_largest_lag_come_first(node: Node) -> None:
    await fill(node, {"a": 2, "b": 10, "c": 0, "d": 10})
    page = await listed(node, "?order=lag")
    assert [(each["group"], each["lag"]) for each in page["groups"]] == [("b", 10), ("d", 10), ("a", 2)]
    assert all("waits_since_ms" in each for each in page["groups"])
    assert names(await listed(node, "?order=lag&limit=2")) == ["b", "d"]
    for wrong in ("order=lag&after=b", "order=lag&topic=orders", "order=age", "limit=101"):
        refused = await node.call("GET", f"/v1/lags?{wrong}")
        assert (refused.status, refused.body["code"]) == (400, "invalid_request"), wrong


async def test_all_groups_are_looked_at_once_for_all_who_ask_and_in_slices(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(node, {"a": 2, "b": 3})
    looks, rests = [], 0
    each_offset = node.core.state.each_offset

    def counted(group: str, *rest: Any) -> Iterator[GroupOffset]:
        looks.append(group)
        return each_offset(group, *rest)

    async def rest(_: Pace) -> None:
        nonlocal rests
        rests += 1
        await asyncio.sleep(0)

    monkeypatch.setattr(node.core.state, "each_offset", counted)
    monkeypatch.setattr(Pace, "rest", rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    pages = await asyncio.gather(*(listed(node, "?order=lag") for _ in range(5)))
    assert [names(page) for page in pages] == [["b", "a"]] * 5
    assert looks == ["a", "b", "b", "a"], "once for the lag, once for the times"
    assert rests >= 8, "between any two queues"
    await listed(node, "?order=lag")
    assert len(looks) == 4


async def test_a_page_ends_with_its_rows_and_after_some_time(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(node, {"a": 1, "b": 1, "c": 1})
    monkeypatch.setattr(lags, "LIST_ROWS_MAX", 4)
    first = await listed(node)
    assert (names(first), first["next"]) == (["a", "b"], "b")
    assert names(await listed(node, "?after=b")) == ["c"]
    assert "waits_since_ms" not in (await listed(node, "?order=lag"))["groups"][2], "it would be one look too much"
    monkeypatch.setattr(Pace, "is_over", True)
    assert names(await listed(node)) == ["a"]


async def test_a_group_that_is_deleted_meanwhile_is_left_out(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(node, {"a": 1, "b": 1, "c": 1})
    looked = lags.lag_of

    async def deleting(core: Any, group: str, pace: Pace, topic: str | None = None, *, waits: bool) -> lags.Lag | None:
        if group == "b" and node.core.state.group_head("b") is not None:
            await node.core.propose(DeleteGroup("b", with_dead_letters=True))
        return await looked(core, group, pace, topic, waits=waits)

    monkeypatch.setattr(lags, "lag_of", deleting)
    assert names(await listed(node)) == ["a", "c"]
    assert names(await listed(node, "?order=lag")) == ["a", "c"]


async def test_a_look_goes_on_when_who_asked_first_has_left(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(node, {"a": 1})
    begun, goes_on, looks = asyncio.Event(), asyncio.Event(), list[str]()
    lag_of = lags.lag_of

    async def slow(core: Any, group: str, pace: Pace, topic: str | None = None, *, waits: bool) -> Any:
        looks.append(group)
        begun.set()
        await goes_on.wait()
        return await lag_of(core, group, pace, topic, waits=waits)

    monkeypatch.setattr(lags, "lag_of", slow)
    ranking = lags._Ranking(node.core)
    first = asyncio.create_task(ranking.groups())
    await begun.wait()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(ranking.groups())
    goes_on.set()
    assert [each.group for each in await second] == ["a"]
    assert looks == ["a", "a"], "one look for the lag, and one since when a message waits"
