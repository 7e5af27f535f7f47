"""Takes over the TLS files of peer connections when they are replaced, and warns before the certificate ends.

The files are looked at every few seconds, and read in a thread. Files that no peer would accept are not used: the node
keeps those that it has, and raises an alarm.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.metrics import gauge
from raft.peers.pem_files import TlsError

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
WARNING_DAYS: Final = 14
"""A certificate that ends within this number of days is an alarm."""
DAY_S: Final = 86_400


class CertificateGuard:
    """Owns the looks at the TLS files. Use on the event loop only. Without TLS it does nothing."""

    def __init__(self, core: Core, threads: ReaderPool) -> None:
        """Create the guard, which owns `threads` from here on."""
        self._core = core
        self._tls = core.raft.tls
        self._threads = threads
        self._problem = ""
        self._task = core.background.task("certificates", "look at the TLS files", self._round)
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        if self._tls is not None:
            self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()
        self._threads.stop()

    async def look(self) -> None:
        """Use the files for new connections if they were replaced. An error is noted for `conditions` and logged."""
        if self._tls is None:
            return
        try:
            loaded = await self._threads.run(self._tls.look)
        except TlsError as error:
            if str(error) != self._problem:
                logger.error("the new TLS files are not used: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        if loaded is not None:
            self._tls.use(loaded)
            logger.info("new TLS files are used for new peer connections; the certificate ends %s", day(loaded.ends_s))

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for files that cannot be used and for a certificate that ends soon."""
        if self._problem:
            yield Condition(
                "certificate_refused",
                "warning",
                f"the TLS files were replaced, and cannot be used: {self._problem}. This node goes on with the former "
                "ones, and would not start with these",
            )
        if self._tls is None:
            return
        left_s = self._tls.ends_s - self._core.wall_ms() / 1000
        if left_s >= WARNING_DAYS * DAY_S:
            return
        ends = f"the certificate of this node, or the authority that issued it, ends {day(self._tls.ends_s)}"
        if left_s <= 0:
            yield Condition(
                "certificate_ends",
                "critical",
                f"{ends}: connections that break are not made again. Replace the files now; no restart is needed",
            )
        else:
            yield Condition(
                "certificate_ends",
                "warning",
                f"{ends}, in {left_s / DAY_S:.1f} days. Replace the files before; no restart is needed",
            )

    def _gauges(self) -> Iterator[Metric]:
        yield gauge(
            "keelmq_peer_certificate_expires_timestamp_seconds",
            "When the certificate for peer connections ends, or its authority, in seconds since 1970; 0 without TLS",
            self._tls.ends_s if self._tls is not None else 0,
        )

    async def _round(self) -> float:
        await self.look()
        return INTERVAL_S


def day(time_s: float) -> str:
    """Return the time in words, in UTC to the minute."""
    return f"on {datetime.fromtimestamp(time_s, UTC):%Y-%m-%d at %H:%M UTC}"
