"""The store of one node: index, commit log, hard state and watermarks, opened and closed together."""

import contextlib
import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from cluster.core.long_poll import AppliedWaiters, WakingStateMachine
from cluster.metrics import MeasuredDisk, MeasuredSync, Metrics
from cluster.process.config import NodeConfig
from raft.storage import Storage
from store.descriptors import SPARES, SpareDescriptors
from store.errors import IndexDamaged, IndexOutdated, IndexUnreadable
from store.index.index import Index
from store.log.base import BEGINNING, read_base
from store.log.commit_log import CommitLog
from store.log.differs import DiffersMark
from store.log.disk import BackgroundSync, Disk
from store.log.errors import REPAIR_ADVICE, DiskError, DiskFull
from store.log.hard_state import HardState
from store.log.watermarks import Watermarks
from store.snapshots.install import IndexDirectories, SnapshotStore, at_once, finish_install

logger = logging.getLogger(__name__)

REBUILD_ADVICE: Final = (
    "If a later version wrote it, start that version. Otherwise keep this node stopped, move the directory aside "
    "and start the node. The log is complete, so the index is rebuilt from it."
)
LOG_BEGINS_LATE: Final = "The log begins late, so the index cannot be rebuilt from it."


class NodeStore:
    """Owns the files of the store in a data directory until `close`. The directory stays its owner's."""

    def __init__(self, config: NodeConfig, path: Path, metrics: Metrics) -> None:
        """Finish a snapshot that was received, and open everything. Raises DiskError, and LogError or IndexDamaged,
        which say what to do, with nothing left open.
        """
        self.spares = SpareDescriptors(SPARES)
        try:
            self._open(config, path, metrics)
        except BaseException:
            self.spares.close()
            raise

    def _open(self, config: NodeConfig, path: Path, metrics: Metrics) -> None:
        self.disk = MeasuredDisk(metrics, self.spares)
        disk = self.disk
        self.waiters = AppliedWaiters()
        directory = str(path)
        self._places = places = IndexDirectories(directory, begin_in_thread)
        installed = finish_install(disk, directory, places)
        if installed is not None:
            metrics.snapshot_received(installed.received_bytes, installed.received_ms / 1000)
            logger.info("starting with the state after entry %d, received as a snapshot", installed.index)
        with _damage_is_told(path, disk):
            self._index = _open_index(path, disk)
            self.state = WakingStateMachine(self._index, self.waiters)
        try:
            self._watermarks = Watermarks.open(disk, directory)
            committed_index = self._watermarks.committed_index
            self.log, hard_state = _open_log(config, path, disk, self.state.applied_index, committed_index)
        except BaseException:
            self._index.close()
            raise
        logger.info("commit log opened: %s", self.log.recovery)
        self.storage = Storage(
            self.log,
            hard_state,
            self.state,
            self._watermarks,
            SnapshotStore(disk, directory, self._index, places),
            DiffersMark(disk, directory),
            partial(_background_sync, config, metrics, disk, self.log),
        )

    def on_unreadable_index(self, on_fatal: Callable[[str], None]) -> None:
        """Have `on_fatal` called with reason and advice when rows of the index cannot be read, whoever reads them."""

        def tell(reason: str) -> None:
            advice = _advice(is_complete=self.log.base == BEGINNING)
            on_fatal(f"{reason}. Start this node again. If it ends for this reason once more: {advice}")

        self._index.rows.on_unreadable = tell

    def close(self) -> None:
        """Sync the log and the watermarks, flush the index, and close all files. Raises LogFailed when the log cannot
        be synced.
        """
        self.log.close()
        self._close_index()
        self._places.close()
        self._watermarks.sync()
        self._watermarks.close()
        self.spares.close()

    def _close_index(self) -> None:
        try:
            self._index.close()
        except DiskError as error:
            logger.warning("the index was not brought to disk: %s; the log has the missing entries", error)


def begin_in_thread(work: Callable[[], None]) -> Callable[[], None]:
    """Begin the work in a thread of its own; return a function that waits for its end. Do it at once if no thread can
    be started.
    """
    thread = threading.Thread(target=work, name="discard-snapshot")
    try:
        thread.start()
    except RuntimeError:
        return at_once(work)
    return thread.join


def _background_sync(config: NodeConfig, metrics: Metrics, disk: Disk, log: CommitLog) -> BackgroundSync | None:
    """Return the object that syncs the log in the background, proven on a file of the log; None if a thread does.
    Raises DiskError when that sync fails.
    """
    if config.log_sync == "thread":
        logger.info("the log is synced by a thread, as log_sync says")
        return None
    proof = disk.open(log.active_path)
    try:
        background = MeasuredSync.proven_on(proof, metrics)
    except OSError as error:
        logger.info("the log is synced by a thread: the kernel cannot do it in the background (%s)", error)
        return None
    finally:
        proof.close()
    logger.info("the log is synced by the kernel in the background")
    return background


def _open_index(path: Path, disk: Disk) -> Index:
    """Open the index. An index of an earlier version is removed and rebuilt from the log if the log is complete.

    Raises IndexDamaged when that is impossible; its text says what to do, which depends on the log.
    """
    directory = path / "index"
    try:
        return Index.open(str(directory))
    except IndexDamaged as damaged:
        raise IndexDamaged(f"{damaged}. {_advice(is_complete=_log_is_complete(path, disk))}") from damaged
    except IndexOutdated as outdated:
        if not _log_is_complete(path, disk):
            raise IndexDamaged(f"{outdated}. {LOG_BEGINS_LATE} {REPAIR_ADVICE}") from None
        logger.warning("%s: rebuilding the index from the log, which takes a while", outdated)
        shutil.rmtree(directory)
        return Index.open(str(directory))


@contextlib.contextmanager
def _damage_is_told(path: Path, disk: Disk) -> Iterator[None]:
    """Turn IndexUnreadable into IndexDamaged with the advice, or into DiskFull when only a descriptor is missing."""
    try:
        yield
    except IndexUnreadable as error:
        if error.lacks_descriptor:
            raise DiskFull("read", str(path / "index"), errno.EMFILE, str(error)) from error
        raise IndexDamaged(f"{error}. {_advice(is_complete=_log_is_complete(path, disk))}") from error


def _advice(*, is_complete: bool) -> str:
    return REBUILD_ADVICE if is_complete else f"{LOG_BEGINS_LATE} {REPAIR_ADVICE}"


def _log_is_complete(path: Path, disk: Disk) -> bool:
    """Return whether the log begins with the first entry, so that it can rebuild the index.

    Raises LogCorruption when the beginning cannot be read: this node has to begin anew then, too.
    """
    log_directory = path / "log"
    return not log_directory.is_dir() or read_base(disk, str(log_directory)).base == BEGINNING


def _open_log(
    config: NodeConfig, path: Path, disk: Disk, applied_index: int, committed_index: int
) -> tuple[CommitLog, HardState]:
    """Open the log and the hard state, which belong together. Raises LogCorruption when only the hard state is left."""
    hard_state = HardState(disk, str(path / "hard_state"))
    log = CommitLog.open(
        disk,
        str(path / "log"),
        segment_bytes=config.segment_bytes,
        cache_bytes=config.cache_bytes,
        applied_index=applied_index,
        committed_index=committed_index,
        # The log gets its first record before the hard state is ever written. With a hard state but no record the log
        # was lost, and this node would vote as if it still held the entries that it has acknowledged.
        may_be_new=hard_state.term == 0 and not hard_state.voter,
    )
    return log, hard_state
