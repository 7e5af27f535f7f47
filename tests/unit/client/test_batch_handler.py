"""A batch handler may do with its list what it likes: what it was given is processed, or failed, as a whole."""

import asyncio

from keelmq.message import ReceivedMessage
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.test_consumer_pause import consumer, until
from tests.unit.client.virtual_time import run_in_virtual_time

BODIES = [b"0", b"1", b"2"]


def test_messages_that_a_handler_takes_from_its_list_are_committed() -> None:
    async def main() -> None:
        group, got = ScriptedGroup(queues=1), []

        async def handle(messages: list[ReceivedMessage]) -> None:
            while messages:
                got.append(messages.pop(0).body)

        group.append(0, *BODIES)
        async with consumer(group, batch_handler=handle):
            await until(lambda: group.committed == {0: len(BODIES)})
        assert got == BODIES

    run_in_virtual_time(main())


def test_messages_that_a_failing_handler_has_taken_from_its_list_come_again() -> None:
    async def main() -> None:
        group, calls = ScriptedGroup(queues=1), []

        async def handle(messages: list[ReceivedMessage]) -> None:
            calls.append([message.body for message in messages])
            messages.clear()
            if len(calls) == 1:
                raise ValueError("bug")

        group.append(0, *BODIES)
        async with consumer(group, batch_handler=handle):
            await until(lambda: group.committed == {0: len(BODIES)})
            await asyncio.sleep(1)
        assert calls == [BODIES, BODIES]

    run_in_virtual_time(main())
