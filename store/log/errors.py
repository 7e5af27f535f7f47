"""Exceptions for the files under `data/log` and `data/hard_state`.

LogError
├── DiskError          an operation on a file failed (EIO, EACCES, ...)
│   └── DiskFull       no space or inode (ENOSPC, EDQUOT), or no file descriptor (EMFILE, ENFILE): nothing was changed,
│                      and the operation may be retried later
├── LogFailed          an earlier write or sync failed and poisoned the log: the process must stop
├── LogCorruption      synced bytes differ from the bytes that were written: the process must stop
├── HardStateCorruption  the file that holds term and vote is damaged: the process must stop
└── InstallDamaged     the decision to start with a snapshot is damaged: the process must stop

LogTruncated           an IndexError: the requested record was removed from the front of the log; nothing is wrong
"""

from __future__ import annotations

import errno

from store.descriptors import NO_DESCRIPTOR

_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, *NO_DESCRIPTOR)

REPAIR_ADVICE = (
    "Stop this node, copy its data directory aside, then remove the directory and start the node: the others replicate "
    "the log to it anew, and it votes again once it has caught up. Never edit or delete single files, and leave a "
    "majority of the nodes with intact disks at any time."
)


class LogError(Exception):
    """Base of all exceptions that the commit log and the hard state raise."""


class DiskError(LogError):
    """The operating system refused `operation` on `path`; `errno` says why."""

    def __init__(self, operation: str, path: str, error_number: int, reason: str) -> None:
        super().__init__(f"{operation} {path}: {reason}")
        self.operation = operation
        self.path = path
        self.errno = error_number


class DiskFull(DiskError):
    """No space, inode or file descriptor was left for `operation` on `path`. Nothing was changed; the same call
    succeeds once there is one again.
    """

    @property
    def is_for_want_of_descriptors(self) -> bool:
        return self.errno in NO_DESCRIPTOR


class LogFailed(LogError):
    """An earlier write or sync failed, so the content on disk is unknown. Nothing is retried: the process must stop.

    A failed fsync is never repeated: the kernel may have dropped the dirty pages and would report success.
    """


class LogCorruption(LogError):
    """Synced bytes are damaged or missing. `case` is a `RecoveryCase` value; `index` is None if the record is not
    known.
    """

    def __init__(self, case: str, segment: str, position: int, index: int | None, detail: str) -> None:
        where = f"segment {segment}, position {position}" + ("" if index is None else f", index {index}")
        super().__init__(f"commit log is corrupt ({case}): {detail} [{where}]. {REPAIR_ADVICE}")
        self.case = case
        self.segment = segment
        self.position = position
        self.index = index
        self.detail = detail


class UnsupportedLog(LogError):
    """The log holds an intact record that this version cannot read. Nothing was changed."""

    def __init__(self, segment: str, position: int, detail: str) -> None:
        super().__init__(
            f"segment {segment}, position {position}: {detail} is unknown to this version. "
            "Start the version that wrote it."
        )
        self.segment = segment
        self.position = position


class HardStateCorruption(LogError):
    """The file with term and vote is damaged: voting without it could elect two leaders in one term."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"hard state {path} is damaged: {detail}. {REPAIR_ADVICE}")
        self.path = path


class InstallDamaged(LogError):
    """The decision to start with a received snapshot is damaged: which state the node should start with is unknown."""

    def __init__(self, path: str, detail: str) -> None:
        super().__init__(f"decision {path} is damaged: {detail}. {REPAIR_ADVICE}")
        self.path = path


class LogTruncated(IndexError):
    """The requested record or position lies before `first_index`, the first record that is kept."""

    def __init__(self, what: str, first_index: int) -> None:
        super().__init__(f"{what} was removed: the log begins at index {first_index}")
        self.first_index = first_index


def disk_error(operation: str, path: str, error: OSError) -> DiskError:
    """Return the `DiskError` or `DiskFull` that stands for `error`."""
    number = error.errno or 0
    kind = DiskFull if number in _FULL_ERRNOS else DiskError
    return kind(operation, path, number, error.strerror or str(error))
