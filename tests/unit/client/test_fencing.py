"""A member begins no handler call for a queue once it was told that the queue, or its session, is not its own."""

import asyncio

from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import Seen, consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time

BODIES = [b"%d" % number for number in range(10)]


async def _told(group: ScriptedGroup, seen: Seen) -> None:
    """Wait until the handler works on the first of many messages, and the member has had a heartbeat answered."""
    await seen.entered.wait()
    heartbeats = group.heartbeats
    await until(lambda: group.heartbeats > heartbeats)


def test_no_call_for_a_lost_queue_while_nobody_tells_where_the_group_is() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(), Seen()
        group.waits = True
        seen.may_end.clear()
        group.append(0, *BODIES)
        async with consumer(group, seen) as member:
            await seen.entered.wait()
            await asyncio.sleep(1)
            group.refuses_offsets = True
            group.rebalance([1])
            await asyncio.sleep(0.1)
            seen.may_end.set()
            await asyncio.sleep(5)
            assert seen.bodies == BODIES[:1], "only the call that ran ends"
            assert member.assignment == [("t", 1)]
            group.refuses_offsets = False
            group.append(1, b"other")
            await until(lambda: b"other" in seen.bodies)
        assert seen.bodies == [BODIES[0], b"other"]
        assert group.committed == {0: 0, 1: 1}

    run_in_virtual_time(main())


def test_no_call_for_a_queue_that_may_have_been_away_in_between() -> None:
    """The group moved on twice between two heartbeats: the queue is this member's again, and others have read on in
    it.
    """

    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        seen.may_end.clear()
        group.append(0, *BODIES)
        async with consumer(group, seen):
            await seen.entered.wait()
            group.refuses_offsets = True
            group.generation += 2
            await _told(group, seen)
            await asyncio.sleep(0.1)
            seen.may_end.set()
            await asyncio.sleep(2)
            assert seen.bodies == BODIES[:1], "only the call that ran ends"
            group.committed = {0: 5}
            group.refuses_offsets = False
            await until(lambda: group.committed == {0: len(BODIES)})
        assert seen.bodies == [BODIES[0], *BODIES[5:]]

    run_in_virtual_time(main())


def test_no_call_after_the_member_was_told_that_its_session_is_over() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        seen.may_end.clear()
        group.append(0, *BODIES)
        async with consumer(group, seen):
            await seen.entered.wait()
            group.refuses_joins, group.known = True, False
            await _told(group, seen)
            await asyncio.sleep(0.1)
            seen.may_end.set()
            await asyncio.sleep(2)  # its session would last for longer by its own clock
            assert seen.bodies == BODIES[:1], "only the call that ran ends"
            group.refuses_joins = False
            await until(lambda: group.committed == {0: len(BODIES)})
        assert seen.bodies == BODIES

    run_in_virtual_time(main())


def test_what_others_have_committed_meanwhile_is_not_handled_by_whoever_joins_again() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        seen.may_end.clear()
        group.append(0, *BODIES)
        async with consumer(group, seen):
            await seen.entered.wait()
            group.refuses_offsets, group.known = True, False
            group.generation += 2
            group.committed = {0: 5}
            await until(lambda: group.known)
            await asyncio.sleep(0.1)
            seen.may_end.set()
            await asyncio.sleep(2)
            assert seen.bodies == BODIES[:1], "only the call that ran ends"
            group.refuses_offsets = False
            await until(lambda: group.committed == {0: len(BODIES)})
        assert seen.bodies == [BODIES[0], *BODIES[5:]]

    run_in_virtual_time(main())


def test_a_loop_gets_nothing_that_was_on_offer_when_its_queue_went_to_another_member() -> None:
    """The message was offered while the loop did something else; then the queue was assigned to another member."""

    async def main() -> None:
        group, got = ScriptedGroup(), []
        group.waits = True
        group.append(0, b"lost")
        async with consumer(group) as member:
            await asyncio.sleep(1)
            group.rebalance([1])
            await until(lambda: member.assignment == [("t", 1)])
            group.append(1, b"kept")
            async for message in member:
                got.append(message.body)
                break
            assert got == [b"kept"]
            member.finish()
            await until(lambda: group.committed[1] == 1)
        assert group.committed == {0: 0, 1: 1}

    run_in_virtual_time(main())
