"""Measures a check-back storm: the effect of many undecided half transactions on normal producers.

Two clusters, one without and one with such transactions, are measured in turn, so that both see the same machine.
Producers answer checks all the time while the second one is measured, always with "unknown", and stand still while the
first one is.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import keelmq
from keelmq import wire
from keelmq.blocks.batch import encode_messages
from tests.bench import load
from tests.bench.checker import GROUP
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "bench-storm"
PLAIN_TOPIC: Final = "bench-storm-plain"
QUEUES: Final = 4
PREPARERS: Final = 64
CHECKERS: Final = 2
BODY_BYTES: Final = 200
ROUNDS: Final = 5
CALL_TIMEOUT_MS: Final = 60_000
RATIO_GOAL_PERCENT: Final = 90
"""Wanted share of the rate that is left with them."""


async def measure(directory: Path, count: int, seconds: float, figures: Figures) -> None:
    calm, stormy = (BenchCluster(_made(directory / name)) for name in ("calm", "stormy"))
    try:
        for cluster in (calm, stormy):
            cluster.start()
            await _create_topics(cluster)
        figures.step(f"preparing {count:,} half transactions")
        taken_s = await _prepare(stormy, count)
        figures.add(
            Figure(
                "storm_prepared", f"{count:,} half transactions prepared, {PREPARERS} at once", count / taken_s, "/s"
            )
        )
        await _compare(calm, stormy, count, seconds, figures)
    finally:
        calm.close()
        stormy.close()


async def _compare(calm: BenchCluster, stormy: BenchCluster, count: int, seconds: float, figures: Figures) -> None:
    rates: dict[str, list[float]] = {"calm": [], "stormy": []}
    checks = 0.0
    async with _checkers(stormy) as checkers:
        for number in range(1, ROUNDS + 1):
            figures.step(f"round {number} of {ROUNDS}, without and with undecided transactions")
            _signal(checkers, signal.SIGSTOP)
            rates["calm"].append(await load.concurrent_sends(calm.urls, PLAIN_TOPIC, 1024, seconds))
            _signal(checkers, signal.SIGCONT)
            before, begun_s = _delivered(stormy), time.perf_counter()
            rates["stormy"].append(await load.concurrent_sends(stormy.urls, PLAIN_TOPIC, 1024, seconds))
            checks += (_delivered(stormy) - before) / (time.perf_counter() - begun_s)
    pairs = zip(rates["stormy"], rates["calm"], strict=True)
    ratio = statistics.median(with_them / without for with_them, without in pairs)
    figures.add(
        Figure("storm_calm", "64 concurrent sends of 1 KiB, without", statistics.median(rates["calm"]), "msg/s"),
        Figure("storm_stormy", f"… with {count:,} undecided", statistics.median(rates["stormy"]), "msg/s"),
        Figure("storm_checks", "… checks delivered meanwhile", checks / ROUNDS, "/s"),
        Figure("storm_ratio", "… with over without, median of pairs", 100 * ratio, "%", RATIO_GOAL_PERCENT, ">="),
    )


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


async def _create_topics(cluster: BenchCluster) -> None:
    connection = keelmq.Connection(cluster.urls)
    admin = keelmq.Admin(connection)
    await admin.put_topic(TOPIC, queues=QUEUES, type="transaction")
    await admin.put_topic(PLAIN_TOPIC, queues=QUEUES)
    connection.close()


async def _prepare(cluster: BenchCluster, count: int) -> float:
    """Prepare half transactions that are due for a check at once and that nobody decides; return the seconds taken."""
    connection = keelmq.Connection(cluster.urls, call_timeout_ms=CALL_TIMEOUT_MS)
    block = encode_messages([os.urandom(BODY_BYTES)])
    numbers = iter(range(count))
    prefix = secrets.token_hex(4)

    async def work() -> None:
        for number in numbers:
            transaction_id = f"{prefix}-{number}"
            batch = wire.HalfBatch(TOPIC, transaction_id, block.crc32c, block.data, queue=number % QUEUES)
            half = wire.HalfRequest(transaction_id, GROUP, [batch], "bench", check_after_ms=0)
            await connection.call(
                "POST",
                "/v1/transactions",
                body=wire.encode_msgpack(half),
                content_type=wire.MSGPACK,
                accept=wire.MSGPACK,
            )

    begun_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(PREPARERS):
            tasks.create_task(work())
    connection.close()
    return time.perf_counter() - begun_s


@contextlib.asynccontextmanager
async def _checkers(cluster: BenchCluster) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    checkers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.checker", ",".join(cluster.urls), cwd=ROOT
        )
        for _ in range(CHECKERS)
    ]
    try:
        yield checkers
    finally:
        _signal(checkers, signal.SIGKILL)
        for checker in checkers:
            await checker.wait()


def _signal(processes: list[asyncio.subprocess.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def _delivered(cluster: BenchCluster) -> float:
    """Return the number of checks that the leader has handed out and counted."""
    total = 0.0
    for url in cluster.urls:
        with urlopen(f"{url}/metrics") as answer:
            text = answer.read().decode()
        found = re.search(r'^keelmq_checks_total\{outcome="delivered"\} (\S+)$', text, re.MULTILINE)
        total += float(found[1]) if found is not None else 0.0
    return total
