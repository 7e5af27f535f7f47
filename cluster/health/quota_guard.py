"""Takes over the file of quotas when it changes.

The file is looked at every second and read in a thread. A file that cannot be used is not used: the node keeps the
quotas that it has, and raises an alarm.
"""

import logging
from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.process.addresses import ConfigError
from cluster.process.quota_file import QuotaSettings, QuotasUnreadable, read_quotas, stamp_of

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 1.0


class QuotaGuard:
    """Owns the looks at the file of quotas. Use on the event loop only. Without a file it does nothing."""

    def __init__(self, core: Core, threads: ReaderPool) -> None:
        """Create the guard, which owns `threads` from here on."""
        self._core = core
        self._path = core.config.quota_file
        self._threads = threads
        self._stamp: tuple[int, ...] = ()
        """Stamp of the file at the last look, whether it could be used or not; empty when it could not be read."""
        self._problem: str | None = None
        self._task = core.background.task("quotas", "look at the file of quotas", self._round)

    def start(self) -> None:
        if self._path is not None:
            self._task.start()

    async def stop(self) -> None:
        await self._task.stop()
        self._threads.stop()

    async def look(self) -> None:
        """Go by the file if it was changed. An error is noted for `conditions` and logged."""
        path, quotas = self._path, self._core.quotas
        if path is None or quotas is None:
            return
        known = self._stamp
        try:
            self._stamp, settings = await self._threads.run(lambda: _changed(path, known))
        except _Unusable as error:
            self._stamp = error.stamp
            if str(error) != self._problem or error.stamp:
                logger.error("the new quotas are not used: %s", error)
            self._problem = str(error)
            return
        if settings is not None:
            self._problem = None
            quotas.use(settings)
            logger.info("quotas of %s are used, %d of users with a section of their own", path, len(settings.users))

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm for a file that cannot be used."""
        if self._problem is not None:
            yield Condition(
                "quotas_refused",
                "warning",
                f"the file of quotas was changed, and cannot be used: {self._problem}. This node goes on with the "
                "former quotas, and would not start with this file",
            )

    async def _round(self) -> float:
        await self.look()
        return INTERVAL_S


class _Unusable(Exception):
    def __init__(self, error: ConfigError, stamp: tuple[int, ...]) -> None:
        super().__init__(str(error))
        self.stamp = stamp


def _changed(path: str, known: tuple[int, ...]) -> tuple[tuple[int, ...], QuotaSettings | None]:
    """Return the stamp of the file, taken before it is read, and its content if the stamp is not the known one."""
    stamp = stamp_of(path)
    if stamp == known:
        return stamp, None
    try:
        return stamp, read_quotas(path)
    except QuotasUnreadable as error:
        raise _Unusable(error, ()) from None  # no file has this stamp: the next look reads it again
    except ConfigError as error:
        raise _Unusable(error, stamp) from None
