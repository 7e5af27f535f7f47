"""Who is woken when something is applied, and who expires when nothing is heard."""

import asyncio
from collections.abc import Sequence

import pytest

from cluster.long_poll import AppliedWaiters
from cluster.sessions import Session, Sessions
from raft.proposals import Applied
from store.command import Command, LeaveGroup
from store.results import (
    AssignedQueue,
    BatchPlaced,
    Decided,
    Discarded,
    GiveBackOutcome,
    GroupView,
    MemberView,
    MessageGivenBack,
    MessagesGivenBack,
    Position,
    Prepared,
    Produced,
)
from store.topics import DISCARDED_TOPIC, DLQ_PREFIX, HALF_TOPIC, RETRY_PREFIX
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import Node


def produced(topic: str, queue: int) -> Produced:
    return Produced((BatchPlaced(topic, queue, 0, 1, False),))


async def waiting(waiters: AppliedWaiters, count: int) -> None:
    while len(waiters) != count:
        await asyncio.sleep(0)


async def test_only_the_waiters_of_a_longer_queue_wake() -> None:
    waiters = AppliedWaiters()
    mine = [asyncio.create_task(waiters.wait_queue("a", 0, 60)) for _ in range(2)]
    other = asyncio.create_task(waiters.wait_queue("a", 1, 60))
    await waiting(waiters, 3)
    waiters.notice(produced("a", 0))
    waiters.wake()
    assert await asyncio.gather(*mine) == [True, True]
    assert len(waiters) == 1
    waiters.notice(Decided("t", "committed", (Position("a", 1, 0, 1),)))
    waiters.wake()
    assert await other


async def test_half_and_discarded_messages_wake_the_readers_of_their_system_topics() -> None:
    waiters = AppliedWaiters()
    half = asyncio.create_task(waiters.wait_queue(HALF_TOPIC, 0, 60))
    discarded = asyncio.create_task(waiters.wait_queue(DISCARDED_TOPIC, 0, 60))
    await waiting(waiters, 2)
    waiters.notice(Prepared("t", "prepared", False, 1))
    waiters.wake()
    assert await half
    assert not discarded.done()
    waiters.notice(Discarded(("t",)))
    waiters.wake()
    assert await discarded


@pytest.mark.parametrize("outcome", ["scheduled", "dead_lettered"])
async def test_what_is_given_back_at_once_wakes_the_readers_of_a_groups_own_topics(outcome: GiveBackOutcome) -> None:
    waiters = AppliedWaiters()
    mine = RETRY_PREFIX + "g" if outcome == "scheduled" else DLQ_PREFIX + "g"
    member = asyncio.create_task(waiters.wait_queue(mine, 0, 60))
    popper = asyncio.create_task(waiters.wait_topics((mine, "orders"), 60))
    other = asyncio.create_task(waiters.wait_queue(RETRY_PREFIX + "h", 0, 60))
    await waiting(waiters, 3)
    waiters.notice(MessagesGivenBack("g", 1, (MessageGivenBack("orders", 0, 3, 1, outcome, None),)))
    waiters.wake()
    assert all(await asyncio.gather(member, popper))
    assert not other.done()
    other.cancel()


async def test_a_long_poll_of_a_groups_retries_is_answered_by_what_is_given_back_at_once(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await node.call("POST", "/v1/topics/orders/messages", {"messages": [{"body": "one"}, {"body": "two"}]})
    given = {"messages": [{"topic": "orders", "queue": 0, "offset": 0, "delay_ms": 0}]}
    assert (await node.call("POST", "/v1/groups/g/retries", given)).status == 200
    path = "/v1/topics/%25RETRY%25g/queues/0/messages?offset=1&wait_ms=30000"
    polling = asyncio.create_task(node.call("GET", path))
    await waiting(node.core.waiters, 1)
    given["messages"][0]["offset"] = 1
    assert (await node.call("POST", "/v1/groups/g/retries", given)).status == 200
    assert len(node.core.waiters) == 0, "it is woken with what was applied"
    async with asyncio.timeout(PATIENCE_S):
        assert [message["body"] for message in (await polling).body["messages"]] == ["two"]


async def test_a_long_poll_of_the_half_topic_is_answered_by_a_prepare(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    path = f"/v1/topics/{HALF_TOPIC}/queues/0/messages?offset=0&wait_ms=30000"
    polling = asyncio.create_task(node.call("GET", path))
    await waiting(node.core.waiters, 1)
    half = {"transaction_id": "t", "producer_group": "g", "messages": [{"topic": "orders", "body": "one"}]}
    assert (await node.call("POST", "/v1/transactions", half)).status == 201
    async with asyncio.timeout(PATIENCE_S):
        assert [message["body"] for message in (await polling).body["messages"]] == ["one"]


async def test_log_readers_wake_with_anything() -> None:
    waiters = AppliedWaiters()
    reader = asyncio.create_task(waiters.wait_any(60))
    await waiting(waiters, 1)
    waiters.wake()
    assert await reader


async def test_waiting_ends_with_its_time_and_leaves_nothing() -> None:
    waiters = AppliedWaiters()
    assert not await waiters.wait_queue("a", 0, 0.001)
    assert not await waiters.wait_any(0.001)
    assert len(waiters) == 0


async def test_a_cancelled_waiter_leaves_nothing() -> None:
    waiters = AppliedWaiters()
    gone = asyncio.create_task(waiters.wait_queue("a", 0, 60))
    await waiting(waiters, 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert len(waiters) == 0


async def test_closing_wakes_everybody_and_nobody_waits_any_more() -> None:
    waiters = AppliedWaiters()
    waits = [asyncio.create_task(waiters.wait_queue("a", 0, 60)), asyncio.create_task(waiters.wait_any(60))]
    await waiting(waiters, 2)
    waiters.close()
    await asyncio.gather(*waits)
    assert not await waiters.wait_queue("a", 0, 60)
    assert not await waiters.wait_any(60)


class Seconds:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def group(*members: str, timeout_ms: int = 10_000) -> list[GroupView]:
    assigned = (AssignedQueue("a", 0),)
    views = tuple(MemberView(member, "c", timeout_ms, 0, assigned) for member in members)
    return [GroupView("g", 1, ("a",), views)]


def test_a_member_expires_after_its_whole_timeout_of_silence() -> None:
    clock = Seconds()
    sessions = Sessions(clock)
    assert sessions.expired(1, group("m", "n")) == []
    clock.now_s += 9.9
    sessions.heard("g", "n")
    assert sessions.expired(1, group("m", "n")) == []
    clock.now_s += 0.1
    assert sessions.expired(1, group("m", "n")) == [Session("g", "m")]


def test_a_new_leader_gives_everybody_a_whole_timeout() -> None:
    clock = Seconds()
    sessions = Sessions(clock)
    assert sessions.expired(1, group("m")) == []
    clock.now_s += 9.9
    assert sessions.expired(2, group("m")) == []
    clock.now_s += 9.9
    assert sessions.expired(2, group("m")) == []
    clock.now_s += 0.1
    assert sessions.expired(2, group("m")) == [Session("g", "m")]


def test_a_member_that_left_and_came_back_starts_anew() -> None:
    clock = Seconds()
    sessions = Sessions(clock)
    assert sessions.expired(1, group("m")) == []
    clock.now_s += 9
    assert sessions.expired(1, group()) == []
    clock.now_s += 9
    assert sessions.expired(1, group("m")) == []


def test_whoever_speaks_up_before_its_turn_is_not_silent_any_more() -> None:
    clock = Seconds()
    sessions = Sessions(clock)
    sessions.expired(1, group("m", "n", "o"))
    clock.now_s += 10
    assert len(sessions.expired(1, group("m", "n", "o"))) == 3
    sessions.heard("g", "n")
    assert [sessions.is_silent(1, Session("g", member)) for member in "mno"] == [True, False, True]
    assert not sessions.is_silent(2, Session("g", "o")), "another leadership: it has not waited for anybody yet"


async def test_members_that_are_silent_together_are_expired_together(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one, each with a round through the log, a slow cluster would take for ever over many of them."""
    await node.call("PUT", "/v1/topics/orders", {"queues": 3})
    for member in ("a", "b", "c"):
        body = {"topics": ["orders"], "member_id": member, "session_timeout_ms": 1_000}
        assert (await node.call("POST", "/v1/groups/g/members", body)).status == 201
    propose, expired, may_go_on = node.core.propose, list[str](), asyncio.Event()

    async def slow_propose(command: Command, blocks: Sequence[bytes] = ()) -> Applied:
        if isinstance(command, LeaveGroup):
            expired.append(command.member_id)
            await may_go_on.wait()
        return await propose(command, blocks)

    async def all_expire() -> bool:
        node.clock.now_ms += 0 if expired else 1_000
        return len(expired) == 3

    async def nobody_is_left() -> bool:
        return not (await node.call("GET", "/v1/groups/g")).body["members"]

    monkeypatch.setattr(node.core, "propose", slow_propose)
    await node.wait(all_expire)
    may_go_on.set()
    await node.wait(nobody_is_left)
    assert sorted(expired) == ["a", "b", "c"]
