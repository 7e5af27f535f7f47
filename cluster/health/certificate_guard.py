"""Takes over the TLS files of peers and clients when they are replaced, and warns before a certificate ends.

The files are looked at every few seconds, and read in a thread. Files that nobody would accept are not used: the node
keeps its present files, and raises an alarm.
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.metrics import gauge
from raft.peers.pem_files import TlsError, TlsFiles

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0
WARNING_DAYS: Final = 14
"""A certificate that ends within this number of days is an alarm."""
DAY_S: Final = 86_400


class Kind(NamedTuple):
    """Purpose of a certificate, as alarms, log lines and metrics call it."""

    subject: str
    """Subject of its alarms."""
    words: str
    lost: str
    """Consequence of an ended certificate, in words."""
    metric: str


PEERS: Final = Kind("", "peer connections", "connections that break are not made again", "keelmq_peer_certificate")
CLIENTS: Final = Kind("clients", "clients", "clients refuse to connect to this node", "keelmq_http_certificate")


class CertificateGuard:
    """Owns the looks at the TLS files, for peers and for clients. Use on the event loop only. Without TLS it does
    nothing.
    """

    def __init__(self, core: Core, http_tls: TlsFiles | None, threads: ReaderPool) -> None:
        """Create the guard, which owns `threads` from here on."""
        self._core = core
        self._of_kind: dict[Kind, TlsFiles | None] = {PEERS: core.raft.tls, CLIENTS: http_tls}
        self._problems: dict[Kind, str] = {}
        self._threads = threads
        self._task = core.background.task("certificates", "look at the TLS files", self._round)
        core.metrics.add_gauges(self._gauges)

    def start(self) -> None:
        if any(self._of_kind.values()):
            self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()
        self._threads.stop()

    async def look(self) -> None:
        """Use the files for new connections if they were replaced. An error is noted for `conditions` and logged."""
        for kind, files in self._of_kind.items():
            if files is not None:
                await self._look(kind, files)

    def conditions(self) -> Iterator[Condition]:
        """Yield alarms for files that cannot be used and for certificates that end soon."""
        for kind, files in self._of_kind.items():
            if files is not None:
                yield from self._conditions(kind, files)

    async def _look(self, kind: Kind, files: TlsFiles) -> None:
        try:
            loaded = await self._threads.run(files.look)
        except TlsError as error:
            if str(error) != self._problems.get(kind):
                logger.error("the new TLS files are not used: %s", error)
            self._problems[kind] = str(error)
            return
        self._problems.pop(kind, None)
        if loaded is not None:
            files.use(loaded)
            ends = day(loaded.ends_s)
            logger.info("new TLS files are used for new connections of %s; the certificate ends %s", kind.words, ends)

    def _conditions(self, kind: Kind, files: TlsFiles) -> Iterator[Condition]:
        problem = self._problems.get(kind)
        if problem is not None:
            yield Condition(
                "certificate_refused",
                "warning",
                f"the TLS files were replaced, and cannot be used: {problem}. This node goes on with the former ones, "
                "and would not start with these",
                kind.subject,
            )
        left_s = files.ends_s - self._core.wall_ms() / 1000
        if left_s >= WARNING_DAYS * DAY_S:
            return
        ends = (
            f"the certificate of this node for {kind.words}, or the authority that issued it, ends {day(files.ends_s)}"
        )
        if left_s <= 0:
            yield Condition(
                "certificate_ends",
                "critical",
                f"{ends}: {kind.lost}. Replace the files now; no restart is needed",
                kind.subject,
            )
        else:
            yield Condition(
                "certificate_ends",
                "warning",
                f"{ends}, in {left_s / DAY_S:.1f} days. Replace the files before; no restart is needed",
                kind.subject,
            )

    def _gauges(self) -> Iterator[Metric]:
        for kind, files in self._of_kind.items():
            yield gauge(
                f"{kind.metric}_expires_timestamp_seconds",
                f"When the certificate for {kind.words} ends, or its authority, in seconds since 1970; 0 without TLS",
                files.ends_s if files is not None else 0,
            )

    async def _round(self) -> float:
        await self.look()
        return INTERVAL_S


def day(time_s: float) -> str:
    """Return the time in words, in UTC to the minute."""
    return f"on {datetime.fromtimestamp(time_s, UTC):%Y-%m-%d at %H:%M UTC}"
