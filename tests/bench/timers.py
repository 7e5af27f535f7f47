"""Measures timers: the cost of pending ones, their exactness, and the effect of many due at once on producers.

Every message is a timer of its own: the dearest case, since a batch with one time is a single timer.
"""

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.request import urlopen

import keelmq
from keelmq import wire
from keelmq.blocks.batch import BatchIds, encode_messages
from keelmq.consuming.group_session import first_offset, pull
from tests.bench import load
from tests.bench.bodies import Bodies
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.bench.floor import Quantiles, quantiles

DELAY_TOPIC: Final = "bench-timers"
PLAIN_TOPIC: Final = "bench-timers-plain"
BODY_BYTES: Final = 100
REQUEST_TIMERS: Final = 250
FILLERS: Final = 4
SPREAD_MS: Final = 3_600_000
"""Interval in ms over which waiting timers are spread; it begins a day from now."""

DAY_MS: Final = 86_400_000
EXACT_MESSAGES: Final = 300
EXACT_SPREAD_MS: Final = 6_000
ALL_DUE_MS: Final = 30_000
"""Milliseconds until the flood is due: it is scheduled before."""

ASK_INTERVAL_S: Final = 0.25
CALL_TIMEOUT_MS: Final = 60_000
Due = Callable[[int], int]
"""Returns the due time in ms since 1970 by number of the timer."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def measure(cluster: BenchCluster, count: int, flood: int, seconds: float, figures: Figures) -> None:
    """Measure `count` waiting timers; then `flood` more that are all due at one moment."""
    connection = keelmq.Connection(cluster.urls, call_timeout_ms=CALL_TIMEOUT_MS)
    admin = keelmq.Admin(connection)
    await admin.put_topic(DELAY_TOPIC, queues=1, type="delay")
    await admin.put_topic(PLAIN_TOPIC, queues=1)
    try:
        await _produce_rates(cluster, seconds, figures, "without", "no timers")
        await _exactness(connection, figures, "idle", "idle")
        before_mib = cluster.resident_mib()
        begin_ms = now_ms() + DAY_MS
        taken_s = await _schedule(connection, count, lambda number: begin_ms + (number * 7_919) % SPREAD_MS)
        await _produce_rates(cluster, seconds, figures, "with", f"{count:,} pending")
        grown_mib = cluster.resident_mib() - before_mib
        figures.add(
            Figure("timers_scheduled", f"timers scheduled, {REQUEST_TIMERS} to a request", count / taken_s, "msg/s"),
            Figure("timers_pending", "timers pending", _metric(cluster, "keelmq_timers_pending"), ""),
            Figure(
                "timers_memory", f"memory that {count:,} pending timers and their load cost a node", grown_mib, "MiB"
            ),
        )
        await _exactness(connection, figures, "pending", f"{count:,} pending")
        await _flood(cluster, connection, flood, figures)
    finally:
        connection.close()


async def _produce_rates(cluster: BenchCluster, seconds: float, figures: Figures, key: str, what: str) -> None:
    rate = await load.concurrent_sends(cluster.urls, PLAIN_TOPIC, 1024, seconds)
    figures.add(Figure(f"timers_concurrent_{key}", f"64 concurrent sends of 1 KiB, {what}", rate, "msg/s"))
    rate = await load.batch_sends(cluster.urls, PLAIN_TOPIC, load.batches_of(256, 1024), seconds)
    figures.add(Figure(f"timers_batch_{key}", f"batches of 256 x 1 KiB, {what}", rate, "msg/s"))


async def _schedule(connection: keelmq.Connection, count: int, due_ms: Due) -> float:
    """Schedule `count` messages, each a batch of its own; return the seconds taken."""
    ids = BatchIds()
    block = encode_messages([os.urandom(BODY_BYTES)])
    numbers = iter(range(0, count, REQUEST_TIMERS))

    async def work() -> None:
        for first in numbers:
            batches = [
                wire.ProduceBatch(ids.next_id(), block.crc32c, block.data, queue=0, deliver_at_ms=due_ms(number))
                for number in range(first, min(first + REQUEST_TIMERS, count))
            ]
            await connection.call(
                "POST",
                f"/v1/topics/{DELAY_TOPIC}/messages",
                body=wire.encode_msgpack(wire.ProduceRequest(batches)),
                content_type=wire.MSGPACK,
                accept=wire.MSGPACK,
            )

    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(FILLERS):
            tasks.create_task(work())
    return time.perf_counter() - started_s


async def _exactness(connection: keelmq.Connection, figures: Figures, key: str, what: str) -> None:
    """Measure how long after its time a message reaches a waiting consumer; clocks are one clock here."""
    place = (DELAY_TOPIC, 0)
    offset = await first_offset(connection, place, "latest")
    begin_ms = now_ms() + 1_000
    due = sorted(begin_ms + (number * 7_919) % EXACT_SPREAD_MS for number in range(EXACT_MESSAGES))
    await _schedule(connection, EXACT_MESSAGES, lambda number: due[number])
    late_s: list[float] = []
    while len(late_s) < EXACT_MESSAGES:
        pulled = await pull(connection, place, offset, max_messages=1_000, max_bytes=1 << 20, wait_ms=10_000)
        arrived_ms = time.time() * 1000
        for message in pulled.messages:
            late_s.append((arrived_ms - due[len(late_s)]) / 1000)
            offset = message.offset + 1
    late = quantiles(late_s)
    figures.add(
        Figure(f"timers_late_{key}_p50", f"delivered after its time, {what}, p50", late.p50_ms, "ms"),
        Figure(f"timers_late_{key}_p99", f"delivered after its time, {what}, p99", late.p99_ms, "ms"),
    )


async def _flood(cluster: BenchCluster, connection: keelmq.Connection, flood: int, figures: Figures) -> None:
    """Measure many timers due at one moment, while a producer goes on."""
    place = (DELAY_TOPIC, 0)
    target = await first_offset(connection, place, "latest") + flood
    due_ms = now_ms() + ALL_DUE_MS + flood // 5  # scheduling takes about that long
    await _schedule(connection, flood, lambda _: due_ms)
    if now_ms() > due_ms:
        raise RuntimeError("the machine is too slow: the flood was due before it was scheduled")
    calm = await _sends_until(cluster, lambda: _reached(due_ms))
    delivered_s: list[float] = []

    async def all_delivered() -> bool:
        end = await first_offset(connection, place, "latest")
        if end >= target:
            delivered_s.append(time.time() - due_ms / 1000)
        return end >= target

    stormy = await _sends_until(cluster, all_delivered)
    figures.add(
        Figure("flood_rate", f"{flood:,} timers due at once: delivered", flood / delivered_s[0], "msg/s"),
        Figure("flood_calm_p50", "… a send of 1 KiB before, p50", calm.p50_ms, "ms"),
        Figure("flood_calm_p99", "… a send of 1 KiB before, p99", calm.p99_ms, "ms"),
        Figure("flood_p50", "… a send of 1 KiB meanwhile, p50", stormy.p50_ms, "ms"),
        Figure("flood_p99", "… a send of 1 KiB meanwhile, p99", stormy.p99_ms, "ms"),
    )


async def _reached(timestamp_ms: int) -> bool:
    return now_ms() >= timestamp_ms


async def _sends_until(cluster: BenchCluster, done: Callable[[], Awaitable[bool]]) -> Quantiles:
    """Send single messages, one after the other, until `done`; return the quantiles of their times."""
    bodies = Bodies(1024)
    taken_s: list[float] = []
    async with keelmq.Producer(cluster.urls, send_timeout_ms=load.SEND_TIMEOUT_MS) as producer:
        ask_at_s = 0.0
        while True:
            body = bodies.next()
            started_s = time.perf_counter()
            await producer.send(PLAIN_TOPIC, body)
            ended_s = time.perf_counter()
            taken_s.append(ended_s - started_s)
            if ended_s >= ask_at_s:
                if await done():
                    return quantiles(taken_s)
                ask_at_s = ended_s + ASK_INTERVAL_S


def _metric(cluster: BenchCluster, name: str) -> float:
    """Return the largest of the nodes' values."""
    values: list[float] = []
    urls: Sequence[str] = cluster.urls
    for url in urls:
        with urlopen(f"{url}/metrics") as answer:
            found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
        values.append(float(found[1]) if found is not None else 0.0)
    return max(values)
