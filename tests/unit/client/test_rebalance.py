"""A member hears of a rebalance when it happens, and not with its next heartbeat."""

import asyncio
from typing import Any

from keelmq.consuming.session_times import HEARTBEAT_MS_MAX
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import problem
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import MINUTES_S, Seen, consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time


def test_queues_come_and_go_as_soon_as_the_group_moves_on() -> None:
    async def main() -> None:
        group, loop = ScriptedGroup(), asyncio.get_running_loop()
        group.waits = True
        async with consumer(group, Seen()) as member:
            await asyncio.sleep(MINUTES_S)
            for assigned in ([1], [], [0, 1], [0]):
                begun_s = loop.time()
                group.rebalance(assigned)
                await until(lambda assigned=assigned: member.assignment == [("t", q) for q in assigned])  # type: ignore[misc]
                assert loop.time() - begun_s < 0.1, "not one heartbeat interval"

    run_in_virtual_time(main())


def test_heartbeats_that_wait_keep_the_session_at_the_same_pace() -> None:
    async def main() -> None:
        for waits in (True, False):  # a broker that does not know `wait_ms` answers at once
            group = ScriptedGroup()
            group.waits = waits
            async with consumer(group, Seen()) as member:
                await asyncio.sleep(MINUTES_S)
                assert member.assignment == [("t", 0), ("t", 1)]
            expected = MINUTES_S * 1_000 / HEARTBEAT_MS_MAX
            assert expected * 0.9 < group.heartbeats < expected * 1.1 + 2, waits

    run_in_virtual_time(main())


def test_a_reset_is_seen_at_once() -> None:
    async def main() -> None:
        group, seen, loop = ScriptedGroup(queues=1), Seen(), asyncio.get_running_loop()
        group.waits = True
        group.append(0, b"0", b"1")
        async with consumer(group, seen) as member:
            await until(lambda: group.committed == {0: 2})
            await asyncio.sleep(MINUTES_S)
            begun_s = loop.time()
            group.committed = {0: 0}
            group.rebalance([0])
            await until(lambda: seen.bodies == [b"0", b"1", b"0", b"1"])
            assert loop.time() - begun_s < 0.2
            assert member.assignment == [("t", 0)]

    run_in_virtual_time(main())


def test_a_lost_heartbeat_is_followed_by_a_plain_one() -> None:
    """The member learns at once whether its session lasts, not after another wait."""

    async def main() -> None:
        group, loop = ScriptedGroup(), asyncio.get_running_loop()
        group.waits = True
        async with consumer(group, Seen()) as member:
            await asyncio.sleep(1)
            group.refuses_heartbeats = True
            await asyncio.sleep(HEARTBEAT_MS_MAX / 1000)
            before = group.heartbeats
            group.refuses_heartbeats = False
            begun_s = loop.time()
            await until(lambda: group.heartbeats > before)
            assert loop.time() - begun_s <= 2 * HEARTBEAT_MS_MAX / 1000
            assert member.assignment == [("t", 0), ("t", 1)]

    run_in_virtual_time(main())


def test_a_session_that_begins_anew_goes_by_what_the_cluster_says_then() -> None:
    """The group may have the same generation, in a cluster that was begun anew and has applied less."""

    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        group.applied_index = 1_000
        group.append(0, b"0", b"1")
        async with consumer(group, seen) as member:
            await until(lambda: group.committed == {0: 2})
            group.known, group.applied_index = False, 5
            await until(lambda: group.known)
            group.append(0, b"2")
            await until(lambda: seen.bodies == [b"0", b"1", b"2"])
            assert member.assignment == [("t", 0)]

    run_in_virtual_time(main())


class _LosingAnswers(ScriptedGroup):
    """A group whose first commit is stored though nobody is told, and which takes no other one until `takes`."""

    def __init__(self) -> None:
        super().__init__(queues=1)
        self.takes = False
        self.refused: set[int] = set()

    def _commit(self, commit: dict[str, Any]) -> HttpResponse:
        if self.takes:
            return super()._commit(commit)
        offset = commit["offsets"][0]["offset"]
        if self.committed == {0: 0} and offset > 0:
            super()._commit(commit)
            return problem(503, "unknown_outcome")
        self.refused.add(offset)
        return problem(429, "overloaded")


def test_what_an_earlier_commit_may_have_stored_is_no_reset() -> None:
    """The commit of 1 was stored and its answer lost, that of 2 was refused: then the group's offset is 1."""

    async def main() -> None:
        group, seen, faults = _LosingAnswers(), Seen(), []
        group.append(0, b"0")
        async with consumer(group, seen, on_fault=lambda error, messages: faults.append(error)):
            await until(lambda: group.committed == {0: 1})
            group.append(0, b"1")
            await until(lambda: 2 in group.refused)
            group.rebalance([0])
            heartbeats = group.heartbeats
            await until(lambda: group.heartbeats > heartbeats + 1)
            group.takes = True
            await until(lambda: group.committed == {0: 2})
        assert seen.bodies == [b"0", b"1"]
        assert not faults

    run_in_virtual_time(main())
