"""The base of a log: the last record before the first kept one, in a file of its own.

Segments are removed from the front only after the base behind them is durable, so a base never lies before what is
missing. A log without the file begins at the beginning.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from store.log.disk import Disk, create_file
from store.log.errors import LogCorruption
from store.log.record_chain import GENESIS, Link

FILE_NAME = "base"
TEMPORARY_NAME = FILE_NAME + ".tmp"
MAGIC = b"KMQB"
VERSION = 1
CHAINED_VERSION = 2
"""With the chain of the records at the base; written where that is known."""
DAMAGED_BASE = "damaged_base"
_BODY = struct.Struct("<4sBB2xQQQQ")
_LINK = struct.Struct("<QQI")
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
    link: Link | None = None
    """The chain of the records at the base, if it is known."""


def read_base(disk: Disk, directory: str) -> StoredBase:
    """Raises `LogCorruption` when the file is damaged: without it nobody knows whether segments are missing."""
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        return StoredBase(BEGINNING, link=GENESIS)
    data = disk.read_bytes(path)
    if len(data) not in (FILE_BYTES, FILE_BYTES + _LINK.size):
        raise _damaged(f"{len(data)} bytes instead of {FILE_BYTES}")
    magic, version, restarting, position, index, term, installed = _BODY.unpack_from(data)
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise _damaged("its CRC does not match")
    expected = VERSION if len(data) == FILE_BYTES else CHAINED_VERSION
    if (magic, version) != (MAGIC, expected) or restarting not in (0, 1):
        raise _damaged(f"unknown format {magic!r} version {version}")
    link = Link(*_LINK.unpack_from(data, _BODY.size)) if version == CHAINED_VERSION else None
    base = LogBase(position, index, term)
    return StoredBase(base, installed, bool(restarting), GENESIS if base == BEGINNING else link)


def write_base(disk: Disk, directory: str, stored: StoredBase) -> None:
    """Durable on return: written to a temporary file, synced, renamed, directory synced.

    With `restarting` this alone throws a log away that is not open: opening it does the rest. Raises `DiskFull` with
    nothing changed, `DiskError`: which base is on disk is then unknown.
    """
    base, installed, restarting, link = stored
    version = VERSION if link is None else CHAINED_VERSION
    body = _BODY.pack(MAGIC, version, restarting, base.position, base.index, base.term, installed)
    if link is not None:
        body += _LINK.pack(*link)
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
