"""Messages whose handler raises are given back, and are finished only when the broker has them."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keelmq import Consumer, Message, Origin, RetryLater
from keelmq.blocks.batch import encode_messages
from keelmq.consuming.group_session import pull
from keelmq.consuming.queue_reader import Handling, QueueReader, ReaderOptions
from keelmq.consuming.redelivery import wish_of
from keelmq.errors import Forbidden, InvalidName, InvalidRequest, NoLeader
from keelmq.limits import GIVE_BACK_REASON_BYTES_MAX, check_topic, check_writable_topic
from keelmq.message import ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, msgpack_answer
from tests.unit.client.scripted_group import ScriptedGroup
from tests.unit.client.virtual_time import run_in_virtual_time


def batch_of(*bodies: bytes, **more: Any) -> HttpResponse:
    block = encode_messages([Message(body=body) for body in bodies])
    batch = {"base_offset": 0, "count": len(bodies), "batch_id": "b", "stored_at_ms": 1, "skip": []}
    batches = [{**batch, "crc32c": block.crc32c, "block": block.data, **more}]
    return msgpack_answer({"batches": batches, "next_offset": len(bodies), "max_offset": len(bodies)})


def connection_to(answers: list[HttpResponse]) -> Connection:
    async def script(request: Request) -> HttpResponse:
        return answers.pop(0) if answers else await asyncio.get_running_loop().create_future()

    return Connection(SERVERS, transport=ScriptedTransport(script), rng=lambda: 0.0)


NOBODY = NoLeader("no_leader", "none")


class Reading:
    """A reader whose handler raises `failures` in turn. Its give-backs are noted, after `refusals` were raised."""

    def __init__(self, *failures: Exception, tries: int | None, refusals: int = 0, refusal: Exception = NOBODY) -> None:
        self.handled: list[int] = []
        self.given: list[tuple[int, BaseException]] = []
        self._failures = list(failures)
        self._refusals = refusals
        self._refusal = refusal
        self.moved = asyncio.Event()
        self.refused = asyncio.Event()
        options = ReaderOptions(1, 1, 10, 1 << 20, 0, tries)
        connection = connection_to([batch_of(b"m", b"n")])
        slots = asyncio.Semaphore(1)
        handling = Handling(self._handle, slots, self.moved.set, self._give_back)
        self.reader = QueueReader(connection, ("t", 0), 0, handling, options)

    async def _handle(self, messages: Sequence[ReceivedMessage]) -> None:
        self.handled.append(messages[0].offset)
        if self._failures:
            raise self._failures.pop(0)

    async def _give_back(self, messages: Sequence[ReceivedMessage], failure: BaseException) -> None:
        if self._refusals:
            self._refusals -= 1
            self.refused.set()
            raise self._refusal
        self.given.append((messages[0].offset, failure))

    async def until_at(self, position: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.reader.position < position:
                self.moved.clear()
                await self.moved.wait()
        await self.reader.stop(grace_ms=60_000)


async def test_what_fails_is_given_back_after_its_tries() -> None:
    failure = ValueError("x")
    reading = Reading(ValueError("first"), failure, tries=2)
    await reading.until_at(2)
    assert (reading.handled, reading.given) == ([0, 0, 1], [(0, failure)])


async def test_a_handler_that_blocks_gives_back_only_what_it_says() -> None:
    later = RetryLater(5)
    reading = Reading(ValueError("first"), ValueError("second"), later, tries=None)
    await reading.until_at(2)
    assert (reading.handled, reading.given) == ([0, 0, 0, 1], [(0, later)])


@pytest.mark.parametrize("refusal", [NOBODY, TypeError("a bug of ours, or of what we use")])
async def test_a_give_back_is_tried_again_and_the_message_unfinished_meanwhile(refusal: Exception) -> None:
    reading = Reading(RetryLater(), tries=1, refusals=2, refusal=refusal)
    async with asyncio.timeout(PATIENCE_S):
        await reading.refused.wait()
    assert reading.reader.position == 0
    await reading.until_at(2)
    assert [offset for offset, _ in reading.given] == [0]


async def test_a_message_whose_give_back_never_arrives_stays_unfinished() -> None:
    reading = Reading(RetryLater(), tries=1, refusals=1_000_000)
    async with asyncio.timeout(PATIENCE_S):
        await reading.refused.wait()
        await reading.reader.stop(grace_ms=60_000)
    assert (reading.reader.position, reading.given) == (0, [])


def test_reasons_are_cut_to_what_the_broker_takes() -> None:
    assert wish_of(RetryLater(7, "r")) == (7, "r")
    assert wish_of(ValueError("v")) == (None, "ValueError: v")
    _, reason = wish_of(RetryLater(reason="a" + "ü" * 200))
    assert len(reason.encode()) == GIVE_BACK_REASON_BYTES_MAX
    assert len(wish_of(RetryLater(reason="ü" * 200))[1].encode()) == GIVE_BACK_REASON_BYTES_MAX - 1
    assert wish_of(RetryLater(reason="\ud800"))[1] == "?"
    for delay_ms in (-1, 40 * 86_400_000 + 1):
        with pytest.raises(InvalidRequest):
            RetryLater(delay_ms)


@pytest.mark.parametrize(("reason", "told"), [(ValueError("no stock"), "no stock"), (7, "7"), (None, "")])
def test_a_reason_may_be_an_error(reason: Any, told: str) -> None:
    """The natural mistake: `raise RetryLater(reason=error)`. Any other type would block the queue."""
    assert wish_of(RetryLater(reason=reason)) == (None, told)


async def test_a_message_that_was_given_back_has_its_id_attempt_and_origin() -> None:
    origin = {"topic": "orders", "queue": 3, "offset": 9}
    connection = connection_to([batch_of(b"m", only=7, attempt=2, origin=origin)])
    (message,) = (await pull(connection, ("t", 0), 0, max_messages=1, max_bytes=1, wait_ms=0)).messages
    assert (message.message_id, message.attempt, message.origin) == ("b-7", 2, Origin("orders", 3, 9))


def test_topics_of_groups_are_the_brokers_own() -> None:
    check_topic("%RETRY%" + "g" * 255)
    check_topic("%DLQ%" + "g" * 255)
    with pytest.raises(InvalidName):
        check_topic("%DLQ%" + "g" * 256)
    with pytest.raises(Forbidden):
        check_writable_topic("%RETRY%g")


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_message_that_was_removed_meanwhile_does_not_hold_up_its_queue(
    caplog: pytest.LogCaptureFixture, at_once: int
) -> None:
    """Retention or a purge has removed it: trying again for ever would stop the queue."""

    async def main() -> None:
        group = ScriptedGroup(queues=1)
        group.append(0, b"a", b"b", b"c")
        group.removed_before = 2

        async def handle(messages: Sequence[ReceivedMessage]) -> None:
            raise ValueError("no")

        connection = group.connection()
        async with Consumer(
            (), "g", "t", batch_handler=handle, max_messages=at_once, on_error="give_back", connection=connection
        ):
            deadline_s = asyncio.get_running_loop().time() + 60
            while group.committed != {0: 3} and asyncio.get_running_loop().time() < deadline_s:
                await asyncio.sleep(0.1)
        assert (group.committed, [each["offset"] for each in group.given_back]) == ({0: 3}, [2])

    run_in_virtual_time(main())
    assert "t/0: the message at offset 1 is removed, and cannot be given back" in caplog.text
