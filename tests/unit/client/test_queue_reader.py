"""A queue's reader calls its handler at the right times, and no more when it must not."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Literal

from keelmq.blocks.batch import encode_messages
from keelmq.consuming.faults import Faults
from keelmq.consuming.queue_reader import Handling, QueueReader, ReaderOptions
from keelmq.errors import MessagesExpired
from keelmq.message import Message, ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, msgpack_answer
from tests.unit.client.virtual_time import run_in_virtual_time

OPTIONS = ReaderOptions(processors=1, handler_messages=1, prefetch_messages=10, prefetch_bytes=1 << 20, wait_ms=0)


class Slots(asyncio.Semaphore):
    """Slots for handler calls that tell when somebody asks for one."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        self.asked.set()
        return await super().acquire()


def one_message() -> HttpResponse:
    block = encode_messages([Message(body=b"m")])
    batch = {
        "base_offset": 0,
        "count": 1,
        "batch_id": "b",
        "stored_at_ms": 1,
        "crc32c": block.crc32c,
        "block": block.data,
        "skip": [],
    }
    return msgpack_answer({"batches": [batch], "next_offset": 1, "max_offset": 1})


async def test_a_reader_that_waits_for_a_slot_does_not_call_its_handler_after_it_was_stopped() -> None:
    answers = [one_message()]

    async def script(request: Request) -> HttpResponse:
        return answers.pop() if answers else await asyncio.get_running_loop().create_future()

    handled: list[int] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        handled.append(messages[0].offset)

    slots = Slots()
    await slots.acquire()
    slots.asked.clear()
    connection = Connection(SERVERS, transport=ScriptedTransport(script), rng=lambda: 0.0)
    reader = QueueReader(connection, ("t", 0), 0, Handling(handle, slots, lambda: None), OPTIONS)
    async with asyncio.timeout(PATIENCE_S):
        await slots.asked.wait()  # the processor has the message
        reader.begin_stop()
        slots.release()
        await reader.stop(grace_ms=5_000)
    assert handled == []
    assert reader.position == 0


async def test_what_expired_is_skipped_and_told() -> None:
    """All messages that the group was to read next are gone: the reader goes on at the first kept message."""
    answers = [msgpack_answer({"batches": [], "next_offset": 7, "max_offset": 7, "min_offset": 7})]
    asked: list[str] = []

    async def script(request: Request) -> HttpResponse:
        asked.append(request.target)
        return answers.pop() if answers else await asyncio.get_running_loop().create_future()

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        raise AssertionError("there is nothing to handle")

    told: list[tuple[str, object, object, int]] = []

    def on_fault(error: object, messages: Sequence[ReceivedMessage]) -> None:
        assert isinstance(error, MessagesExpired)
        assert not messages
        told.append((error.code, error.extra["topic"], error.extra["offset"], error.skipped))

    moved = asyncio.Event()
    connection = Connection(SERVERS, transport=ScriptedTransport(script), rng=lambda: 0.0)
    handling = Handling(handle, Slots(), moved.set, on_expired=Faults(on_fault).expired)
    reader = QueueReader(connection, ("t", 0), 2, handling, OPTIONS)
    async with asyncio.timeout(PATIENCE_S):
        await moved.wait()
        while len(asked) < 2:
            await asyncio.sleep(0)
        await reader.stop(grace_ms=5_000)
    assert told == [("messages_expired", "t", 2, 5)]
    assert reader.position == 7
    assert "offset=7" in asked[1]


def test_a_reader_that_does_not_wait_at_the_broker_pauses_at_the_end_of_its_queue() -> None:
    pulls: list[str] = []
    nothing = msgpack_answer({"batches": [], "next_offset": 0, "max_offset": 0})

    def script(request: Request) -> HttpResponse | Awaitable[HttpResponse]:
        pulls.append(request.target)
        return nothing if len(pulls) < 1_000 else asyncio.get_running_loop().create_future()

    async def handle(messages: Sequence[ReceivedMessage]) -> None: ...

    async def main() -> None:
        connection = Connection(SERVERS, transport=ScriptedTransport(script), rng=lambda: 0.0)
        handling = Handling(handle, Slots(), on_progress=lambda: None)
        reader = QueueReader(connection, ("t", 0), 0, handling, OPTIONS)
        await asyncio.sleep(10)
        await reader.stop(0)

    run_in_virtual_time(main())
    assert 10 <= len(pulls) <= 100
