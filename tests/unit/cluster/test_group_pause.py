"""A paused group over HTTP, on a real node: pulls and pops wait as if there were nothing, members are told."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keelmq.log.log_events import read_frames
from store.commands.groups import DeleteGroup
from store.features import FEATURES
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import START_MS, Node, node_config, running_node
from tests.unit.cluster.test_join_tokens import closed as closed

PULL = "/v1/topics/orders/queues/0/messages"
WAIT_MS = 30_000
PAUSED = {"since_ms": START_MS, "operator": "ann", "reason": "moved"}


@pytest.fixture
async def node(node: Node) -> Node:
    """Return a node with a topic and a group, at the level at which groups are paused."""
    await node.wait(lambda: asyncio.sleep(0, node.core.state.feature_level == FEATURES.maximum))
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await node.call("PUT", "/v1/groups/g", {})
    return node


async def send(node: Node, *bodies: str) -> None:
    messages = [{"body": body} for body in bodies]
    assert (await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})).status == 200


async def turn(node: Node, verb: str, **note: str) -> Any:
    answer = await node.call("POST", f"/v1/groups/g/{verb}", note)
    assert answer.status == 200, answer
    return answer.body


def pull(node: Node, wait_ms: int = 0, offset: int = 0, more: str = "&group=g") -> asyncio.Task[Any]:
    return asyncio.create_task(node.call("GET", f"{PULL}?offset={offset}&wait_ms={wait_ms}{more}"))


def pop(node: Node, wait_ms: int = 0) -> asyncio.Task[Any]:
    return asyncio.create_task(node.call("POST", "/v1/groups/g/pop", {"topic": "orders", "wait_ms": wait_ms}))


async def until(node: Node, waiting: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(node.core.waiters) != waiting:
            await asyncio.sleep(0)


def bodies(answer: Any) -> list[str]:
    return [each["body"] for each in answer.body["messages"]]


async def test_a_pause_is_shown_and_ends(node: Node) -> None:
    assert (await node.call("GET", "/v1/groups/g")).body["paused"] is None
    assert await turn(node, "pause", operator="ann", reason="moved") == {
        "group": "g",
        "paused": PAUSED,
        "changed": True,
    }
    assert (await turn(node, "pause", operator="eve"))["changed"] is False
    assert (await node.call("GET", "/v1/groups/g")).body["paused"] == PAUSED
    (listed,) = (await node.call("GET", "/v1/groups")).body["groups"]
    assert listed["paused"] == PAUSED
    assert await turn(node, "resume") == {"group": "g", "paused": None, "changed": True}
    assert (await node.call("POST", "/v1/groups/g/resume")).body["changed"] is False
    assert (await node.call("GET", "/v1/groups/g")).body["paused"] is None


async def test_what_cannot_be_paused_is_refused(node: Node) -> None:
    for path, payload, code in (
        ("/v1/groups/none/pause", {}, "group_not_found"),
        ("/v1/groups/g.g/pause", {}, "invalid_group"),
        ("/v1/groups/g/pause", {"reason": "x" * 1_025}, "invalid_request"),
        ("/v1/groups/g/pause", {"why": "x"}, "invalid_request"),
    ):
        assert (await node.call("POST", path, payload)).body["code"] == code
    assert (await pull(node, more="&group=g.g")).body["code"] == "invalid_group"
    assert node.core.state.group_pause("g") is None


async def test_a_pull_of_a_paused_group_waits_and_goes_on_where_it_was(node: Node) -> None:
    await send(node, "a", "b")
    await turn(node, "pause")
    nothing = await pull(node, offset=1)
    assert (bodies(nothing), nothing.body["paused"], nothing.body["next_offset"]) == ([], True, 1)
    assert (nothing.body["min_offset"], nothing.body["max_offset"]) == (0, 2)
    assert bodies(await pull(node, more="")) == ["a", "b"], "nobody's pull"
    assert bodies(await pull(node, more="&group=other")) == ["a", "b"]
    assert (await pull(node, offset=3)).body["code"] == "offset_out_of_range"
    waiting = [pull(node, WAIT_MS), pull(node, WAIT_MS, more="&group=g&filter=TRUE"), pull(node, WAIT_MS, 2)]
    await until(node, 3)
    await send(node, "c")
    assert not any(each.done() for each in waiting)
    await turn(node, "resume")
    answers = [await each for each in waiting]
    assert [bodies(each) for each in answers] == [["a", "b", "c"], ["a", "b", "c"], ["c"]]
    assert "paused" not in answers[0].body


async def test_a_pull_that_waited_before_the_pause_gets_nothing_until_it_ends(node: Node) -> None:
    waiting = pull(node, WAIT_MS)
    await until(node, 1)
    await turn(node, "pause")
    await send(node, "a")
    await until(node, 1)
    assert not waiting.done()
    await turn(node, "resume")
    assert bodies(await waiting) == ["a"]
    metrics = (await node.call("GET", "/metrics")).body.decode()
    assert "keelmq_pulled_messages_total 1.0" in metrics


async def test_blocks_of_a_paused_group_are_not_handed_out_either(node: Node) -> None:
    await send(node, "a")
    await turn(node, "pause")
    headers = {"Accept": "application/msgpack"}
    async with node.session.get(f"{PULL}?offset=0&group=g", headers=headers) as response:
        answer = msgspec.msgpack.decode(await response.read())
    assert (answer["batches"], answer["next_offset"], answer["paused"]) == ([], 0, True)


async def test_a_pull_ends_when_its_paused_group_is_deleted(node: Node) -> None:
    await send(node, "a")
    await turn(node, "pause")
    waiting = pull(node, WAIT_MS)
    await until(node, 1)
    await node.core.propose(DeleteGroup("g"))
    assert bodies(await waiting) == ["a"], "a group that does not exist is not paused"


async def test_a_pop_of_a_paused_group_waits_and_goes_on_where_it_was(node: Node) -> None:
    await send(node, "a", "b")
    (first,) = (await node.call("POST", "/v1/groups/g/pop", {"topic": "orders", "max_messages": 1})).body["messages"]
    await turn(node, "pause", operator="ann", reason="moved")
    index = node.core.state.applied_index
    nothing = await pop(node)
    assert (bodies(nothing), nothing.body["paused"]) == ([], PAUSED)
    assert node.core.state.applied_index == index, "nothing is proposed"
    acked = await node.call("POST", "/v1/groups/g/pop/ack", {"receipt_handles": [first["receipt_handle"]]})
    assert acked.body["results"][0]["outcome"] == "acked"
    waiting = pop(node, WAIT_MS)
    await until(node, 1)
    await send(node, "c")
    assert not waiting.done()
    await turn(node, "resume")
    answer = await waiting
    assert bodies(answer) == ["b", "c"]
    assert "paused" not in answer.body


async def test_a_pop_that_waited_before_the_pause_gets_nothing_until_it_ends(node: Node) -> None:
    await pop(node)
    waiting = pop(node, WAIT_MS)
    await until(node, 1)
    await turn(node, "pause")
    await send(node, "a")
    await until(node, 1)
    assert not waiting.done()
    await turn(node, "resume")
    assert bodies(await waiting) == ["a"]


async def test_a_pop_that_is_the_first_of_its_group_notes_where_it_begins(node: Node) -> None:
    await turn(node, "pause")
    waiting = asyncio.create_task(
        node.call("POST", "/v1/groups/g/pop", {"topic": "orders", "start": "latest", "wait_ms": WAIT_MS})
    )
    await until(node, 1)
    await send(node, "sent while it is paused")
    await turn(node, "resume")
    assert bodies(await waiting) == ["sent while it is paused"]


async def test_readers_of_the_log_are_told_by_whom_a_group_was_paused(node: Node) -> None:
    first = node.core.state.applied_index + 1
    await turn(node, "pause", operator="ann")
    await turn(node, "pause", operator="eve")
    await turn(node, "resume")
    answer = await node.call("GET", f"/v1/log/events?from_index={first}&types=GROUP_PAUSE,GROUP_RESUME")
    told = [(each.type, each.group, each.client_id) for entry in read_frames(answer.body) for each in entry.events]
    assert told == [("GROUP_PAUSE", "g", "ann"), ("GROUP_RESUME", "g", None)]


async def test_how_long_groups_are_paused_is_measured(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    for group in ("g", "h", "i", "j"):
        await node.call("PUT", f"/v1/groups/{group}", {})
        if group != "j":
            await node.call("POST", f"/v1/groups/{group}/pause")
            node.clock.now_ms += 2_000
    monkeypatch.setattr("cluster.operations.state_gauges.SERIES_MAX", 1)
    metrics = (await node.call("GET", "/metrics")).body.decode()
    shown = [line for line in metrics.splitlines() if line.startswith("keelmq_group_paused_seconds")]
    assert shown == ['keelmq_group_paused_seconds{group="g"} 6.0', 'keelmq_group_paused_seconds{group="(others)"} 4.0']
    assert 'keelmq_series_summed{kind="paused_groups"} 2.0' in metrics


async def join(node: Node) -> Any:
    return (await node.call("POST", "/v1/groups/g/members", {"topics": ["orders"], "member_id": "m"})).body


def heartbeat(node: Node, **fields: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(node.call("POST", "/v1/groups/g/members/m/heartbeat", fields))


async def test_a_member_is_told_of_the_pause_and_of_its_end(node: Node) -> None:
    joined = await join(node)
    assert joined["paused"] is None
    waiting = heartbeat(node, generation=joined["generation"], paused=False, wait_ms=WAIT_MS)
    await node.until_waiting(1)
    await turn(node, "pause", operator="ann", reason="moved")
    told = (await waiting).body
    assert (told["paused"], told["generation"]) == (PAUSED, joined["generation"])
    assert (await heartbeat(node, generation=told["generation"], paused=False, wait_ms=WAIT_MS)).body[
        "paused"
    ] == PAUSED
    waiting = heartbeat(node, generation=told["generation"], paused=True, wait_ms=WAIT_MS)
    await node.until_waiting(1)
    assert (await join(node))["paused"] == PAUSED
    commit = {"offsets": [{"topic": "orders", "queue": 0, "offset": 0}], "member_id": "m"}
    committed = await node.call("PUT", "/v1/groups/g/offsets", {**commit, "generation": told["generation"]})
    assert committed.status == 200, "a pause fences nobody"
    await turn(node, "resume")
    assert (await waiting).body["paused"] is None


async def test_a_member_that_says_nothing_of_pauses_waits_for_a_rebalance_alone(node: Node) -> None:
    joined = await join(node)
    waiting = heartbeat(node, generation=joined["generation"], wait_ms=WAIT_MS)
    await node.until_waiting(1)
    await turn(node, "pause")
    await node.until_waiting(1)
    assert not waiting.done()
    waiting.cancel()


async def test_below_the_second_level_nothing_is_paused_or_told(tmp_path: Path) -> None:
    levels, minimum, version = FEATURES.levels, FEATURES.minimum, FEATURES.version
    fatal: list[str] = []
    FEATURES.set_levels(levels[:1], 1, version, of_code=levels)  # the log begins as a node of level 1 begins it
    try:
        async with running_node(node_config(tmp_path), fatal) as node:
            await node.call("PUT", "/v1/topics/orders", {"queues": 1})
            await node.call("PUT", "/v1/groups/g", {})
    finally:
        FEATURES.set_levels(levels, minimum, version)
    async with running_node(node_config(tmp_path), fatal) as node:
        refused = await node.call("POST", "/v1/groups/g/pause")
        assert (refused.status, refused.body["code"]) == (409, "feature_not_enabled"), refused
        assert "paused" not in await join(node)
        assert (await node.call("GET", "/v1/groups/g")).body["paused"] is None
        assert (await node.call("POST", "/v1/cluster/feature-level", {})).status == 200
        assert (await join(node))["paused"] is None
        assert (await turn(node, "pause"))["changed"]
    async with running_node(node_config(tmp_path), fatal) as node:
        assert (await pull(node)).body["paused"], "the pause outlasts a restart"
    assert not fatal


async def test_who_names_a_group_may_read_as_it(closed: Node) -> None:
    await closed.call("PUT", "/v1/topics/orders", {"queues": 1})
    await closed.call("PUT", "/v1/groups/g", {})
    await turn(closed, "pause")
    rules = [{"actions": ["read"], "resource": "topic:orders"}, {"actions": ["read"], "resource": "group:mine"}]
    await closed.call("PUT", "/v1/users/reader", {"rules": rules})
    token = (await closed.call("POST", "/v1/users/reader/tokens", {})).body["token"]
    headers = {"Authorization": f"Bearer {token}"}
    for path, method, status in (
        (f"{PULL}?offset=0", "GET", 200),
        (f"{PULL}?offset=0&group=mine", "GET", 200),
        (f"{PULL}?offset=0&group=g", "GET", 403),
        ("/v1/groups/mine/pause", "POST", 403),
        ("/v1/groups/g/resume", "POST", 403),
    ):
        async with closed.session.request(
            method, path, headers=headers, json={} if method == "POST" else None
        ) as response:
            assert response.status == status, path
    assert closed.core.state.group_pause("g") is not None
