"""The base of a log: the last record before the first kept one, stored in a file of its own.

Segments are removed from the front only after the new base is durable, so records that are missing always lie before
the base. A log without the file begins at index 1.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from store.log.disk import Disk
from store.log.errors import LogCorruption
from store.log.record_chain import GENESIS, Link

FILE_NAME = "base"
TEMPORARY_NAME = FILE_NAME + ".tmp"
MAGIC = b"KMQB"
VERSION = 1
CHAINED_VERSION = 2
"""Format version of a file that also holds the record chain at the base; written when that chain is known."""
DAMAGED_BASE = "damaged_base"
_BODY = struct.Struct("<4sBB2xQQQQ")
_LINK = struct.Struct("<QQI")
FILE_BYTES = _BODY.size + 4


class LogBase(NamedTuple):
    """The last record before the first kept one: its index, its term, and the position where it ends. The first kept
    record begins, or will begin, at that position.
    """

    position: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int


BEGINNING = LogBase(0, 0, 0)


class StoredBase(NamedTuple):
    """The content of the `base` file."""

    base: LogBase
    installed_index: int = 0
    """The state up to this index came from a snapshot: that it is applied does not prove that this log once held the
    entries.
    """
    restarting: bool = False
    """True while the log is being restarted: every segment on disk belongs to the old log."""
    link: Link | None = None
    """The record chain at the base; None if the chain is not known."""


def read_base(disk: Disk, directory: str) -> StoredBase:
    """Return the stored base; a missing file stands for the beginning of the log.

    Raises `LogCorruption` when the file is damaged: without the base nobody knows whether segments are missing.
    """
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        return StoredBase(BEGINNING, link=GENESIS)
    data = disk.read_bytes(path)
    if len(data) not in (FILE_BYTES, FILE_BYTES + _LINK.size):
        raise _damaged(f"the file has {len(data)} bytes instead of {FILE_BYTES}")
    magic, version, restarting, position, index, term, installed = _BODY.unpack_from(data)
    if crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise _damaged("its CRC does not match")
    expected = VERSION if len(data) == FILE_BYTES else CHAINED_VERSION
    if (magic, version) != (MAGIC, expected) or restarting not in (0, 1):
        raise _damaged(f"its format {magic!r} version {version} is unknown")
    link = Link(*_LINK.unpack_from(data, _BODY.size)) if version == CHAINED_VERSION else None
    base = LogBase(position, index, term)
    return StoredBase(base, installed, bool(restarting), GENESIS if base == BEGINNING else link)


def write_base(disk: Disk, directory: str, stored: StoredBase) -> None:
    """Store the base, durably on return: write a temporary file, sync it, rename it, sync the directory.

    With `restarting`, this call alone discards a log that is not open; the next opening removes its segments. Raises
    `DiskFull` with nothing changed; `DiskError`, after which the base on disk is unknown.
    """
    base, installed, restarting, link = stored
    version = VERSION if link is None else CHAINED_VERSION
    body = _BODY.pack(MAGIC, version, restarting, base.position, base.index, base.term, installed)
    if link is not None:
        body += _LINK.pack(*link)
    temporary = f"{directory}/{TEMPORARY_NAME}"
    file = disk.open(temporary, create=True)
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
