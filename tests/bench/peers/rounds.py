"""The rounds of the comparison: the peers take turns in each row, and one whose turn it is not is paused."""

import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from deploy.local_nodes import NodeError
from deploy.reporting.report import Report
from tests.bench.peers import syncs
from tests.bench.peers.client import LoadError, Missing
from tests.bench.peers.comparison import Cell, Comparison, Turn
from tests.bench.peers.fetch import FetchError
from tests.bench.peers.peer import Cluster, Slice, Variant
from tests.bench.peers.rows import SENDERS, Row, saturating

GIB: Final = 1 << 30
PREHEAT_BYTES: Final = 1024
CLUSTER_BYTES_MAX: Final = 6 * GIB
"""A cluster with more data than this is replaced by an empty one before its next turn."""
SLICE_S_MAX: Final = 60.0
"""A slice that is too short for this machine is repeated in twice the time, up to this."""


class Limits(NamedTuple):
    """Lengths of the slices, and what makes them count."""

    rounds: int
    seconds: float
    warm_up_s: float
    strangers_percent_max: float
    retries: int
    """Maximum repetitions of a slice that does not count."""
    strace_s: float
    limit_s: float
    """Time after which no turn begins, and the comparison ends with the turns that it has; 0: no limit."""


class Rounds:
    """Runs the comparison on `clusters`. Clusters that cannot be had are noted as missing, and the others measured."""

    def __init__(self, clusters: Sequence[Cluster], comparison: Comparison, limits: Limits, report: Report) -> None:
        self._clusters = list(clusters)
        self._comparison = comparison
        self._limits = limits
        self._report = report
        self._spent: set[Cluster] = set()
        self._ends_s = time.monotonic() + (limits.limit_s or math.inf)

    def run(self) -> None:
        for cluster in list(self._clusters):
            try:
                cluster.fetch()
            except FetchError as error:
                self._give_up(cluster, str(error))
        for cluster in list(self._clusters):
            self._first_start(cluster)
        for number in range(1, self._limits.rounds + 1):
            self._report.step(f"round {number} of {self._limits.rounds}")
            turns = [(cluster, variant) for cluster in self._clusters for variant in cluster.variants]
            for row in self._comparison.rows:
                turns = turns[1:] + turns[:1]  # nobody is always the first, or always behind the same one
                for cluster, variant in turns:
                    if time.monotonic() > self._ends_s:
                        self._report.event("the time is over; what was not measured is missing", "problem")
                        return
                    if cluster in self._clusters:
                        self._turn(number, row, cluster, variant)

    def _first_start(self, cluster: Cluster) -> None:
        """Start the cluster, load it until it is warm, and count its syncs."""
        self._report.step(f"three nodes of {', '.join(variant.title for variant in cluster.variants)}")
        try:
            self._start(cluster)
            for variant in cluster.variants:
                self._count_syncs(cluster, variant)
        except (LoadError, NodeError, OSError) as error:
            self._give_up(cluster, f"could not be started: {error}")
            return
        cluster.pause()

    def _start(self, cluster: Cluster) -> None:
        cluster.start()
        warm = (Row("saturating", PREHEAT_BYTES, saturating(PREHEAT_BYTES)), Row("senders", PREHEAT_BYTES, SENDERS))
        for row in warm:
            cluster.measure(row, cluster.variants[0].flavour, 0.0, cluster.preheat_s / len(warm))

    def _count_syncs(self, cluster: Cluster, variant: Variant) -> None:
        if not self._limits.strace_s:
            self._comparison.syncs[variant.name] = "switched off"
            return
        try:
            counted = syncs.measure(cluster, variant.flavour, self._limits.strace_s)
        except syncs.SyncError as error:
            self._comparison.syncs[variant.name] = str(error)
            return
        self._comparison.syncs[variant.name] = counted
        shares = ", ".join(f"{share:.2f}" for share in counted.per_message)
        self._report.event(f"  {variant.title}: {shares} syncs per message on its nodes: {counted.meaning}")

    def _turn(self, number: int, row: Row, cluster: Cluster, variant: Variant) -> None:
        cell = self._comparison.cells[row, variant.name]
        if cell.missing:
            return
        try:
            self._renew(row, cluster)
            cluster.resume(variant.flavour)
            try:
                self._measure(number, row, cluster, variant, cell)
            except Missing as reason:
                self._comparison.give_up(variant.name, str(reason), row)
            cluster.pause()
            if row.kind == cluster.spent_after:
                self._spent.add(cluster)
        except (LoadError, NodeError, OSError) as error:
            self._report.event(f"  {row.name}, {variant.title}: {error}", "problem")
            cell.dropped += 1
            cell.disturbed = str(error)
            self._replace(cluster)

    def _measure(self, number: int, row: Row, cluster: Cluster, variant: Variant, cell: Cell) -> None:
        """Measure slices until one counts, or the retries are used up. Raises LoadError, and Missing.

        One that was too short for this machine is no retry: the next one is twice as long, up to SLICE_S_MAX.
        """
        seconds, tries = self._limits.seconds, 1 + self._limits.retries
        while tries:
            measured = cluster.measure(row, variant.flavour, self._limits.warm_up_s, seconds)
            turn = Turn.of(number, measured)
            if measured.result.errors:
                why = f"{measured.result.errors} sends failed, the last one with {measured.result.error}"
                tries -= 1
            elif why := _too_short(measured, seconds):
                if seconds >= SLICE_S_MAX:
                    tries = 0
                seconds = min(2 * seconds, SLICE_S_MAX)
            elif turn.strangers_percent > self._limits.strangers_percent_max:
                why = f"strangers used {turn.strangers_percent:.0f} % of the machine"
                tries -= 1
            else:
                cell.turns.append(turn)
                one = Cell()
                one.turns.append(turn)
                self._report.event(
                    f"  {row.name}, {variant.title}: {turn.per_second:,.0f}/s, p50 {one.latency_ms(0.5):.2f} ms, "
                    f"p99 {one.latency_ms(0.99):.2f} ms, servers {turn.server_us:,.0f} us"
                )
                return
            cell.dropped += 1
            cell.disturbed = why
            self._report.event(f"  {row.name}, {variant.title}: dropped, {why}", "problem")

    def _renew(self, row: Row, cluster: Cluster) -> None:
        """Replace a cluster that is full, or not to be measured after its last load."""
        spent = cluster in self._spent and row.kind != cluster.spent_after
        if spent or bytes_below(cluster.directory) > CLUSTER_BYTES_MAX:
            self._replace(cluster)

    def _replace(self, cluster: Cluster) -> None:
        """Start the cluster anew with no data. One that cannot be started has no further turns."""
        self._report.event(f"  {cluster.variants[0].title} starts anew")
        self._spent.discard(cluster)
        cluster.end()
        shutil.rmtree(cluster.directory, ignore_errors=True)
        try:
            self._start(cluster)
        except (LoadError, NodeError, OSError, Missing) as error:
            self._give_up(cluster, f"could not be started again: {error}")
            return
        cluster.pause()

    def _give_up(self, cluster: Cluster, why: str) -> None:
        """End the cluster and note the reason."""
        for variant in cluster.variants:
            self._report.event(f"  {variant.title} is missing: {why}", "problem")
            self._comparison.give_up(variant.name, why)
        cluster.end()
        self._clusters.remove(cluster)


def _too_short(measured: Slice, seconds: float) -> str:
    """Return why the slice is too short for this machine, or nothing: the driver, too, may have been held up."""
    result, usage = measured
    if not result.messages:
        return f"nothing was acknowledged within {seconds:g} s"
    if usage.servers_s <= 0 or usage.at_s < result.seconds / 2:
        return f"the processor time of only {usage.at_s:.1f} s of {result.seconds:g} s was seen"
    return ""


def bytes_below(directory: Path) -> int:
    """Return the bytes on the disk of all files below the directory; files that go meanwhile do not count."""
    total = 0
    for file in directory.rglob("*"):
        try:
            status = file.lstat()
        except OSError:
            continue
        total += status.st_blocks * 512
    return total
