"""The last backup that a client read from this node and stored: kept in the data directory, so that a restart does not
hide that the last one is old.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

import msgspec
from prometheus_client.core import GaugeMetricFamily

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderThreads
from cluster.metrics import gauge
from cluster.problems import Problem
from cluster.process.data_directory import BACKUP_FILE, write_durably
from cluster.process.exit_codes import StartupError

logger = logging.getLogger(__name__)


class StoredBackup(msgspec.Struct, frozen=True):
    """A backup of the state after the entry `index`, stored at `at_ms` by this node's wall clock. `cluster_uid` is the
    cluster's: after `keelmqd recover` the directory is of another one, of which there is no backup yet.
    """

    at_ms: int
    bytes: int
    index: int
    cluster_uid: str


class LastBackup:
    """Owns the file and a thread that writes it. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._path = Path(core.config.data_dir) / BACKUP_FILE
        self._stored = _read(self._path)
        self._threads = ReaderThreads("last-backup", 1)

    async def note(self, index: int, size_bytes: int) -> None:
        """Note that a backup was stored just now; durable on return. Where it cannot be written, which is logged, it
        counts until the node stops.
        """
        core = self._core
        stored = StoredBackup(core.wall_ms(), size_bytes, index, core.state.cluster_uid)
        self._stored = stored
        try:
            await self._threads.run(lambda: write_durably(self._path, msgspec.json.encode(stored)))
        except (StartupError, Problem) as error:
            logger.warning("the time of the last backup is forgotten at the next start: %s", error)

    def stop(self) -> None:
        self._threads.stop()

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        stored = self._stored
        if stored is not None and stored.cluster_uid != self._core.state.cluster_uid:
            stored = None
        age = GaugeMetricFamily(
            "keelmq_backup_age_seconds",
            "Time since the last backup read from this node was stored, by its wall clock, also before a restart; "
            "absent without one",
        )
        if stored is not None:
            age.add_metric([], max(self._core.wall_ms() - stored.at_ms, 0) / 1000)
        yield age
        yield gauge("keelmq_backup_bytes", "Size of that backup; 0 without one", stored.bytes if stored else 0)


def _read(path: Path) -> StoredBackup | None:
    """Return the content of the file; None without one, or if it cannot be used, which is logged: a node that serves is
    worth more than an age.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredBackup)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("the time of the last backup is not known: %s: %s", path, error)
        return None
