"""Measures the effect of one consumer of old messages, read from disk, on producers: their rate with and without it, in
turn.

The consumer asks the leader; or a follower, which should spare the leader altogether; or it reads as the SDK does by
default.
"""

import asyncio
import contextlib
import operator
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import aiohttp

from tests.bench import load
from tests.bench.cluster import MIB, BenchCluster
from tests.bench.figures import Figure, Figures

ROOT: Final = Path(__file__).parents[2]
OLD_TOPIC: Final = "bench-old"
LIVE_TOPIC: Final = "bench-live"
QUEUES: Final = 4
ROUNDS: Final = 4
NICENESS: Final = 19
"""Niceness of the reader, which would have a machine of its own. Its rate of reading shows whether that held it back.
"""
PROBE_PAUSE_S: Final = 0.02
RATIO_GOAL_PERCENT: Final = 90
"""Wanted share of the producers' rate that is left beside the reader."""
MEMORY_GOAL_MIB: Final = 400
GIB: Final = 1 << 30


class Read(NamedTuple):
    size_bytes: int
    seconds: float


async def measure(cluster: BenchCluster, gib: float, seconds: float, figures: Figures) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        for topic in (OLD_TOPIC, LIVE_TOPIC):
            async with http.put(f"{cluster.urls[0]}/v1/topics/{topic}", json={"queues": QUEUES}):
                pass
        figures.step(f"writing {gib:g} GiB of old messages")
        await load.fill(cluster.urls, OLD_TOPIC, lambda: cluster.log_bytes() >= gib * GIB)
        leader_url, follower_url = await _roles(http, cluster.urls)
        every_url = ",".join(cluster.urls)
        readers = {
            "leader": (leader_url,),
            "follower": (follower_url,),
            "sdk_at_leader": (every_url, "--sdk", "leader"),
            "sdk": (every_url, "--sdk", "followers"),
        }
        rates: dict[str, list[float]] = {whom: [] for whom in ("without", *readers)}
        reads: dict[str, list[float]] = {whom: [] for whom in readers}
        late_ms: list[float] = []
        samples: list[float] = []
        for number in range(1, ROUNDS + 1):
            figures.step(f"round {number} of {ROUNDS}, without a reader and with each")
            rates["without"].append(await load.concurrent_sends(cluster.urls, LIVE_TOPIC, 1024, seconds))
            for whom, (url, *options) in readers.items():
                found: list[Read] = []
                probed = late_ms if whom == "leader" else []
                async with (
                    _reader(cluster, url, options, found),
                    _probe(http, leader_url, probed),
                    cluster.watch_memory() as memory,
                ):
                    rates[whom].append(await load.concurrent_sends(cluster.urls, LIVE_TOPIC, 1024, seconds))
                samples += memory
                reads[whom].append(found[0].size_bytes / MIB / found[0].seconds)
    ratios = {whom: 100 * statistics.median(map(operator.truediv, rates[whom], rates["without"])) for whom in readers}
    late_p99_ms = statistics.quantiles(late_ms, n=100)[-1]
    what = "64 concurrent sends of 1 KiB"
    figures.add(
        Figure("cold_reader_without", f"{what}, without a reader", statistics.median(rates["without"]), "msg/s"),
        Figure("cold_reader_with", "… with one at the leader", statistics.median(rates["leader"]), "msg/s"),
        Figure("cold_reader_ratio", "… median of pairs", ratios["leader"], "%", RATIO_GOAL_PERCENT, ">="),
        Figure("cold_reader_read", "… which reads", statistics.median(reads["leader"]), "MiB/s"),
        Figure("cold_reader_healthz_p99", "… /healthz of the leader meanwhile, p99", late_p99_ms, "ms"),
        Figure("cold_reader_follower_ratio", "… with one at a follower", ratios["follower"], "%"),
        Figure("cold_reader_follower_read", "… which reads", statistics.median(reads["follower"]), "MiB/s"),
        Figure("cold_reader_sdk_at_leader_ratio", "… with one of the SDK at the leader", ratios["sdk_at_leader"], "%"),
        Figure("cold_reader_sdk_at_leader_read", "… which reads", statistics.median(reads["sdk_at_leader"]), "MiB/s"),
        Figure("cold_reader_sdk_ratio", "… with one of the SDK, as it reads by default", ratios["sdk"], "%"),
        Figure("cold_reader_sdk_read", "… which reads", statistics.median(reads["sdk"]), "MiB/s"),
        Figure("cold_reader_memory", "… resident memory of a node", max(samples), "MiB", MEMORY_GOAL_MIB),
    )


async def _roles(http: aiohttp.ClientSession, urls: list[str]) -> tuple[str, str]:
    """Return the leader's URL, and that of a follower."""
    async with http.get(f"{urls[0]}/v1/cluster") as answer:
        leader_url = (await answer.json())["leader_url"]
    return leader_url, next(url for url in urls if url != leader_url)


@contextlib.asynccontextmanager
async def _reader(cluster: BenchCluster, url: str, options: Sequence[str], found: list[Read]) -> AsyncIterator[None]:
    """Run a process that reads the old topic within the block; then append its bytes and seconds to `found`."""
    logs = [str(node.data_dir / "log") for node in cluster.nodes]
    process = await asyncio.create_subprocess_exec(
        *("nice", "-n", str(NICENESS), sys.executable),
        *("-m", "tests.bench.reader", url, OLD_TOPIC, str(QUEUES), *logs, *options),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield
    finally:
        process.terminate()
        size_bytes, seconds = (await process.stdout.readline()).split() or (b"0", b"1")
        await process.wait()
    found.append(Read(int(size_bytes), float(seconds)))


@contextlib.asynccontextmanager
async def _probe(http: aiohttp.ClientSession, url: str, taken_ms: list[float]) -> AsyncIterator[None]:
    """Append the ms of each /healthz request to `taken_ms` within the block."""

    async def probe() -> None:
        while True:
            begun_s = time.perf_counter()
            async with http.get(f"{url}/healthz"):
                taken_ms.append((time.perf_counter() - begun_s) * 1000)
            await asyncio.sleep(PROBE_PAUSE_S)

    prober = asyncio.create_task(probe())
    try:
        yield
    finally:
        prober.cancel()
        await asyncio.gather(prober, return_exceptions=True)
