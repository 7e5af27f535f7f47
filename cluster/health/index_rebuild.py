"""The log is applied to an index that lacks much of it: how far that is, in the log, in `/v1/cluster`, as a metric.

That is so after the index was removed, or was of an earlier format, or after a power loss. Votes, heartbeats and
requests come in between (docs/decisions.md, 24), so all there is to do is to say it.
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
"""Fewer are applied before anybody could look."""
INTERVAL_S: Final = 5.0


class IndexRebuildView(Response, kw_only=True, frozen=True):
    """How far the log is applied to an index that lacked much of it at the start."""

    applied_index: int
    last_index: int
    percent: int
    entries_per_second: int
    seconds_left: int | None


class IndexRebuild:
    """From the start of a node until its index has what the log held then. Loop-only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._first_index = core.state.applied_index
        self._last_index = core.log.last_index
        self._begun_ms = core.steady_ms()
        self._applied_before = self._first_index
        self._is_over = self._last_index - self._first_index < ENTRIES_MIN
        self._task = core.background.task("index-rebuild", "say how far the index is", self._round)
        core.raft.on_applied(self._on_applied)
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        self._begun_ms = self._core.steady_ms()
        if not self._is_over:
            what = (
                "the index lacks" if self._first_index else "there is no index: making it anew from the log, which has"
            )
            logger.warning("%s %d entries", what, self._last_index - self._first_index)
            self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    @property
    def view(self) -> IndexRebuildView | None:
        """None once the index has all that the log held at the start."""
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
        """In words; None once it is over."""
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
        waits = " (waiting for a leader, who says what is committed)" if self._core.raft.leader_id is None else ""
        logger.info("making the index: %s%s", self.progress, waits)
        return INTERVAL_S

    def _end(self) -> int:
        """What the log held at the start was not all committed: a leader may have cut the end off."""
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
