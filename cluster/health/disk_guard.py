"""Measures the free space on the disk of the log, and raises alarms for disks that have no room or are slow.

Other modules act on the result: cluster/health/leadership_guard.py hands leadership over, and
raft/election/leadership.py decides whether a write is accepted.
"""

import logging
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.health.alarms import Condition
from cluster.health.disk_trend import DiskTrend
from cluster.metrics import gauge
from raft.errors import NoRoom
from store.log.disk import Disk
from store.log.errors import DiskError
from store.log.segment_files import DISK_RESERVE_BYTES, FILES_RESERVE, STEP_DESCRIPTORS

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
HYSTERESIS: Final = 16
"""Divisor of `min_free_bytes`: a low disk has room again once this fraction is free beyond `min_free_bytes`."""
MIN_FREE_FILES: Final = 64
"""Inodes below which a disk is low. The index and the files of term and vote need some when segments get none."""
MAKE_ROOM: Final = "delete topics, lower their retention_ms or retention_bytes, or enlarge the file system"


class DiskGuard:
    """Compares the free space with the limits every second, and at once when the log could not grow."""

    def __init__(self, core: Core, disk: Disk, path: str) -> None:
        self._core = core
        self._disk = disk
        self._path = path
        self._log_is_full = False
        self._is_filling = False
        self.free_files: int | None = None
        """Number of files that may still be created; None where that has no limit."""
        self._trend = DiskTrend()
        core.metrics.add_gauges(self._gauges)
        self._task = core.background.task("disk-guard", "look at the free space", self._round)
        core.raft.disks.on_log_full = self._on_log_full

    def start(self) -> None:
        self.look()
        self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    def look(self) -> None:
        """Compare the free space with the needed space, and refuse waiting writes when no majority has room."""
        try:
            free_bytes = self._disk.free_bytes(self._path)
            self.free_files = self._disk.free_files(self._path)
        except DiskError as error:
            logger.warning("free space unknown: %s", error)
            return
        core = self._core
        self._trend.note(core.raft.clocks.steady_ms() / 1000, free_bytes)
        was_low, is_low = core.disk_is_low, self._is_low(free_bytes)
        core.raft.disks.note_space(free_bytes, is_low=is_low)
        warn_bytes = core.config.warn_free_bytes
        self._is_filling = free_bytes < warn_bytes + (warn_bytes // HYSTERESIS if self._is_filling else 0)
        if is_low != was_low:
            message = "this node takes writes only while no other can" if is_low else "there is room again"
            logger.warning("%s in %s: %s", self._left(free_bytes), self._path, message)

        reason = core.why_no_room()
        if reason is not None and core.raft.role == "leader":
            core.raft.refuse_waiting(NoRoom(reason))  # they wait behind entries that no majority has room for

    def _is_low(self, free_bytes: int) -> bool:
        config, was_low = self._core.config, self._core.disk_is_low
        if (
            free_bytes >= config.segment_bytes + DISK_RESERVE_BYTES
            and (self.free_files is None or self.free_files > FILES_RESERVE)
            and self._disk.has_descriptors(STEP_DESCRIPTORS)
        ):
            self._log_is_full = False
        margin_bytes = config.min_free_bytes // HYSTERESIS if was_low else 0
        return self._log_is_full or self._has_few_files(was_low) or free_bytes < config.min_free_bytes + margin_bytes

    def _has_few_files(self, had_few: bool) -> bool:
        return self.free_files is not None and self.free_files < (MIN_FREE_FILES * 2 if had_few else MIN_FREE_FILES)

    def _left(self, free_bytes: int) -> str:
        inodes = (
            "" if self.free_files is None or self.free_files >= 2 * MIN_FREE_FILES else f" and {self.free_files} inodes"
        )
        return f"{free_bytes} bytes{inodes} are free"

    def _on_log_full(self) -> None:
        if not self._log_is_full:
            self._log_is_full = True
            self.look()

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for disks without room and for slow disks."""
        disks, own = self._core.raft.disks, self._core.raft.node_id
        slow, min_free_bytes = disks.slow(), self._core.config.min_free_bytes
        for node_id, disk in sorted(disks.known().items()):
            whose, subject = ("this node", "") if node_id == own else (f"node {node_id}", str(node_id))
            if disk.is_low and not subject:
                yield Condition(
                    "disk_low",
                    "critical",
                    f"{self._left(disk.free_bytes)} in {self._path}, less than min_free_bytes "
                    f"({min_free_bytes}) or than the log needs to grow: another node leads if one "
                    f"has room, otherwise writes are refused. Make room: {MAKE_ROOM}",
                )
            elif not subject and self._is_filling and self._core.config.warn_free_bytes > min_free_bytes:
                yield Condition(
                    "disk_filling",
                    "warning",
                    f"{disk.free_bytes} bytes are free in {self._path}, less than warn_free_bytes "
                    f"({self._core.config.warn_free_bytes}): below min_free_bytes ({min_free_bytes}) another node "
                    f"leads, and without a majority that has room writes are refused. Make room: {MAKE_ROOM}",
                )
            elif disk.is_low:
                yield Condition(
                    "disk_low",
                    "warning",
                    f"the disk of node {node_id} has no room ({disk.free_bytes} bytes are free): if another disk fills "
                    f"up, writes may stop. Make room there: {MAKE_ROOM}",
                    subject,
                )
            if node_id in slow:
                yield Condition(
                    "disk_slow",
                    "warning",
                    f"a sync on the disk of {whose} takes {disk.sync_ms} ms, many times as long as on a majority: the "
                    "node lets others lead. Check the drive and other programs that use it",
                    subject,
                )

    def _gauges(self) -> Iterator[Metric]:
        if self.free_files is not None:
            yield gauge(
                "keelmq_disk_free_files", "Files that may still be created where the log is (inodes)", self.free_files
            )
        yield gauge(
            "keelmq_disk_fill_bytes_per_second",
            "Pace at which free space where the log is shrinks, over the last hour; negative while it grows, 0 until "
            "ten minutes are known",
            self._trend.fill_bytes_per_s,
        )

    async def _round(self) -> float:
        self.look()
        return INTERVAL_S
