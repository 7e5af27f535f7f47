"""Measures pop consumers: messages per second popped and acknowledged, in batches of 32, by 1, 4 and 16 workers at
once.

The same is measured for a group that takes every second message, by its tag.
"""

import asyncio
import secrets
from typing import Final

import keelmq
from keelmq.consuming.pop_calls import PopCalls
from keelmq.consuming.selection import EVERYTHING, Selection
from keelmq.limits import POP_MESSAGES_MAX
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures

WORKER_COUNTS: Final = (1, 4, 16)
SECOND: Final = Selection(tags="A")
QUEUES: Final = 4
BATCH: Final = 512
BODY_BYTES: Final = 1024
INVISIBLE_MS: Final = 60_000
MESSAGES_PER_SECOND_MAX: Final = 40_000
"""Number of messages stored for each second: the workers must not run out of them."""


async def measure(cluster: BenchCluster, seconds: float, figures: Figures) -> None:
    for name, selection, which in (("pop", EVERYTHING, ""), ("pop_filtered", SECOND, ", every second message, by tag")):
        for workers in WORKER_COUNTS:
            rate = await _rate(cluster, workers, seconds, selection)
            what = f"{workers:>2} pop consumers: popped by {POP_MESSAGES_MAX} and acknowledged, 1 KiB of text{which}"
            figures.add(Figure(f"{name}_{workers}", what, rate, "msg/s"))


async def _rate(cluster: BenchCluster, workers: int, seconds: float, selection: Selection) -> float:
    topic = f"bench-pop-{secrets.token_hex(4)}"
    connection = keelmq.Connection(cluster.urls)
    try:
        await keelmq.Admin(connection).put_topic(topic, queues=QUEUES)
        bodies = [secrets.token_hex(BODY_BYTES // 2).encode() for _ in range(BATCH)]
        batch = [keelmq.Message(body=body, tag="AB"[number % 2]) for number, body in enumerate(bodies)]
        async with keelmq.Producer(cluster.urls, send_timeout_ms=load.SEND_TIMEOUT_MS, compress=False) as producer:
            for _ in range(int(seconds * MESSAGES_PER_SECOND_MAX) // BATCH):
                await producer.send_batch(topic, batch)
        loop, acked = asyncio.get_running_loop(), 0
        begin_s = loop.time()

        async def work(name: str) -> None:
            nonlocal acked
            calls = PopCalls(connection, topic, topic, selection, name)
            while loop.time() < begin_s + seconds:
                popped = await calls.pop(POP_MESSAGES_MAX, INVISIBLE_MS, 0, "earliest")
                answers = await calls.ack([each.receipt_handle for each in popped]) if popped else {}
                acked += sum(answers.values())

        await asyncio.gather(*(work(f"worker-{number}") for number in range(workers)))
        return acked / (loop.time() - begin_s)
    finally:
        connection.close()
