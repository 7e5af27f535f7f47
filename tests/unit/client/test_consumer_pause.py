"""A paused consumer handles and fetches nothing, commits what it has handled, and keeps its queues and its session."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keelmq.consuming.consumer import Consumer
from keelmq.errors import InvalidRequest
from keelmq.message import ReceivedMessage
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.virtual_time import run_in_virtual_time

MINUTES_S = 600.0
LONGEST_S = 10_000.0


class Seen:
    """A handler that remembers its messages, and waits where the test says."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.entered = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        self.entered.set()
        await self.may_end.wait()
        self.bodies.append(message.body)


def consumer(group: ScriptedGroup, handler: Any = None, **options: Any) -> Consumer:
    connection = group.connection()
    return Consumer(
        [], "g", "t", handler, start="earliest", session_timeout_ms=10_000, connection=connection, **options
    )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not condition():
            await asyncio.sleep(0.05)


def test_a_paused_consumer_does_nothing_but_keep_its_queues() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(), Seen()
        group.append(0, b"0", b"1")
        async with consumer(group, seen) as member:
            await until(lambda: group.committed == {0: 2, 1: 0})
            member.pause()
            await asyncio.sleep(0)  # pulls that were under way have ended
            group.append(0, b"2")
            pulls, heartbeats = len(group.pulls), group.heartbeats
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == [b"0", b"1"]
            assert len(group.pulls) == pulls
            assert group.heartbeats >= heartbeats + MINUTES_S / 10
            assert member.assignment == member.paused == [("t", 0), ("t", 1)]
            assert group.committed == {0: 2, 1: 0}
            member.resume()
            assert member.paused == []
            await until(lambda: group.committed == {0: 3, 1: 0})
        assert seen.bodies == [b"0", b"1", b"2"]

    run_in_virtual_time(main())


def test_what_runs_ends_and_is_committed_and_what_was_fetched_stays_unprocessed() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        seen.may_end.clear()
        group.append(0, b"0", b"1", b"2")
        async with consumer(group, seen) as member:
            await seen.entered.wait()
            member.pause()
            seen.may_end.set()
            await until(lambda: group.committed == {0: 1})
            await asyncio.sleep(MINUTES_S)
            assert (seen.bodies, group.committed) == ([b"0"], {0: 1})
            pulls = len(group.pulls)
            member.resume()
            await until(lambda: group.committed == {0: 3})
            assert len(group.pulls) == pulls + 1, "what was fetched is not fetched again, only what is behind it"
        assert seen.bodies == [b"0", b"1", b"2"]

    run_in_virtual_time(main())


def test_one_queue_is_paused_and_the_others_go_on() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(), Seen()
        async with consumer(group, seen) as member:
            member.pause(("t", 0))
            assert member.paused == [("t", 0)]
            group.append(0, b"a")
            group.append(1, b"b")
            await until(lambda: group.committed == {0: 0, 1: 1})
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == [b"b"]
            member.pause()
            member.resume(("t", 0))
            await asyncio.sleep(MINUTES_S)
            assert seen.bodies == [b"b"], "the whole consumer is paused"
            member.resume()
            await until(lambda: group.committed == {0: 1, 1: 1})

    run_in_virtual_time(main())


def test_a_queue_that_comes_back_is_still_paused() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(), Seen()
        group.append(0, b"a")
        member = consumer(group, seen)
        member.pause(("t", 0))  # before it has any
        async with member:
            await asyncio.sleep(MINUTES_S)
            for assigned in ([1], [0, 1]):
                group.assigned, group.generation = assigned, group.generation + 1
                await until(lambda assigned=assigned: member.assignment == [("t", q) for q in assigned])  # type: ignore[misc]
            await asyncio.sleep(MINUTES_S)
            assert (seen.bodies, member.paused) == ([], [("t", 0)])
            member.resume(("t", 0))
            await until(lambda: seen.bodies == [b"a"])

    run_in_virtual_time(main())


def test_a_failing_message_is_not_tried_again_while_its_queue_is_paused() -> None:
    async def main() -> None:
        group, calls = ScriptedGroup(queues=1), 0
        group.append(0, b"bad")

        async def fail(message: ReceivedMessage) -> None:
            nonlocal calls
            calls += 1
            raise ValueError("not now")

        async with consumer(group, fail) as member:
            await until(lambda: calls == 2)
            member.pause()
            await asyncio.sleep(MINUTES_S)
            assert calls == 2
            member.resume()
            await until(lambda: calls == 3)
        assert group.committed == {0: 0}

    run_in_virtual_time(main())


def test_an_iterating_loop_gets_nothing_of_what_is_paused_even_if_it_was_on_offer() -> None:
    async def main() -> None:
        group, got = ScriptedGroup(), []
        group.append(0, b"a0", b"a1")
        group.append(1, b"b0", b"b1")
        async with consumer(group) as member:

            async def loop() -> None:
                async for message in member:
                    got.append(message.body)
                    if len(got) == 1:
                        member.pause((message.topic, message.queue))

            looping = asyncio.create_task(loop())
            await until(lambda: len(got) == 3)
            await asyncio.sleep(MINUTES_S)
            paused = member.paused[0][1]
            first, other = [b"a0", b"a1"], [b"b0", b"b1"]
            mine, others = (first, other) if paused == 0 else (other, first)
            assert got == [mine[0], *others]
            member.resume()
            await until(lambda: got == [mine[0], *others, mine[1]])
            member.finish()
        await looping
        assert group.committed == {0: 2, 1: 2}

    run_in_virtual_time(main())


def test_closing_a_paused_consumer_leaves_what_is_not_handled() -> None:
    async def main() -> None:
        group, seen = ScriptedGroup(queues=1), Seen()
        seen.may_end.clear()
        group.append(0, b"0", b"1")
        async with consumer(group, seen) as member:
            await seen.entered.wait()
            member.pause()
            seen.may_end.set()
        assert (seen.bodies, group.committed) == ([b"0"], {0: 1})

    run_in_virtual_time(main())


@pytest.mark.parametrize("queue", ["t", ("t",), ("t", -1), ("t", True), ("t", "0"), ("other", 0), ["t", 0]])
def test_what_is_no_queue_of_the_consumers_is_refused(queue: Any) -> None:
    async def main() -> None:
        member = consumer(ScriptedGroup(), Seen())
        for change in (member.pause, member.resume):
            with pytest.raises(InvalidRequest):
                change(queue)
        assert member.paused == []
        await member.close()

    run_in_virtual_time(main())
