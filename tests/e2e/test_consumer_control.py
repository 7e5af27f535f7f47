"""Tests consumers that are paused, hang, or outlive their session, against real brokers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keelmq import Admin, Connection, Consumer, ReceivedMessage
from keelmq.errors import ConsumeTimeout, KeelMQError, QueueLost
from tests.e2e.cluster_process import until
from tests.e2e.fixtures import fresh_topic
from tests.e2e.test_sdk_consumer import Collector, committed, fill
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

topic = fresh_topic(queues=2)


async def until_committed(connection: Connection, group: str, expected: dict[int, int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await committed(connection, group) != expected:
            await asyncio.sleep(0.02)


async def test_a_paused_consumer_keeps_its_queues_and_goes_on_where_it_was(connection: Connection, topic: str) -> None:
    """Three messages are handled, then none while the consumer is paused; queues of another member are not paused."""
    seen = Collector()
    options: dict[str, Any] = {"start": "earliest", "connection": connection}
    async with Consumer([], topic, topic, seen, **options) as member:
        await fill(connection, topic, 3, queue=0)
        await until_committed(connection, topic, {0: 3, 1: 0})
        member.pause()
        await fill(connection, topic, 5, queue=0)
        await fill(connection, topic, 5, queue=1)
        generation = (await Admin(connection).group(topic)).generation
        other = Collector()
        async with Consumer([], topic, topic, other, **options) as second:  # the second member is not paused
            await until(lambda: len(second.assignment) == len(member.assignment) == 1)
            await until(lambda: len(other.bodies) == 5)
        await until(lambda: len(member.assignment) == 2)
        assert (await Admin(connection).group(topic)).generation > generation
        assert len(seen.bodies) == 3
        kept = sum((await committed(connection, topic)).values())
        assert kept == 3 + 5, "what is paused is not committed"
        member.resume()
        await until_committed(connection, topic, {0: 8, 1: 5})
    assert len(seen.bodies) == 3 + 5
    assert sorted(seen.bodies + other.bodies) == sorted(str(n).encode() for n in [*range(3), *range(5), *range(5)])


async def test_a_single_queue_is_paused(connection: Connection, topic: str) -> None:
    seen = Collector()
    async with Consumer([], topic, topic, seen, start="earliest", connection=connection) as member:
        member.pause((topic, 0))
        await fill(connection, topic, 5, queue=0)
        await fill(connection, topic, 7, queue=1)
        await until_committed(connection, topic, {0: 0, 1: 7})
        assert len(seen.bodies) == 7
        member.resume((topic, 0))
        await until_committed(connection, topic, {0: 5, 1: 7})


async def test_a_handler_that_hangs_is_cut_off_and_its_message_comes_again(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 4, queue=0)
    await Admin(connection).put_group(topic, retry_max_attempts=3, retry_delays_ms=[1])
    first: list[bytes] = []
    again: list[tuple[bytes, int]] = []
    faults: list[tuple[KeelMQError, list[bytes]]] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.attempt:
            again.append((message.body, message.attempt))
        elif message.body == b"1":
            await asyncio.Event().wait()
        else:
            first.append(message.body)

    async with Consumer(
        [],
        topic,
        topic,
        handle,
        start="earliest",
        connection=connection,
        on_error="give_back",
        consume_timeout_ms=200,
        on_fault=lambda error, messages: faults.append((error, [each.body for each in messages])),
    ):
        await until(lambda: bool(again))
        await until(lambda: len(first) == 3)
    assert again == [(b"1", 1)]
    [(error, bodies)] = faults
    assert isinstance(error, ConsumeTimeout)
    assert bodies == [b"1"]


async def test_a_handler_that_outlives_its_session_is_fenced_and_told_and_another_member_takes_over(
    connection: Connection, topic: str
) -> None:
    await fill(connection, topic, 3, queue=0)
    entered, may_end = asyncio.Event(), asyncio.Event()
    finished: list[bytes] = []
    faults: list[tuple[KeelMQError, bytes]] = []

    async def slow(message: ReceivedMessage) -> None:
        entered.set()
        await may_end.wait()
        finished.append(message.body)

    def on_fault(error: KeelMQError, messages: Sequence[ReceivedMessage]) -> None:
        faults.append((error, messages[0].body))

    options: dict[str, Any] = {"start": "earliest", "connection": connection, "close_timeout_ms": 600_000}
    first = Consumer([], topic, topic, slow, on_fault=on_fault, session_timeout_ms=1_000, **options)
    await first.start()
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    # Its heartbeats end as those of a frozen process do, while its handler goes on.
    next(task for task in first._tasks if task.get_name() == "session").cancel()
    seen = Collector()
    async with Consumer([], topic, topic, seen, **options):
        await until(lambda: len(faults) > 0)
        assert not first.owns(ReceivedMessage(topic=topic, queue=0, offset=0, message_id="m", body=b""))
        await until_committed(connection, topic, {0: 3, 1: 0})
        may_end.set()
        await until(lambda: finished == [b"0"])
        await first.close()
        assert await committed(connection, topic) == {0: 3, 1: 0}
    assert seen.numbers() == [0, 1, 2]
    assert finished == [b"0"], "nothing was begun after the session"
    assert isinstance(faults[0][0], QueueLost)
    assert faults[0][1] == b"0"
