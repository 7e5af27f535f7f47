"""Run `make bench-peers`: KeelMQ beside other brokers, each as a cluster of three on loopback, in alternating rounds.

The peers are fetched in pinned versions into .data/peers. What cannot be had is reported as missing. The last line is
`RESULT {json}`; figures, the table and plots are also written into --output.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from deploy.reporting.report import Report
from tests.bench import floor
from tests.bench.peers import comparison as compared
from tests.bench.peers import plots
from tests.bench.peers.comparison import Comparison
from tests.bench.peers.fetch import Cache
from tests.bench.peers.kafka_cluster import KafkaCluster
from tests.bench.peers.keelmq_cluster import KEELMQ, KeelmqCluster
from tests.bench.peers.nats_cluster import NatsAlwaysCluster, NatsCluster
from tests.bench.peers.peer import Cluster
from tests.bench.peers.processes import ROOT, Guard
from tests.bench.peers.rabbitmq_cluster import RabbitCluster
from tests.bench.peers.rocketmq_cluster import DledgerCluster, RocketSyncCluster
from tests.bench.peers.rounds import Limits, Rounds
from tests.bench.peers.rows import KINDS, SIZES, rows

CLUSTERS: Final[tuple[type[Cluster], ...]] = (
    KeelmqCluster,
    NatsAlwaysCluster,
    NatsCluster,
    RabbitCluster,
    KafkaCluster,
    DledgerCluster,
    RocketSyncCluster,
)
PEERS: Final = tuple(cluster.variants[0].name for cluster in CLUSTERS)
"""Names for --peers: a cluster has the name of its first variant."""
FREE_BYTES_MIN: Final = 12 << 30


def names(allowed: tuple[str, ...]) -> "argparse._ActionType":
    """Return the type of an option that takes names separated by commas."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        unknown = [name for name in chosen if name not in allowed]
        if unknown or not chosen:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown) or 'nothing'} is none of {', '.join(allowed)}")
        return chosen

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bench-peers PEERS_ARGS=…", description=__doc__)
    parser.add_argument("--peers", type=names(PEERS), default=list(PEERS), help=f"of {','.join(PEERS)} (all)")
    parser.add_argument("--rows", type=names(KINDS), default=list(KINDS), help=f"loads, of {','.join(KINDS)} (all)")
    sizes = tuple(map(str, SIZES))
    parser.add_argument("--sizes", type=names(sizes), default=list(sizes), help=f"bytes, of {','.join(sizes)} (all)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--seconds", type=float, default=4.0, help="measured seconds of each slice (4)")
    parser.add_argument("--warm-up-s", type=float, default=1.0, help="seconds of load before each slice (1)")
    parser.add_argument(
        "--strangers-percent",
        type=float,
        default=15.0,
        help="slices in which other programs use more of the machine are dropped and repeated (15)",
    )
    parser.add_argument("--retries", type=int, default=2, help="how often such a slice is repeated (2)")
    parser.add_argument("--strace-s", type=float, default=2.0, help="seconds in which syncs are counted; 0: not (2)")
    parser.add_argument(
        "--limit-s", type=float, default=0.0, help="end after about this time with what was measured; 0: no limit (0)"
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".data/peers", help="folder of the fetched peers")
    parser.add_argument("--output", type=Path, help="folder for figures and plots (.data/peers-results/TIME)")
    parser.add_argument("--directory", type=Path, help="folder for the nodes' data (default: the temporary folder)")
    return parser


def measure(settings: argparse.Namespace, directory: Path, report: Report) -> tuple[Comparison, floor.Floor]:
    cache = Cache(settings.cache, report.event)
    chosen = [cluster for cluster in CLUSTERS if cluster.variants[0].name in (KEELMQ, *settings.peers)]
    measured = rows(settings.rows, map(int, settings.sizes))
    comparison = Comparison(measured, [variant for cluster in chosen for variant in cluster.variants])
    limits = Limits(
        settings.rounds,
        settings.seconds,
        settings.warm_up_s,
        settings.strangers_percent,
        settings.retries,
        settings.strace_s,
        settings.limit_s,
    )
    report.step("the machine's floor")
    bare = floor.measure(directory)
    report.event(
        f"  fdatasync of 1 KiB {bare.fdatasync.p50_ms:.3f} ms, three at once {bare.fdatasync_three.p50_ms:.3f} ms, "
        f"loopback round trip {bare.round_trip.p50_ms:.3f} ms"
    )
    with Guard() as guard:
        clusters = [each(directory / each.variants[0].name, guard, cache) for each in chosen]
        Rounds(clusters, comparison, limits, report).run()
    return comparison, bare


def conclude(comparison: Comparison, bare: floor.Floor, settings: argparse.Namespace, report: Report) -> None:
    """Print the table and the result, and write them and the plots into the output folder."""
    lines = comparison.table_rows()
    report.table("KeelMQ beside its peers; rows in which a peer is ahead come first", compared.HEADINGS, lines)
    context: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "rounds": settings.rounds,
        "seconds": settings.seconds,
        "floor_ms": {name: quantiles._asdict() for name, quantiles in bare._asdict().items()},
    }
    time = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    output: Path = (settings.output or ROOT / ".data/peers-results" / time).absolute()
    output.mkdir(parents=True, exist_ok=True)
    result = context | comparison.as_json(distributions=True)
    (output / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    table = [compared.HEADINGS, *lines]
    (output / "table.txt").write_text("".join("\t".join(line) + "\n" for line in table))
    drawn = plots.draw(comparison, output)
    report.event(f"result.json, table.txt and {len(drawn)} plots are in {output}")
    report.result(context | comparison.as_json(distributions=False))


def main() -> int:
    parser = _parser()
    settings = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the peers end on the way out
    report = Report()
    directory = Path(tempfile.mkdtemp(prefix="keelmq-peers-", dir=settings.directory))
    try:
        if shutil.disk_usage(directory).free < FREE_BYTES_MIN:
            parser.error(f"{directory} has less than {FREE_BYTES_MIN >> 30} GiB free; see --directory")
        with report.live():
            comparison, bare = measure(settings, directory, report)
        conclude(comparison, bare, settings, report)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
