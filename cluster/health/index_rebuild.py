"""Reports the progress of an index that lacks many entries of the log: by log lines, in `/v1/cluster`, as a metric.

An index lacks entries after it was removed or was of an earlier format, or after a power loss. Votes, heartbeats and
requests are handled while the entries are applied (docs/decisions.md, 24), so only the progress has to be reported.
"""

import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.http.responses import Response
from cluster.metrics import gauge

logger = logging.getLogger(__name__)

ENTRIES_MIN: Final = 1_000
"""Number of missing entries from which on the progress is reported; fewer are applied before anybody could look."""
INTERVAL_S: Final = 5.0


class IndexRebuildView(Response, kw_only=True, frozen=True):
    """Progress of applying the log to an index that lacked many entries at the start."""

    applied_index: int
    last_index: int
    percent: int
    entries_per_second: int
    seconds_left: int | None


class IndexRebuild:
    """Follows the index from the start of a node until it has all entries that the log held then. Use on the event loop
    only.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._first_index = core.state.applied_index
        self._last_index = core.log.last_index
        self._begun_ms = core.steady_ms()
        self._applied_before = self._first_index
        self._is_over = self._last_index - self._first_index < ENTRIES_MIN
        self._task = core.background.task("index-rebuild", "report the progress of the index", self._round)
        core.raft.on_applied(self._on_applied)
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        self._begun_ms = self._core.steady_ms()
        if not self._is_over:
            what = (
                "the index lacks" if self._first_index else "there is no index: rebuilding it from the log, which has"
            )
            logger.warning("%s %d entries", what, self._last_index - self._first_index)
            self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    @property
    def view(self) -> IndexRebuildView | None:
        """The progress; None once the index has all entries that the log held at the start."""
        applied_index, last_index = self._core.raft.applied_index, self._end()
        if self._is_over or applied_index >= last_index:
            return None
        done = applied_index - self._first_index
        elapsed_s = (self._core.steady_ms() - self._begun_ms) / 1000
        per_second = done / elapsed_s if elapsed_s > 0 else 0.0
        return IndexRebuildView(
            applied_index=applied_index,
            last_index=last_index,
            percent=100 * done // (last_index - self._first_index),
            entries_per_second=round(per_second),
            seconds_left=round((last_index - applied_index) / per_second) if per_second >= 1 else None,
        )

    @property
    def progress(self) -> str | None:
        """The progress in words; None once the index is complete."""
        view = self.view
        if view is None:
            return None
        left = "" if view.seconds_left is None else f", about {view.seconds_left} s left"
        return (
            f"{view.percent} %, entry {view.applied_index} of {view.last_index}, {view.entries_per_second} entries/s"
            f"{left}"
        )

    async def _round(self) -> float | None:
        if self._is_over:
            return None
        waits = " (waiting for a leader and its commit index)" if self._core.raft.leader_id is None else ""
        logger.info("rebuilding the index: %s%s", self.progress, waits)
        return INTERVAL_S

    def _end(self) -> int:
        """Return the index of the last entry to apply. A leader may have cut off uncommitted entries at the end."""
        return min(self._last_index, self._core.log.last_index)

    def _on_applied(self) -> None:
        if not self._is_over and self._core.raft.applied_index >= self._end():
            self._is_over = True
            took_s = (self._core.steady_ms() - self._begun_ms) / 1000
            entries = self._end() - self._first_index
            logger.info("the index has all %d entries again, after %.1f s", entries, took_s)

    def _gauges(self) -> Iterator[Metric]:
        view = self.view
        left = 0 if view is None else view.last_index - view.applied_index
        yield gauge(
            "keelmq_index_rebuild_entries_left", "Entries that the index lacks of the log since the start", left
        )
