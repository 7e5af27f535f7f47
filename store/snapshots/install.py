"""Installing a snapshot: from a complete copy beside the index to a node that starts with it.

    index.incoming/   the copy while it is received, and until it replaces the index
    install           the decision: once it is durable, the node starts with the copy and an empty log, nothing else

`SnapshotStore.decide` writes the decision when the copy is complete and durable; `finish_install` carries it out before
index and log are opened. The installation may be interrupted and repeated at every step, since nothing is opened before
it is done. Without a decision the received data is discarded.
"""

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec
from crc32c import crc32c

from store.index.index import Index
from store.log.base import LogBase, StoredBase, write_base
from store.log.disk import Disk, require_descriptors, require_free
from store.log.errors import DiskError, DiskFull, InstallDamaged, disk_error
from store.log.segment_files import DISK_RESERVE_BYTES
from store.snapshots.snapshot import PAIR_BYTES_MAX, SnapshotReader

logger = logging.getLogger(__name__)

DECISION_FILE: Final = "install"
_MAGIC: Final = b"KMQN"
_VERSION: Final = 1
_CRC_BYTES: Final = 4


class Decision(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """The state that the node starts with, and the record behind which its log continues."""

    base: LogBase
    index: int
    state_hash: str
    received_bytes: int
    received_ms: int
    version: int = _VERSION


class IndexPlaces(Protocol):
    """The places of a node's index and of the incoming index that is to replace it."""

    def open_incoming(self) -> Index:
        """Create and return a new, empty incoming index; an earlier one is removed. Raises IndexDamaged, and DiskError,
        also while one is being discarded.
        """
        ...

    def discard_incoming(self, incoming: Index) -> None:
        """Close and remove the incoming index, without waiting for the disk. What cannot be removed is logged, and
        removed by the next one or by the next start.
        """
        ...

    def remove_incoming(self) -> None:
        """Remove the incoming index, which must be closed. Does nothing if there is none. Raises DiskError."""
        ...

    def adopt_incoming(self) -> None:
        """Replace the index by the incoming one, durably on return; does nothing if there is none. Both must be closed.

        A crash leaves an incoming index that is whole, or one that has replaced the index.
        """
        ...


Begin = Callable[[Callable[[], None]], Callable[[], object]]
"""Begins work that may take long, and returns a function that waits for its end."""


def at_once(work: Callable[[], None]) -> Callable[[], None]:
    """Do the work before returning: a `Begin` for those who may wait."""
    work()
    return lambda: None


class IndexDirectories:
    """The places `<data>/index` and `<data>/index.incoming`. An incoming index is discarded by `begin`."""

    def __init__(self, data_directory: str, begin: Begin = at_once) -> None:
        self._data = data_directory
        self._index = Path(data_directory, "index")
        self._incoming = Path(data_directory, "index.incoming")
        self._begin = begin
        self._is_discarding = False
        self._wait: Callable[[], object] = lambda: None

    def open_incoming(self) -> Index:
        self.remove_incoming()
        return Index.open(str(self._incoming))

    def discard_incoming(self, incoming: Index) -> None:
        # Closing waits until RocksDB has written what is about to be removed, on a disk that may hang.
        self._is_discarding = True
        self._wait = self._begin(lambda: self._discard(incoming))

    def close(self) -> None:
        """Wait until an index that was discarded is removed."""
        self._wait()

    def _discard(self, incoming: Index) -> None:
        try:
            try:
                incoming.close()
            except DiskError as error:
                logger.info("the received part of a snapshot could not be flushed, and is removed: %s", error)
            self._remove(self._incoming)
        except Exception as error:
            logger.warning("the received part of a snapshot stays until the next one or a start: %s", error)
        finally:
            self._is_discarding = False

    def remove_incoming(self) -> None:
        if self._is_discarding:
            raise DiskError("remove", str(self._incoming), errno.EBUSY, "another one is still being removed")
        self._remove(self._incoming)

    def adopt_incoming(self) -> None:
        if not self._incoming.exists():
            return
        self._remove(self._index)
        try:
            self._incoming.rename(self._index)
            _sync_directory(self._data)
        except OSError as error:
            raise disk_error("rename", str(self._incoming), error) from error

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error("remove", str(path), error) from error


class SnapshotStore:
    """The snapshots of one running node: those of its own state, and the one it is receiving. Loop-only."""

    def __init__(self, disk: Disk, data_directory: str, index: Index, places: IndexPlaces) -> None:
        self._disk = disk
        self._data = data_directory
        self._index = index
        self._places = places

    def read(self, base: LogBase) -> SnapshotReader:
        """Return a reader of the state as it is now; `base` is the base of the log."""
        return SnapshotReader(self._index, base)

    def open_incoming(self) -> Index:
        """Return an empty incoming index. Raises IndexDamaged, DiskError; DiskFull when the free space is needed to
        keep the node alive.
        """
        self._places.remove_incoming()  # the remains of an earlier transfer take up space
        self.require_room()
        return self._places.open_incoming()

    def require_room(self) -> None:
        """Raise DiskFull when the free space is needed to continue with the current state and log."""
        require_free(self._disk, self._data, PAIR_BYTES_MAX, DISK_RESERVE_BYTES)

    def discard_incoming(self, incoming: Index) -> None:
        """Close and remove the incoming index in the background; none is opened until that is done."""
        self._places.discard_incoming(incoming)

    def decide(self, incoming: Index, decision: Decision) -> None:
        """Decide, durably on return, that the node starts with the received state and no other.

        `incoming` must be complete; it is closed. Components that run on the old state may promise nothing any more:
        the node has to restart. Raises DiskFull with nothing decided, and nothing of `incoming` left; DiskError:
        whether the decision is on disk is then unknown, and the process has to stop.
        """
        try:
            incoming.close()
            require_descriptors(self._disk, self._data, 2)
            self._write(decision)
        except DiskFull:
            self._places.remove_incoming()
            raise
        try:
            self._disk.sync_directory(self._data)
        except DiskFull as error:  # the next start may find the decision all the same
            raise DiskError(error.operation, error.path, error.errno, "no space left") from error

    def _write(self, decision: Decision) -> None:
        """Write the decision under its name, not yet durably. Raises DiskFull before the file has its name."""
        body = _MAGIC + msgspec.msgpack.encode(decision)
        path = f"{self._data}/{DECISION_FILE}"
        file = self._disk.open(path + ".tmp", create=True)
        try:
            file.truncate(0)
            file.pwrite(body + crc32c(body).to_bytes(_CRC_BYTES, "little"), 0)
            file.fdatasync()
        finally:
            file.close()
        self._disk.rename(path + ".tmp", path)


def finish_install(disk: Disk, data_directory: str, places: IndexPlaces) -> Decision | None:
    """Carry out a decision, as the first step of a starting node, before index and log are opened. On return an
    incomplete snapshot is removed, and a decided one is durably in its place. Returns the decision; None if there was
    none.

    Raises InstallDamaged when the decision cannot be read; DiskError, after which the next start continues without
    loss.
    """
    decision = read_decision(disk, data_directory)
    if decision is None:
        places.remove_incoming()
        return None
    disk.sync_directory(data_directory)  # a decision that is acted upon is durable
    log_directory = f"{data_directory}/log"
    disk.make_directory(log_directory)
    write_base(disk, log_directory, StoredBase(decision.base, decision.index, restarting=True))
    places.adopt_incoming()
    disk.unlink(f"{data_directory}/{DECISION_FILE}")
    disk.sync_directory(data_directory)
    return decision


def read_decision(disk: Disk, data_directory: str) -> Decision | None:
    """Return the decision to start with a snapshot; None without one. Raises InstallDamaged when the decision is
    damaged.
    """
    path = f"{data_directory}/{DECISION_FILE}"
    return _decode(path, disk.read_bytes(path)) if disk.exists(path) else None


def _decode(path: str, data: bytes) -> Decision:
    body, crc = data[:-_CRC_BYTES], int.from_bytes(data[-_CRC_BYTES:], "little")
    if len(data) < len(_MAGIC) + _CRC_BYTES or body[: len(_MAGIC)] != _MAGIC or crc32c(body) != crc:
        raise InstallDamaged(path, "its CRC does not match")
    try:
        decision = msgspec.msgpack.decode(body[len(_MAGIC) :], type=Decision)
    except ValueError as error:
        raise InstallDamaged(path, str(error)) from error
    if decision.version != _VERSION:
        raise InstallDamaged(path, f"its version {decision.version} is unknown")
    return decision


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
