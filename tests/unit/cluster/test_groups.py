"""Consumer groups on a real node: requests refused before anything is proposed, and heartbeats that wait."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from cluster.budgets import pace
from cluster.budgets.turns import REBALANCED_AT_ONCE
from cluster.groups import session_expiry
from cluster.groups.commit_rules import check_commit
from cluster.groups.sessions import BROKEN_SESSION_S
from cluster.limits import OFFSETS_MAX, QUEUES_MAX, SESSION_TIMEOUT_MS_MIN
from store.commands.groups import CommitOffsets, QueueOffset
from store.commands.topics import DeleteTopic, PutTopic
from tests.unit.cluster.conftest import Node
from tests.unit.store.counted_work import work_of


async def test_a_reset_of_an_unknown_group_is_refused_before_anything_is_built(node: Node) -> None:
    name = "t" * 127
    await node.call("PUT", f"/v1/topics/{name}", {"queues": QUEUES_MAX})
    index = node.core.raft.applied_index
    answer = await node.call("POST", "/v1/groups/nobody/reset", {"topic": name, "to": "latest"})
    assert (answer.status, answer.body["code"]) == (404, "group_not_found")
    assert node.core.raft.applied_index == index, "refused without an entry"


async def test_a_reset_sets_at_most_as_many_offsets_as_a_topic_has_queues(node: Node) -> None:
    assert QUEUES_MAX <= OFFSETS_MAX
    await node.call("PUT", "/v1/topics/wide", {"queues": QUEUES_MAX})
    offsets = [{"topic": "wide", "queue": 0, "offset": 0}]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    answer = await node.call("POST", "/v1/groups/g/reset", {"topic": "wide", "to": "earliest"})
    assert (answer.status, len(answer.body["offsets"])) == (200, QUEUES_MAX)


async def test_a_reset_sets_no_offsets_of_a_topic_that_was_made_anew_meanwhile(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(messages: int) -> None:
        await node.core.propose(PutTopic("again", 1))
        sent = [{"body": "x"} for _ in range(messages)]
        assert (await node.call("POST", "/v1/topics/again/messages", {"messages": sent})).status == 200

    async def rest(_: pace.Pace) -> None:
        monkeypatch.setattr(pace.Pace, "is_tired", False)
        await node.core.propose(DeleteTopic("again"))
        await make(3)

    await make(2)
    await node.call("PUT", "/v1/groups/g", {})
    monkeypatch.setattr(pace.Pace, "rest", rest)
    monkeypatch.setattr(pace.Pace, "is_tired", True)
    answer = await node.call("POST", "/v1/groups/g/reset", {"topic": "again", "to": "latest"})
    assert (answer.status, answer.body["code"]) == (404, "topic_not_found")
    assert (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"] == []


async def test_the_loop_goes_on_while_a_reset_looks_for_a_time_in_many_queues(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.call("PUT", "/v1/topics/wide", {"queues": QUEUES_MAX})
    offsets = [{"topic": "wide", "queue": 0, "offset": 0}]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    rests, rest = 0, pace.Pace.rest

    async def counting(each: pace.Pace) -> None:
        nonlocal rests
        rests += 1
        await rest(each)

    monkeypatch.setattr(pace, "SLICE_S", 0)
    monkeypatch.setattr(pace.Pace, "rest", counting)
    answer = await node.call("POST", "/v1/groups/g/reset", {"topic": "wide", "timestamp_ms": 0})
    assert (answer.status, len(answer.body["offsets"])) == (200, QUEUES_MAX)
    assert rests >= QUEUES_MAX


async def join(node: Node, member_id: str) -> dict[str, Any]:
    body = {"topics": ["t"], "member_id": member_id, "session_timeout_ms": 1_800_000}
    joined: dict[str, Any] = (await node.call("POST", "/v1/groups/g/members", body)).body
    return joined


def heartbeat(node: Node, member_id: str, generation: int, wait_ms: int) -> asyncio.Task[Any]:
    body = {"generation": generation, "wait_ms": wait_ms}
    return asyncio.create_task(node.call("POST", f"/v1/groups/g/members/{member_id}/heartbeat", body))


async def test_a_heartbeat_that_waits_is_answered_by_the_next_rebalance(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 4})
    generation = (await join(node, "first"))["generation"]
    waiting = heartbeat(node, "first", generation, 30_000)
    await node.until_waiting(1)
    await node.call("POST", "/v1/topics/t/messages", {"messages": [{"body": "no rebalance"}]})
    await node.call("PUT", "/v1/topics/other", {"queues": 1})
    assert not waiting.done(), "neither a message nor another topic moves the generation"
    second = await join(node, "second")
    assert node.core.waiters.woken == 1, "woken by what was applied, not by the end of its time"
    answer = await waiting
    assert answer.status == 200
    assert answer.body["generation"] == second["generation"] > generation
    assert len(answer.body["assignment"]) == 2


async def test_a_heartbeat_that_waits_learns_that_its_member_was_removed(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 4})
    generation = (await join(node, "first"))["generation"]
    waiting = heartbeat(node, "first", generation, 30_000)
    await node.until_waiting(1)
    assert (await node.call("DELETE", "/v1/groups/g/members/first")).status == 204
    assert node.core.waiters.woken == 1
    answer = await waiting
    assert (answer.status, answer.body["code"]) == (404, "member_not_found")


async def test_a_heartbeat_of_another_generation_does_not_wait_and_one_whose_time_is_over_is_answered(
    node: Node,
) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 4})
    generation = (await join(node, "first"))["generation"]
    behind, watch = heartbeat(node, "first", generation + 1, 30_000), asyncio.create_task(node.until_waiting(1))
    await asyncio.wait((behind, watch), return_when=asyncio.FIRST_COMPLETED)
    assert behind.done(), "it waits"
    watch.cancel()
    over = await heartbeat(node, "first", generation, 1)
    assert (behind.result().body["generation"], over.body["generation"]) == (generation, generation)
    assert node.waiting_requests() == 0
    refused = await node.call("POST", "/v1/groups/g/members/first/heartbeat", {"wait_ms": 30_001})
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")


def watch_expiry(node: Node, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Awaitable[None]]:
    """Wait until the node has looked for silent members twice."""
    monkeypatch.setattr(session_expiry, "EXPIRY_INTERVAL_S", 0.01)
    looks, is_leader = 0, node.core.is_leader

    def noted() -> bool:
        nonlocal looks
        task = asyncio.current_task()
        looks += task is not None and task.get_name() == "group-expiry"
        return is_leader()

    async def look_twice() -> None:
        seen = looks

        async def have_looked() -> bool:
            return looks >= seen + 2

        await node.wait(have_looked)

    monkeypatch.setattr(node.core, "is_leader", noted)
    return look_twice


async def test_a_member_whose_waiting_connection_broke_is_gone_in_seconds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_twice = watch_expiry(node, monkeypatch)
    await node.call("PUT", "/v1/topics/t", {"queues": 4})
    await look_twice()  # in the first look a leadership begins, and nothing from before counts
    for member_id in ("first", "second"):
        generation = (await join(node, member_id))["generation"]
    waiting = [heartbeat(node, member_id, generation, 30_000) for member_id in ("first", "second")]
    await node.until_waiting(2)
    waiting[0].cancel()
    await node.until_waiting(1)
    node.clock.now_ms += round(BROKEN_SESSION_S * 1000)
    answer = await waiting[1]
    assert (answer.body["generation"], len(answer.body["assignment"])) == (generation + 1, 4)
    group = (await node.call("GET", "/v1/groups/g")).body
    assert [member["member_id"] for member in group["members"]] == ["second"]


async def put_offsets(node: Node, *offsets: int, **fields: Any) -> Any:
    entries = [{"topic": "t", "queue": 0, "offset": offset} for offset in offsets]
    return await node.call("PUT", "/v1/groups/g/offsets", {"offsets": entries, **fields})


async def test_a_commit_that_names_a_queue_twice_is_refused_and_moves_nothing(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    await node.call("POST", "/v1/topics/t/messages", {"messages": [{"body": str(n)} for n in range(9)]})
    assert (await put_offsets(node, 4)).status == 200
    index = node.core.raft.applied_index
    answer = await put_offsets(node, 8, 5)
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")
    assert node.core.raft.applied_index == index, "refused without an entry"
    offsets = (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"]
    assert [each["offset"] for each in offsets] == [4]


async def test_a_group_begins_a_queue_once(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    await node.call("POST", "/v1/topics/t/messages", {"messages": [{"body": str(n)} for n in range(9)]})
    for _ in range(2):  # the answer may have been lost
        assert (await put_offsets(node, 4, begins=True)).status == 200
    answer = await put_offsets(node, 8, begins=True)
    assert (answer.status, answer.body["code"], answer.body["committed"]) == (409, "already_begun", 4)
    offsets = (await node.call("GET", "/v1/groups/g/offsets")).body["offsets"]
    assert [each["offset"] for each in offsets] == [4]


async def test_a_commit_that_begins_looks_at_the_queues_that_it_names(node: Node) -> None:
    works = []
    for group, queues in (("few", 4), ("many", 64)):
        await node.call("PUT", f"/v1/topics/{group}", {"queues": queues})
        offsets = [{"topic": group, "queue": queue, "offset": 0} for queue in range(queues)]
        assert (await node.call("PUT", f"/v1/groups/{group}/offsets", {"offsets": offsets})).status == 200
        commit = CommitOffsets(group, None, None, (QueueOffset(group, 1, 0),), begins=True)
        works.append(work_of(partial(check_commit, commit, node.core.state)))
    assert works[0] == works[1]


async def test_a_hand_over_that_fails_expires_nobody_whose_heartbeats_it_refused(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_twice = watch_expiry(node, monkeypatch)
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    session = {"topics": ["orders"], "session_timeout_ms": SESSION_TIMEOUT_MS_MIN}
    joined = await node.call("POST", "/v1/groups/g/members", session)
    assert joined.status == 201
    path = f"/v1/groups/g/members/{joined.body['member_id']}/heartbeat"
    await look_twice()
    monkeypatch.setattr(node.core.raft, "_handing_over", True)  # and nobody takes over
    node.clock.now_ms += SESSION_TIMEOUT_MS_MIN
    assert (await node.call("POST", path, {"generation": 1})).status == 503
    await look_twice()
    monkeypatch.setattr(node.core.raft, "_handing_over", False)
    await look_twice()
    assert (await node.call("POST", path, {"generation": 1})).status == 200
    node.clock.now_ms += SESSION_TIMEOUT_MS_MIN  # from here on silence counts again

    async def is_gone() -> bool:
        return not (await node.call("GET", "/v1/groups/g")).body["members"]

    await node.wait(is_gone)


async def test_joins_that_come_together_are_applied_a_few_at_a_time(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": QUEUES_MAX})
    turns = node.core.rebalance_turns
    joined = await asyncio.gather(*(join(node, f"m{number}") for number in range(40)))
    assert sorted(each["generation"] for each in joined) == list(range(1, 41))
    assert QUEUES_MAX <= turns.taken_max <= REBALANCED_AT_ONCE
    await asyncio.gather(*(node.call("DELETE", f"/v1/groups/g/members/m{number}") for number in range(40)))
    assert turns.taken_max <= REBALANCED_AT_ONCE
