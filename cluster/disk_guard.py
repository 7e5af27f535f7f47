"""Refuses writes before the disk is full, and takes them again once there is space."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from cluster.alarms import Condition
from cluster.core import Core
from store.disk import Disk
from store.log_errors import DiskError

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0


class DiskGuard:
    """Looks at the free space every second and sets `core.disk_free_bytes` and `core.disk_is_low`."""

    def __init__(self, core: Core, disk: Disk, path: str) -> None:
        self._core = core
        self._disk = disk
        self._path = path
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.look()
        self._task = asyncio.create_task(self._run(), name="disk-guard")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Compare the free space with min_free_bytes now."""
        try:
            free_bytes = self._disk.free_bytes(self._path)
        except DiskError as error:
            logger.warning("free space unknown: %s", error)
            return
        self._core.disk_free_bytes = free_bytes
        low = free_bytes < self._core.config.min_free_bytes
        if low != self._core.disk_is_low:
            self._core.disk_is_low = low
            message = "writes are refused" if low else "writes are taken again"
            logger.warning("%d bytes are free in %s: %s", free_bytes, self._path, message)

    def conditions(self) -> Iterator[Condition]:
        """For the alarms of the node."""
        core = self._core
        if core.disk_is_low:
            yield Condition(
                "disk_low",
                "critical",
                f"{core.disk_free_bytes} bytes are free in {self._path}, less than min_free_bytes "
                f"({core.config.min_free_bytes}): writes are refused. Make room: delete topics, shorten their "
                "retention_ms, or enlarge the file system",
            )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            self.look()
