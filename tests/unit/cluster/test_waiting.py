"""Waiters are woken when something is applied, and silent members expire."""

import asyncio
from collections.abc import Sequence

import pytest

from cluster.core.long_poll import WOKEN_PER_TURN, AppliedWaiters
from cluster.groups.sessions import BROKEN_SESSION_S, Session, Sessions
from raft.proposals import Applied
from store.commands.entry import Command
from store.commands.groups import LeaveGroup
from store.messages.topics import HALF_TOPIC
from tests.patience import PATIENCE_S
from tests.unit.cluster.conftest import Node


async def waiting(waiters: AppliedWaiters, count: int) -> None:
    while len(waiters) != count:
        await asyncio.sleep(0)


async def test_only_the_waiters_of_a_longer_queue_wake() -> None:
    waiters = AppliedWaiters()
    mine = [asyncio.create_task(waiters.wait_queue("a", 0, 60)) for _ in range(2)]
    other = asyncio.create_task(waiters.wait_queue("a", 1, 60))
    await waiting(waiters, 3)
    waiters.notice_queues([("a", 0)])
    waiters.wake()
    assert await asyncio.gather(*mine) == [True, True]
    assert len(waiters) == 1
    waiters.notice_queues([("a", 1)])
    waiters.wake()
    assert await other


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


async def test_many_who_wait_for_one_queue_are_woken_a_few_per_turn_in_the_order_they_came() -> None:
    waiters, done = AppliedWaiters(), list[int]()

    async def wait(number: int) -> None:
        await waiters.wait_queue("a", 0, 60)
        done.append(number)

    tasks = [asyncio.create_task(wait(number)) for number in range(2_000)]
    await waiting(waiters, 2_000)
    waiters.notice_queues([("a", 0)])
    waiters.wake()
    before = 0
    while len(done) < len(tasks):
        await asyncio.sleep(0)
        assert len(done) - before <= WOKEN_PER_TURN
        before = len(done)
    assert done == sorted(done)
    assert waiters.woken == 2_000


async def test_an_event_of_one_group_wakes_nobody_of_another() -> None:
    waiters = AppliedWaiters()
    mine = asyncio.create_task(waiters.wait_group("g", 60))
    others = [asyncio.create_task(waiters.wait_group("h", 60)) for _ in range(100)]
    await asyncio.sleep(0)  # all wait after one turn of the loop
    waiters.notice_groups(("g", "nobody waits for this one"))
    waiters.wake()
    assert await mine
    assert waiters.woken == 1
    assert not any(other.done() for other in others)
    waiters.close()
    await asyncio.gather(*others)


async def test_a_group_that_moves_again_and_again_tells_its_members_once_per_rest() -> None:
    waiters = AppliedWaiters()
    members = [asyncio.create_task(waiters.wait_group("g", 60)) for _ in range(100)]
    await asyncio.sleep(0)  # all wait after one turn of the loop
    waiters.notice_groups(("g",))
    waiters.wake()
    await asyncio.gather(*members)
    assert waiters.rests("g")
    again = [asyncio.create_task(waiters.wait_group("g", 60)) for _ in range(100)]
    await asyncio.sleep(0)  # all wait after one turn of the loop
    for _ in range(50):
        waiters.notice_groups(("g",))
        waiters.wake()
    assert waiters.woken == 100, "nobody is told while the group rests"
    async with asyncio.timeout(PATIENCE_S):
        assert all(await asyncio.gather(*again)), "all that moved meanwhile is told at its end, together"
    assert waiters.woken == 200


async def test_log_readers_wake_with_their_entry_and_not_before() -> None:
    waiters = AppliedWaiters()
    far = [asyncio.create_task(waiters.entries.wait(1_000_000 + number % 7, 60)) for number in range(1_000)]
    near = [asyncio.create_task(waiters.entries.wait(index, 60)) for index in (12, 11, 12)]
    await waiting(waiters, 1_003)
    for applied in (10, 11, 13):
        waiters.entries.reached(applied)
    assert waiters.entries.woken == 3
    assert await asyncio.gather(*near) == [True] * 3
    for applied in range(14, 1_000):
        waiters.entries.reached(applied)
    assert (waiters.entries.woken, len(waiters)) == (3, 1_000)
    far[0].cancel()
    await asyncio.gather(far[0], return_exceptions=True)
    assert len(waiters) == 999
    waiters.entries.reached(1_000_006)
    assert all(await asyncio.gather(*far[1:]))
    assert len(waiters) == 0


async def test_waiting_ends_with_its_time_and_leaves_nothing() -> None:
    waiters = AppliedWaiters()
    assert not await waiters.wait_queue("a", 0, 0.001)
    assert not await waiters.entries.wait(1, 0.001)
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
    waits = [asyncio.create_task(waiters.wait_queue("a", 0, 60)), asyncio.create_task(waiters.entries.wait(1, 60))]
    await waiting(waiters, 2)
    waiters.close()
    await asyncio.gather(*waits)
    assert not await waiters.wait_queue("a", 0, 60)
    assert not await waiters.entries.wait(1, 60)


class Seconds:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Members(dict[str, int]):
    """The members of one group, with their session timeouts in milliseconds."""

    def timeout_ms_of(self, session: Session) -> int | None:
        return self.get(session.member_id)

    def sessions(self, clock: Seconds, term: int = 1) -> Sessions:
        sessions = Sessions(clock, self.timeout_ms_of)
        self.lead(sessions, term)
        return sessions

    def lead(self, sessions: Sessions, term: int) -> None:
        assert sessions.begin(term)
        for member in self:
            sessions.meet("g", member)


def test_a_member_expires_after_its_whole_timeout_of_silence() -> None:
    clock = Seconds()
    sessions = Members(m=10_000, n=10_000).sessions(clock)
    clock.now_s += 9.9
    sessions.heard("g", "n")
    assert sessions.expired() == []
    clock.now_s += 0.1
    assert sessions.expired() == [Session("g", "m")]
    assert sessions.expired() == [Session("g", "m")], "until it is forgotten: proposing it may have failed"
    sessions.forget("g", "m")
    assert sessions.expired() == []


def test_a_new_leader_gives_everybody_a_whole_timeout() -> None:
    clock = Seconds()
    members = Members(m=10_000)
    sessions = members.sessions(clock)
    clock.now_s += 9.9
    members.lead(sessions, 2)
    clock.now_s += 9.9
    assert (sessions.begin(2), sessions.expired()) == (False, [])
    clock.now_s += 0.1
    assert sessions.expired() == [Session("g", "m")]


def test_a_member_that_left_and_came_back_starts_anew() -> None:
    clock = Seconds()
    members = Members(m=10_000)
    sessions = members.sessions(clock)
    members.clear()
    clock.now_s += 10
    assert sessions.expired() == []
    assert len(sessions) == 0
    members["m"] = 10_000
    sessions.meet("g", "m")
    clock.now_s += 9
    assert sessions.expired() == []


def test_a_member_that_is_met_while_its_join_is_answered_expires_once() -> None:
    """The leader walks through the group between the moment the join is applied and the one it is answered."""
    clock = Seconds()
    sessions = Members(m=1_000).sessions(clock)
    sessions.heard("g", "m", joined=True)
    clock.now_s += 1
    assert sessions.expired() == [Session("g", "m")]
    assert sessions.expired() == [Session("g", "m")]


def test_a_member_that_joins_again_with_a_shorter_timeout_expires_by_that() -> None:
    clock = Seconds()
    members = Members(m=10_000)
    sessions = members.sessions(clock)
    members["m"] = 1_000
    sessions.heard("g", "m", joined=True)
    clock.now_s += 1
    assert sessions.expired() == [Session("g", "m")]


def test_a_look_costs_what_may_be_over_and_not_what_goes_on() -> None:
    clock = Seconds()
    sessions = Members({f"m{number}": 30_000 for number in range(1_000)} | {"short": 1_000}).sessions(clock)
    for _ in range(20):
        clock.now_s += 0.5
        sessions.heard("g", "short")
        assert sessions.expired() == []
    assert sessions.looked_at <= 20


def test_whoever_speaks_up_before_its_turn_is_not_silent_any_more() -> None:
    clock = Seconds()
    sessions = Members(m=10_000, n=10_000, o=10_000).sessions(clock)
    clock.now_s += 10
    assert len(sessions.expired()) == 3
    sessions.heard("g", "n")
    assert [sessions.is_silent(1, Session("g", member)) for member in "mno"] == [True, False, True]
    assert not sessions.is_silent(2, Session("g", "o")), "another leadership: it has not waited for anybody yet"


def test_a_session_ends_soon_after_the_connection_broke_on_which_its_heartbeat_waited() -> None:
    clock = Seconds()
    sessions = Members(m=10_000, n=10_000).sessions(clock)
    assert sessions.expired() == []
    sessions.broke("g", "m", sessions.heard("g", "m"))
    sessions.heard("g", "n")
    clock.now_s += BROKEN_SESSION_S - 0.1
    assert sessions.expired() == []
    clock.now_s += 0.1
    assert sessions.expired() == [Session("g", "m")]


def test_a_member_that_connects_again_keeps_its_whole_session() -> None:
    clock = Seconds()
    sessions = Members(m=10_000, n=10_000).sessions(clock)
    sessions.broke("g", "m", sessions.heard("g", "m"))
    before = sessions.heard("g", "n")
    sessions.heard("g", "m")
    sessions.heard("g", "n")
    sessions.broke("g", "n", before)  # the next heartbeat was read before the end of the connection
    clock.now_s += 9.9
    assert sessions.expired() == []


def test_a_broken_connection_does_not_lengthen_a_session() -> None:
    clock = Seconds()
    sessions = Members(m=1_000).sessions(clock)
    sessions.broke("g", "m", sessions.heard("g", "m"))
    clock.now_s += 1
    assert sessions.expired() == [Session("g", "m")]


async def test_members_that_are_silent_together_are_expired_together(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An expiry of each member alone, with a round through the log, would take a slow cluster for ever."""
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
