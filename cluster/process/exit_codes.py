"""Exit codes of `keelmqd`. docs/configuration.md lists them for operators and their service managers."""

import enum
import errno
from typing import Final


class ExitCode(enum.IntEnum):
    """The exit codes: one for each kind of action that an operator must take."""

    STOPPED = 0
    BUG = 1
    """An unexpected error happened at the start; its trace is in the log."""
    BAD_CONFIG = 2
    ADDRESS_UNAVAILABLE = 3
    DATA_DIR_UNUSABLE = 4
    LOG_CORRUPT = 5
    FATAL = 6
    """The running node stopped because going on could have lost data. Starting again is safe; read the reason first."""
    WRONG_VERSION = 7
    """The cluster is at a feature level that this build does not know, at the start or while running. Nothing was
    changed; the message names the version to start."""
    DISK_REFUSES = 8
    """The disk takes or returns nothing at the start: it is full, read-only or failing, or the process may open no
    more files. Nothing was changed. Service managers start the node again, after a pause."""


DISK_ERRNOS: Final = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)
"""Errors of a disk or a machine that pass, if somebody makes room or mounts the disk anew. Not those of permissions."""


def code_of_disk(number: int | None) -> ExitCode:
    """Return the exit code for an error of the operating system on a file of the data directory."""
    return ExitCode.DISK_REFUSES if number in DISK_ERRNOS else ExitCode.DATA_DIR_UNUSABLE


class StartupError(Exception):
    """The node cannot start. The message is one line and says what to do."""

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code
