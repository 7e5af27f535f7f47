"""The loads of the benchmark: an application's calls of the SDK for a fixed time. Rates count acknowledged messages."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import keelmq
from tests.bench.bodies import Bodies
from tests.bench.floor import Quantiles, quantiles

SEQUENTIAL_SENDS: Final = 2000
WARM_UP_SENDS: Final = 200
SENDERS: Final = 64
BATCH_SENDERS: Final = 8
CONSUMER_BATCH: Final = 256
DRAIN_TIMEOUT_S: Final = 60.0
SEND_TIMEOUT_MS: Final = 30_000

Step = Callable[[], Awaitable[int]]
"""One unit of work; returns how many messages (or transactions) it got acknowledged."""
MakeBatch = Callable[[], Sequence[bytes]]
"""Makes the bodies of one batch."""


async def per_second(step: Step, workers: int, warm_up_s: float, seconds: float) -> float:
    """Run `step` repeatedly in `workers` tasks; return the number completed per second after the warm-up."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time() + warm_up_s
    end_s = begin_s + seconds
    done = 0

    async def work() -> None:
        nonlocal done
        while loop.time() < end_s:
            count = await step()
            if begin_s <= loop.time() < end_s:
                done += count

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(work())
    return done / seconds


async def sequential_sends(urls: Sequence[str], topic: str, size: int) -> Quantiles:
    """Send one message after the other, each awaited, and return the quantiles of a single caller's wait."""
    bodies = Bodies(size)
    taken_s = []
    async with keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for _ in range(WARM_UP_SENDS + SEQUENTIAL_SENDS):
            body = bodies.next()
            started = time.perf_counter()
            await producer.send(topic, body)
            taken_s.append(time.perf_counter() - started)
    return quantiles(taken_s[WARM_UP_SENDS:])


async def concurrent_sends(urls: Sequence[str], topic: str, size: int, seconds: float) -> float:
    """Run 64 callers that each await their send; the SDK batches the sends by itself."""
    bodies = Bodies(size)
    async with keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:

        async def step() -> int:
            await producer.send(topic, bodies.next())
            return 1

        return await per_second(step, SENDERS, seconds / 5, seconds)


def batches_of(count: int, size: int) -> MakeBatch:
    """Return what makes batches of new bodies."""
    bodies = Bodies(size)
    return lambda: bodies.batch(count)


async def batch_sends(
    urls: Sequence[str], topic: str, make_batch: MakeBatch, seconds: float, *, compress: bool = True
) -> float:
    async with keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS, compress=compress) as producer:

        async def step() -> int:
            return (await producer.send_batch(topic, make_batch())).count

        return await per_second(step, BATCH_SENDERS, seconds / 5, seconds)


async def transactions(urls: Sequence[str], topic: str, size: int, at_once: int, seconds: float) -> float:
    """Run transactions: half message, an empty local transaction, commit."""
    bodies = Bodies(size)

    async def nothing(transaction: keelmq.Transaction) -> None:
        """The local transaction; it is empty, since the time of a database is not measured."""

    async def check(transaction: keelmq.Transaction) -> keelmq.Decision:
        return keelmq.Decision.COMMIT

    async with keelmq.TransactionProducer(urls, "bench", check=check, send_timeout_ms=SEND_TIMEOUT_MS) as producer:

        async def step() -> int:
            message = keelmq.Message(topic=topic, body=bodies.next())
            result = await producer.execute(message, nothing)
            return 1 if result.outcome is keelmq.Outcome.COMMITTED else 0

        return await per_second(step, at_once, seconds / 5, seconds)


async def produce_and_consume(
    urls: Sequence[str], topic: str, make_batch: MakeBatch, seconds: float, *, compress: bool = True
) -> float:
    """Send batches while a consumer group takes them; return the messages its handler got per second, up to the last.

    The clock runs from the first send until every sent message has been handled. Earlier messages of the topic are
    skipped.
    """
    loop = asyncio.get_running_loop()
    sent = handled = 0
    all_sent = False
    all_handled = asyncio.Event()

    async def handle(messages: Sequence[keelmq.ReceivedMessage]) -> None:
        nonlocal handled
        handled += len(messages)
        if all_sent and handled == sent:
            all_handled.set()

    producer = keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS, compress=compress)
    group = f"bench-{secrets.token_hex(4)}"
    consumer = keelmq.Consumer(
        urls, group, topic, batch_handler=handle, max_messages=CONSUMER_BATCH, start="latest", concurrency=4
    )
    async with producer, consumer:
        begin_s = loop.time()
        end_s = begin_s + seconds

        async def work() -> None:
            nonlocal sent
            while loop.time() < end_s:
                result = await producer.send_batch(topic, make_batch())
                sent += result.count  # not in one statement: other tasks add meanwhile

        async with asyncio.TaskGroup() as tasks:
            for _ in range(2):
                tasks.create_task(work())
        all_sent = True
        if handled < sent:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await all_handled.wait()
        return handled / (loop.time() - begin_s)


async def fill(urls: Sequence[str], topic: str, enough: Callable[[], bool]) -> None:
    """Send batches of 1,024 x 1 KiB until `enough`."""
    make_batch = batches_of(1024, 1024)
    async with keelmq.Producer(urls, send_timeout_ms=SEND_TIMEOUT_MS) as producer:

        async def work() -> None:
            while not enough():
                await producer.send_batch(topic, make_batch())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(BATCH_SENDERS):
                tasks.create_task(work())
