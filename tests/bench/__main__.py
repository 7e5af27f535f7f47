"""Run `make bench`: measures three nodes and the load generator together on this machine, beside the machine's floor.

The last line is `RESULT {json}`. A missed goal is reported and is no error: the exit status is 0 when everything could
be measured.
"""

import argparse
import asyncio
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import aiohttp

from deploy.local_nodes import NodeError
from deploy.reporting.report import Report
from tests.bench import (
    beside,
    cold_reader,
    compression,
    consoles,
    cores,
    fairness,
    floor,
    groups,
    hostile,
    load,
    numbers,
    overload,
    paints,
    pops,
    storm,
    timers,
    weights,
)
from tests.bench.cluster import NODES, BenchCluster
from tests.bench.figures import Figure, Figures
from tests.bench.protection import PROTECTIONS, closed_cluster, let_attackers_in, sign_in
from tests.hostile_clients import ATTACKS

TOPIC: Final = "bench"
TRANSACTION_TOPIC: Final = "bench-transactions"
CONSUME_TOPIC: Final = "bench-consume"
COMPRESSION_TOPIC: Final = "bench-compression"
QUEUES: Final = 4
TRANSACTIONS_AT_ONCE: Final = (64, 256)
IDLE_S: Final = 3.0
RESTART_GOAL_S: Final = 3.0
GIB: Final = 1 << 30
# Each node stores the log; the index and the bodies of one more round fit into the rest.
DISK_FACTOR: Final = NODES + 1

Section = Callable[[Path, argparse.Namespace, Figures], Coroutine[Any, Any, None]]


async def run(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step("the machine's floor")
    bare = floor.measure(directory)
    figures.add(
        Figure("fdatasync_p50", "pwrite + fdatasync of 1 KiB, p50", bare.fdatasync.p50_ms, "ms"),
        Figure("fdatasync_p99", "pwrite + fdatasync of 1 KiB, p99", bare.fdatasync.p99_ms, "ms"),
        Figure("fdatasync_three_p50", "… when three are made at once, p50", bare.fdatasync_three.p50_ms, "ms"),
        Figure("round_trip_p50", "loopback round trip of 1 KiB, p50", bare.round_trip.p50_ms, "ms"),
        Figure("round_trip_p99", "loopback round trip of 1 KiB, p99", bare.round_trip.p99_ms, "ms"),
    )
    figures.step(f"{NODES} nodes, every acknowledged write on the disks of a majority")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await create_topics(cluster.urls[0])
        await asyncio.sleep(IDLE_S)
        figures.add(Figure("memory_idle", "resident memory of a node, idle", cluster.resident_mib(), "MiB", 120))
        async with cluster.watch_memory() as samples:
            await sends(cluster, settings.seconds, bare, figures)
            await transactions_and_consumption(cluster, settings.seconds, figures)
            await compression.compare(cluster.urls, COMPRESSION_TOPIC, settings.seconds, figures)
        figures.add(Figure("memory_load", "resident memory of a node, under load", max(samples), "MiB", 400))
        if settings.restart_gib:
            await restart(cluster, settings.restart_gib, figures)
    finally:
        cluster.close()


async def run_timers(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, {settings.timers:,} timers, then {settings.flood:,} that are due at once")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await timers.measure(cluster, settings.timers, settings.flood, settings.seconds, figures)
    finally:
        cluster.close()


async def run_groups(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, consumer groups of {', '.join(map(str, groups.MEMBER_COUNTS))} members")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await groups.measure(cluster, settings.seconds, figures)
    finally:
        cluster.close()


async def run_pops(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, {', '.join(map(str, pops.WORKER_COUNTS))} pop consumers")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await pops.measure(cluster, settings.seconds, figures)
    finally:
        cluster.close()


async def run_hostile(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, one client that attacks, and another one that goes on sending")
    core = cores.set_core_aside()
    is_open = settings.protection == "open"
    cluster = BenchCluster(directory) if is_open else closed_cluster(directory, settings.protection)
    try:
        cluster.start()
        if not is_open:
            sign_in(cluster, directory)
            let_attackers_in(cluster, directory)
        await hostile.measure(cluster, settings.attack or list(ATTACKS), settings.seconds, core, figures)
    finally:
        cluster.close()


async def run_fairness(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, ten users that send flat out, of which one is greedy")
    await fairness.measure(directory, settings.seconds, figures)
    (directory / "weights").mkdir()
    await weights.measure(directory / "weights", settings.seconds, figures)


async def run_storm(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"twice {NODES} nodes, one cluster with {settings.storm:,} transactions that nobody decides")
    await storm.measure(directory, settings.storm, settings.seconds, figures)


async def run_overload(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"twice {NODES} nodes, one cluster behind a link of {2 * overload.ONE_WAY_MS:.0f} ms")
    await overload.measure(directory, settings.seconds, figures)


async def run_cold_reader(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, a reader of {settings.cold_gib:g} GiB that are not in memory")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await cold_reader.measure(cluster, settings.cold_gib, settings.seconds, figures)
    finally:
        cluster.close()


async def run_numbers(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(
        f"{NODES} nodes, {settings.topics:,} topics, {settings.consumer_groups:,} groups, {settings.members:,} members"
    )
    await numbers.measure(directory, settings, figures)


async def run_consoles(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, {settings.consoles} browsers that show the console")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await consoles.measure(cluster, settings.consoles, settings.rounds, settings.seconds, figures)
    finally:
        cluster.close()


async def run_paints(directory: Path, settings: argparse.Namespace, figures: Figures) -> None:
    figures.step(f"{NODES} nodes, and a browser that shows the console")
    cluster = BenchCluster(directory)
    try:
        cluster.start()
        await paints.measure(cluster, directory / "browser", settings.topics, settings.consumer_groups, figures)
    finally:
        cluster.close()


async def create_topics(url: str) -> None:
    async with aiohttp.ClientSession(raise_for_status=True) as http:
        for topic, kind in (
            (TOPIC, "normal"),
            (TRANSACTION_TOPIC, "transaction"),
            (CONSUME_TOPIC, "normal"),
            (COMPRESSION_TOPIC, "normal"),
        ):
            async with http.put(f"{url}/v1/topics/{topic}", json={"queues": QUEUES, "type": kind}):
                pass


async def sends(cluster: BenchCluster, seconds: float, bare: floor.Floor, figures: Figures) -> None:
    one = await load.sequential_sends(cluster.urls, TOPIC, 1024)
    figures.add(
        Figure(
            "sequential_p50", "send of 1 KiB, one after the other, p50", one.p50_ms, "ms", 3 * bare.replicated_write_ms
        ),
        Figure("sequential_p99", "send of 1 KiB, one after the other, p99", one.p99_ms, "ms"),
        Figure(
            "sequential_over_floor",
            "… p50 over leader sync + round trip + follower sync",
            one.p50_ms / bare.replicated_write_ms,
            "x",
        ),
        Figure(
            "sequential_over_shared_floor",
            "… p50 over the same with three syncs at once",
            one.p50_ms / bare.replicated_write_shared_ms,
            "x",
        ),
    )
    rate = await load.concurrent_sends(cluster.urls, TOPIC, 1024, seconds)
    figures.add(Figure("concurrent_1k", "64 concurrent sends of 1 KiB", rate, "msg/s", 20_000, ">="))
    rate = await load.batch_sends(cluster.urls, TOPIC, load.batches_of(256, 1024), seconds)
    figures.add(Figure("batch_256x1k", "batches of 256 x 1 KiB", rate, "msg/s", 60_000, ">="))
    rate = await load.batch_sends(cluster.urls, TOPIC, load.batches_of(1000, 100), seconds)
    figures.add(Figure("batch_1000x100", "batches of 1,000 x 100 B", rate, "msg/s", 400_000, ">="))


async def transactions_and_consumption(cluster: BenchCluster, seconds: float, figures: Figures) -> None:
    for at_once in TRANSACTIONS_AT_ONCE:
        rate = await load.transactions(cluster.urls, TRANSACTION_TOPIC, 1024, at_once, seconds)
        what = f"transactions, half + commit, {at_once} at once"
        figures.add(Figure(f"transactions_{at_once}", what, rate, "tx/s", 3_000, ">="))
    rate = await load.produce_and_consume(cluster.urls, CONSUME_TOPIC, load.batches_of(256, 1024), seconds)
    figures.add(Figure("end_to_end", "produced and consumed at once, 1 KiB", rate, "msg/s"))


async def restart(cluster: BenchCluster, gib: float, figures: Figures) -> None:
    """Fill the log to `gib`, then kill each node in turn with SIGKILL and restart it."""
    figures.step(f"filling the log to {gib:g} GiB")
    await load.fill(cluster.urls, TOPIC, lambda: cluster.log_bytes() >= gib * GIB)
    taken_s = [await asyncio.to_thread(cluster.restart_s, node) for node in cluster.nodes]
    what = f"kill -9 to ready with a log of {gib:g} GiB"
    figures.add(
        Figure("restart_worst", f"{what}, slowest node", max(taken_s), "s", RESTART_GOAL_S),
        Figure("restart_median", f"{what}, median", statistics.median(taken_s), "s"),
    )


def chosen(settings: argparse.Namespace) -> Section:
    if settings.timers is not None:
        return run_timers
    if settings.storm is not None:
        return run_storm
    if settings.overload:
        return run_overload
    if settings.hostile:
        return run_hostile
    if settings.fairness:
        return run_fairness
    if settings.pops:
        return run_pops
    if settings.cold_reader:
        return run_cold_reader
    if settings.paints:
        return run_paints
    if settings.consoles is not None:
        return run_consoles
    if settings.numbers:
        return run_numbers
    return run_groups if settings.groups else run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench BENCH_ARGS=…", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of each load in seconds (default 5)")
    parser.add_argument(
        "--restart-gib",
        type=float,
        default=2.0,
        help="length of the log in GiB for the restart figure (default 2, 0 skips it)",
    )
    parser.add_argument("--directory", type=Path, help="directory of the nodes' data (default: the temporary folder)")
    parser.add_argument(
        "--timers", type=int, metavar="N", help="measure delayed messages with N of them pending, and nothing else"
    )
    parser.add_argument("--flood", type=int, default=100_000, help="with --timers: due at once (default 100,000)")
    parser.add_argument("--groups", action="store_true", help="measure consumer groups, and nothing else")
    parser.add_argument(
        "--fairness", action="store_true", help="measure what a greedy user leaves to nine others, and nothing else"
    )
    parser.add_argument("--pops", action="store_true", help="measure pop consumers, and nothing else")
    parser.add_argument("--hostile", action="store_true", help="measure others' rates under attack, and nothing else")
    parser.add_argument(
        "--attack", action="append", choices=ATTACKS, help="with --hostile: an attack, repeatable (default: all)"
    )
    parser.add_argument(
        "--cold-reader", action="store_true", help="measure producers beside a reader of old messages, and nothing else"
    )
    parser.add_argument("--cold-gib", type=float, default=1.0, help="with --cold-reader: GiB of messages (default 1)")
    parser.add_argument(
        "--numbers", action="store_true", help="measure many topics, groups, members and pulls, and nothing else"
    )
    parser.add_argument(
        "--topics", type=int, default=10_000, help="with --numbers and --paints: topics of 8 queues (10,000)"
    )
    parser.add_argument(
        "--consumer-groups", type=int, default=5_000, help="with --numbers and --paints: groups (5,000)"
    )
    parser.add_argument("--members", type=int, default=500, help="with --numbers: members of one group (500)")
    parser.add_argument("--pulls", type=int, default=2_000, help="with --numbers: waiting pulls (2,000)")
    parser.add_argument(
        "--consoles", type=int, metavar="N", help="measure what N browsers on the console cost, and nothing else"
    )
    parser.add_argument(
        "--paints", action="store_true", help="measure how long a browser takes for the console, and nothing else"
    )
    parser.add_argument(
        "--storm", type=int, metavar="N", help="measure producers beside N undecided transactions, and nothing else"
    )
    parser.add_argument(
        "--overload", action="store_true", help="offer twice the capacity, near and far, and measure nothing else"
    )
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="TREE",
        help="compare with another tree that is set up, in alternating rounds, and nothing else",
    )
    parser.add_argument(
        "--protection",
        choices=("open", *PROTECTIONS),
        default="open",
        help="with --beside: how this tree's cluster is closed; --beside . compares it with an open one of this tree; "
        "with --hostile: auth closes the cluster, and the attacker is a user of it",
    )
    parser.add_argument("--rounds", type=int, default=beside.ROUNDS, help="with --beside and --consoles (default 5)")
    return parser


def main() -> int:
    parser = _parser()
    settings = parser.parse_args()
    if settings.protection != "open" and not (settings.beside or (settings.hostile and settings.protection == "auth")):
        parser.error(f"--protection {settings.protection}: give it with --beside, or auth with --hostile")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the nodes are stopped on the way out
    report = Report()
    figures = Figures(report)
    directory = Path(tempfile.mkdtemp(prefix="keelmq-bench-", dir=settings.directory))
    stolen_before = floor.stolen_time()
    try:
        needed = DISK_FACTOR * (settings.restart_gib + 2) * GIB
        if shutil.disk_usage(directory).free < needed:
            parser.error(f"{directory} has less than {needed / GIB:.0f} GiB free; see --directory and --restart-gib")
        if settings.beside is not None:
            with report.live():
                return beside.run(
                    settings.beside, settings.rounds, settings.seconds, directory, report, settings.protection
                )
        with report.live():
            asyncio.run(chosen(settings)(directory, settings, figures))
    except NodeError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory)
    stolen_percent = floor.stolen_percent(stolen_before, floor.stolen_time())
    report.event(f"the machine's host kept {stolen_percent:.1f} % of its cores' time for others")
    machine = {
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "stolen_percent": stolen_percent,
        "python": platform.python_version(),
    }
    figures.conclude(**machine, nodes=NODES)
    return 0


if __name__ == "__main__":
    sys.exit(main())
