"""The base of a log: the last record before the first kept one, in a file of its own.

Segments are removed from the front only after the base behind them is durable, so a base never lies before what is
missing. A log without the file begins at the beginning.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from store.disk import Disk, create_file
from store.log_errors import LogCorruption

FILE_NAME = "base"
TEMPORARY_NAME = FILE_NAME + ".tmp"
MAGIC = b"KMQB"
VERSION = 1
DAMAGED_BASE = "damaged_base"
_BODY = struct.Struct("<4sBB2xQQQQ")
FILE_BYTES = _BODY.size + 4


class LogBase(NamedTuple):
    """The record before the first kept one: where it ends, which is where the first kept one begins or will begin, its
    index and its term.
    """

    position: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int


BEGINNING = LogBase(0, 0, 0)


class StoredBase(NamedTuple):
    """What the file says."""

    base: LogBase
    installed_index: int = 0
    """The state up to here was not made of this log: that it is applied does not prove that the log once held it."""
    restarting: bool = False
    """The log is being made anew: every segment there is belongs to the old one."""


def read_base(disk: Disk, directory: str) -> StoredBase:
    """Raises `LogCorruption` when the file is damaged: without it nobody knows whether segments are missing."""
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        return StoredBase(BEGINNING)
    data = disk.read_bytes(path)
    if len(data) != FILE_BYTES:
        raise _damaged(f"{len(data)} bytes instead of {FILE_BYTES}")
    magic, version, restarting, position, index, term, installed = _BODY.unpack_from(data)
    if crc32c(data[: _BODY.size]) != int.from_bytes(data[_BODY.size :], "little"):
        raise _damaged("its CRC does not match")
    if (magic, version) != (MAGIC, VERSION) or restarting not in (0, 1):
        raise _damaged(f"unknown format {magic!r} version {version}")
    return StoredBase(LogBase(position, index, term), installed, bool(restarting))


def write_base(disk: Disk, directory: str, stored: StoredBase) -> None:
    """Durable on return: written to a temporary file, synced, renamed, directory synced.

    With `restarting` this alone throws a log away that is not open: opening it does the rest. Raises `DiskFull` with
    nothing changed, `DiskError`: which base is on disk is then unknown.
    """
    base, installed, restarting = stored
    body = _BODY.pack(MAGIC, VERSION, restarting, base.position, base.index, base.term, installed)
    temporary = f"{directory}/{TEMPORARY_NAME}"
    file = create_file(disk, temporary)
    try:
        file.truncate(0)
        file.pwrite(body + crc32c(body).to_bytes(4, "little"), 0)
        file.fdatasync()
    finally:
        file.close()
    disk.rename(temporary, f"{directory}/{FILE_NAME}")
    disk.sync_directory(directory)


def _damaged(detail: str) -> LogCorruption:
    return LogCorruption(DAMAGED_BASE, FILE_NAME, 0, None, detail)
