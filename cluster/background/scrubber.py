"""The scrubber: reads all sealed segments again and again, slowly, and reports damaged records.

Without it, damage in records that nobody reads would be found only when the last good copy is gone. The scrubber
repairs nothing: a disk that damaged one record is not to be trusted with a repair, and the other nodes can rebuild
this one.
"""

import asyncio
import functools
import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.metrics import gauge
from store.log.disk import Disk
from store.log.record_chain import Link
from store.log.scrub import Damage, SealedSegment, SegmentScrub

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 256 * 1024
"""Bytes read and checked in one step: some milliseconds of a thread that shares the processor with the loop."""


class Scrubber:
    """Finds damaged records. Use on the event loop only; `pool` does the reading, one step at a time."""

    def __init__(self, core: Core, disk: Disk, pool: ReaderPool) -> None:
        self._core = core
        self._disk = disk
        self._pool = pool
        self._task = core.background.task("scrubber", "read old segments", self._round)
        self.damages: dict[int, Damage] = {}
        """Damage found in each segment, by the position where the segment begins."""
        self.passes = 0
        self._bytes_read = 0
        self._progress = 0.0
        self._last_pass_ms = 0
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        if self._core.config.scrub_bytes_per_s:
            self._task.start()

    async def stop(self) -> None:
        """Stop without waiting for the disk: a step that is under way ends by itself."""
        self._pool.stop()
        await self._task.stop()

    async def _round(self) -> float:
        await self.scrub()
        return self._core.config.scrub_interval_ms / 1000

    async def scrub(self) -> None:
        """Make one pass over all segments that are sealed now."""
        segments = self._core.log.chain.sealed()
        starts = {segment.start for segment in segments}
        self.damages = {start: damage for start, damage in self.damages.items() if start in starts}
        total = sum(segment.length for segment in segments) or 1
        done = 0
        before: Link | None = None
        for segment in segments:
            self._progress = done / total
            before = await self._scrub_segment(segment, before)
            done += segment.length
        self._progress = 0.0
        self.passes += 1
        self._last_pass_ms = self._core.wall_ms()

    async def _scrub_segment(self, segment: SealedSegment, before: Link | None) -> Link | None:
        scrub = SegmentScrub(self._disk, segment, before)
        # Nobody closes the generator: at a stop a thread may still be in a step. Its file closes when it is released.
        step = functools.partial(next, scrub.steps(STEP_BYTES), None)
        while (read := await self._pool.run(step)) is not None:
            self._bytes_read += read
            await asyncio.sleep(read / self._core.config.scrub_bytes_per_s)
        if segment not in self._core.log.chain.sealed():
            return None  # cut or removed meanwhile: the findings mean nothing
        if scrub.damage is None:
            self.damages.pop(segment.start, None)
        elif self.damages.get(segment.start) != scrub.damage:
            self.damages[segment.start] = scrub.damage
            logger.error("a record of a sealed segment is damaged: %s, position %d, entry %d: %s", *scrub.damage)
        return scrub.after

    def conditions(self) -> Iterator[Condition]:
        """Yield one alarm condition per damaged segment."""
        for damage in self.damages.values():
            yield Condition(
                "record_damaged",
                "critical",
                f"{damage.path}, position {damage.position}, entry {damage.raft_index}: {damage.detail}. This node's "
                "copy of the entry is lost, and its disk or memory is not to be trusted: read the system's log, "
                f"replace failing hardware, then run: keelmq cluster rebuild {self._core.raft.node_id}",
                str(damage.raft_index),
            )

    def _gauges(self) -> Iterator[Metric]:
        read = CounterMetricFamily(
            "keelmq_scrub_bytes", "Bytes of old segments that were read to see whether they are sound"
        )
        read.add_metric([], self._bytes_read)
        yield read
        yield gauge(
            "keelmq_scrub_progress_ratio", "How much of the present pass over old segments is done", self._progress
        )
        yield gauge(
            "keelmq_scrub_last_pass_seconds",
            "When the last pass ended, in seconds since 1970; 0 before",
            self._last_pass_ms / 1000,
        )
        yield gauge(
            "keelmq_scrub_damaged_segments", "Old segments in which a damaged record was found", len(self.damages)
        )
