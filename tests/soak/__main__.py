"""Run `make soak`: a steady load with short retention on three real nodes, whose disks and memory must stay flat.

The last line is `RESULT {json}`. The exit status is 1 when something grew, a node ended, or the load was too small to
tell.
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from deploy.reporting.report import Report
from tests.e2e.cluster_process import ClusterProcess, NodeProcess
from tests.soak.growth import MIB, Growth, Sample, growth_of
from tests.soak.load import Load

SAMPLE_S: Final = 5.0
RETENTION_MS: Final = 5_000
SEGMENT_BYTES: Final = 4 * MIB

LOG_GROWTH_MAX: Final = 16 * MIB
"""Allowed growth of the log: a range of 4 MiB of positions is kept whole, a segment of 4 MiB goes whole, and another
two are preallocated.
"""
LOAD_MIN: Final = 6
"""Minimum log written after the warm-up, in LOG_GROWTH_MAX: with less, a log that is never cut could pass."""
INDEX_GROWTH_MAX: Final = 24 * MIB
"""Allowed growth of the index: three memtables of 8 MiB reach the disk in steps."""
INDEX_BYTES_PER_EVENT: Final = 600
"""Allowed growth of the index in bytes per transaction and request: the index keeps decided transactions and their op
messages for 72 hours, the entries of searches until they are swept out (hourly), and ids for 15 minutes.
"""
MEMORY_GROWTH_MAX: Final = 24 * MIB
"""Allowed growth of memory: caches are full after the warm-up, and allocators keep part of a burst's memory."""
OPTIONS: Final = (
    *("--election-timeout-ms", "1500", "--heartbeat-ms", "150", "--retention-check-ms", "1000"),
    *("--check-interval-ms", "3000", "--checks-per-second", "100", "--cache-bytes", str(4 * MIB)),
)


class Figures(NamedTuple):
    """The figures of one node at one time."""

    log_bytes: int
    index_bytes: int
    memory_bytes: int
    last_index: int


def figures_of(node: NodeProcess) -> Figures:
    """Return the sizes of the log's and index's files, and resident memory. Raises OSError when the node is gone."""
    status = (Path("/proc") / str(node.pid) / "status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    view = node.status() or {}
    return Figures(
        size_of(node.data_dir / "log"),
        size_of(node.data_dir / "index"),
        int(resident.split()[1]) * 1024,
        int(view.get("applied_index", 0)),
    )


def size_of(directory: Path) -> int:
    """Return the bytes of the files in a directory, some of which may be removed meanwhile."""
    total = 0
    for path in directory.iterdir():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


class Soak:
    def __init__(self, cluster: ClusterProcess, load: Load, minutes: float) -> None:
        self._cluster, self._load = cluster, load
        self._minutes = minutes
        self.samples: dict[int, list[tuple[float, Figures]]] = {node_id: [] for node_id in cluster.nodes}
        self.events: list[Sample] = []
        self.written: list[Sample] = []
        self.state = "no sample yet"
        """The present figures, for people."""

    def share(self) -> float:
        """Return the share of the time that is over."""
        return self.events[-1].at_s / (self._minutes * 60) if self.events else 0.0

    async def run(self) -> None:
        """Run the load and take samples, until the time is over or a node has ended."""
        stop = asyncio.Event()
        loading = asyncio.create_task(self._load.run(stop))
        begun_s = time.monotonic()
        try:
            while time.monotonic() - begun_s < self._minutes * 60 and not loading.done():
                await asyncio.sleep(SAMPLE_S)
                await asyncio.to_thread(self._look, time.monotonic() - begun_s)
        finally:
            stop.set()
            await loading

    def _look(self, at_s: float) -> None:
        for node_id, node in self._cluster.nodes.items():
            if not node.running():
                raise RuntimeError(f"node {node_id} ended\n{self._cluster.tails()}")
            self.samples[node_id].append((at_s, figures_of(node)))
        counts = self._load.counts
        self.events.append(Sample(at_s, sum(count for name, count in counts.items() if name != "messages")))
        positions = [int(path.stem) for node in self._cluster.alive() for path in (node.data_dir / "log").glob("*.log")]
        self.written.append(Sample(at_s, max(positions, default=0)))
        shown = "; ".join(
            f"node {node_id}: log {found[-1][1].log_bytes / MIB:.0f}, index {found[-1][1].index_bytes / MIB:.1f}, "
            f"memory {found[-1][1].memory_bytes / MIB:.0f} MiB"
            for node_id, found in self.samples.items()
        )
        self.state = f"{counts['messages']:,} messages; {shown}"

    def growth(self, node_id: int, name: str) -> Growth:
        return growth_of([Sample(at_s, getattr(found, name)) for at_s, found in self.samples[node_id]])


def judge(soak: Soak, report: Report) -> dict[str, object]:
    """Print the table, and return the result with the figures that grew."""
    events = growth_of(soak.events).total
    written = growth_of(soak.written).total
    bounds = {
        "log_bytes": float(LOG_GROWTH_MAX),
        "index_bytes": INDEX_GROWTH_MAX + INDEX_BYTES_PER_EVENT * events,
        "memory_bytes": float(MEMORY_GROWTH_MAX),
    }
    rows: list[tuple[str, ...]] = []
    grew: list[str] = []
    figures: dict[str, dict[str, float]] = {}
    for node_id, found in soak.samples.items():
        for name, bound in bounds.items():
            total = soak.growth(node_id, name).total
            values = [getattr(each, name) / MIB for _, each in found]
            flat = total <= bound
            if not flat:
                grew.append(f"node {node_id}: {name}")
            numbers = (values[-1], max(values), total / MIB, bound / MIB)
            rows.append((str(node_id), name, *(f"{number:.1f}" for number in numbers), "yes" if flat else "NO"))
            figures[f"{node_id} {name}"] = {"end_mib": round(values[-1], 1), "growth_mib": round(total / MIB, 2)}
    if written < LOAD_MIN * LOG_GROWTH_MAX:
        grew.append(
            f"too little load: {written / MIB:.0f} MiB of log after the warm-up of {LOAD_MIN * LOG_GROWTH_MAX >> 20}"
        )
    headings = ("node", "figure", "at the end, MiB", "highest, MiB", "growth, MiB", "at most, MiB", "flat")
    report.table("growth after the warm-up", headings, rows)
    for each in grew:
        report.text(each, "problem")
    return {"failed": grew, "written_mib": round(written / MIB), "figures": figures}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="Minutes for which the cluster is loaded.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the load's random choices.")
    parser.add_argument("--keep", action="store_true", help="Keep the data of the nodes.")
    options = parser.parse_args()
    report = Report()
    directory = Path(tempfile.mkdtemp(prefix="keelmq-soak-"))
    failed: dict[str, object] = {}
    try:
        with ClusterProcess(directory, options=OPTIONS) as cluster:
            report.step("starting three nodes")
            cluster.wait_leader()
            load = Load(cluster.urls, options.seed, RETENTION_MS)
            soak = Soak(cluster, load, options.minutes)
            report.step(f"steady load for {options.minutes:g} minutes, seed {options.seed}")
            with report.live(lambda: soak.state, share=soak.share):
                asyncio.run(soak.run())
            view = (cluster.wait_leader().status()) or {}
            failed = judge(soak, report)
            failed |= {"log_holders": view.get("log_holders"), "alarms": view.get("alarms")}
            failed["counts"] = dict(load.counts)
    finally:
        if options.keep:
            report.text(f"data: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    report.result({"minutes": options.minutes, "seed": options.seed, **failed})
    return 1 if failed["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
