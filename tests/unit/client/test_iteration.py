"""A consumer is iterated by one loop at a time: another one would mark the first one's message as processed."""

import asyncio

import pytest

from keelmq.consuming.consumer import Consumer
from keelmq.errors import InvalidRequest
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time


async def first_of(member: Consumer) -> bytes:
    async for message in member:
        return message.body
    raise AssertionError("closed")


def test_a_second_loop_is_refused_while_the_first_works_on_a_message() -> None:
    async def main() -> None:
        group, got = ScriptedGroup(queues=1), []
        group.append(0, b"0", b"1")
        may_end = asyncio.Event()

        async def loop(member: Consumer) -> None:
            async for message in member:
                got.append(message.body)
                await may_end.wait()

        async with consumer(group) as member:
            looping = asyncio.create_task(loop(member))
            await until(lambda: got == [b"0"])
            with pytest.raises(InvalidRequest, match="concurrency"):
                await first_of(member)
            await asyncio.sleep(10)
            assert group.committed == {0: 0}
            may_end.set()
            await until(lambda: group.committed == {0: 1})
        await looping
        assert got == [b"0", b"1"]

    run_in_virtual_time(main())


def test_loops_may_follow_one_another() -> None:
    """A loop that was left is over, in this task at once, and in another one that begins after that."""

    async def main() -> None:
        group = ScriptedGroup(queues=1)
        group.append(0, b"0", b"1", b"2")
        async with consumer(group) as member:
            assert await first_of(member) == b"0"
            assert await first_of(member) == b"1"
            assert await asyncio.create_task(first_of(member)) == b"2"

    run_in_virtual_time(main())


def test_an_offer_that_is_taken_back_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        group = ScriptedGroup(queues=1)
        group.append(0, b"0")
        async with consumer(group) as member:
            await asyncio.sleep(1)  # the message is on offer, and no loop has come yet
            member.pause()
            member.resume()
            assert await first_of(member) == b"0"

    run_in_virtual_time(main())
    assert "failed" not in caplog.text
