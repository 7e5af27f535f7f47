"""Keeps file descriptors for what must not fail: the log, RocksDB and peers (docs/decisions.md, 88).

Clients are limited so that there is room for all of these (cluster/budgets/connection_limits.py). It is short all the
same when the limit is lowered, when the system has no more files to give, or when something else of the process takes
more than was reckoned with.
"""

import logging
from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.health.alarms import Condition
from store.descriptors import SPARES, SpareDescriptors

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0
MISSING_MAX: Final = SPARES
"""Number of missing descriptors up to which clients get some of what is left."""


class DescriptorGuard:
    """Looks every second, and as clients connect, whether the spare descriptors of the log are there, and others beside
    them.
    """

    def __init__(self, core: Core, spares: SpareDescriptors) -> None:
        self._core = core
        self._spares = spares
        self._missing = 0
        self._is_told = False
        self._task = core.background.task("descriptor-guard", "look at the file descriptors", self._round)
        self._listeners = [each for each in (core.connections, core.admin_connections) if each is not None]
        for each in self._listeners:
            each.look_at_descriptors = self._count

    def start(self) -> None:
        self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    def look(self) -> None:
        """Hold the spare descriptors again. For those that are missing, close what is opened again when it is needed:
        old segments, and idle connections of clients.
        """
        if self._count() and self._core.log.close_sealed():
            self._count()
        was_told, self._is_told = self._is_told, self._missing > 0
        if self._missing and not was_told:
            logger.warning(
                "%d of the file descriptors that are kept for log, index and peers are missing", self._missing
            )
        elif was_told and not self._missing:
            logger.warning("all file descriptors that are kept for log, index and peers are there again")
        for each in self._listeners:
            each.close_idle(max(0, self._missing - MISSING_MAX))

    def _count(self) -> int:
        """Hold the spare descriptors again, and have clients take no more of those that are missing. Closes nothing: a
        descriptor is free only a turn of the loop after its connection was closed, so each of a burst would close more.
        """
        self._missing = self._spares.renew()
        for each in self._listeners:
            each.is_short = self._missing > MISSING_MAX
        return self._missing

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm while descriptors are missing."""
        if self._missing:
            yield Condition(
                "descriptors_low",
                "critical",
                f"{self._missing} of the file descriptors that this node keeps for its log, its index and its peers "
                f"are missing. Beyond {MISSING_MAX} idle connections of clients are closed, and new ones have to "
                "replace others. When none is left, writes are refused or wait. Raise the limit of open files "
                "(LimitNOFILE, ulimit -n; fs.file-max of the system), or find what has opened so many",
            )

    async def _round(self) -> float:
        self.look()
        return INTERVAL_S
