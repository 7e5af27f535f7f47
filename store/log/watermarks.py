"""The `watermarks` file: log indexes that this node knows to be committed, and those it knows other nodes acknowledged.

The log says which records this node holds; the watermarks say which records must not be missing, here or elsewhere.
They are lower bounds: written at once and synced from time to time. They survive the death of the process in full, and
a power loss as of the last sync. An unreadable part is ignored: fewer losses are noticed, no data is lost.

The file has two slots in different pages (docs/log-format.md): the commit watermarks, written with every commit, and
the marks of the other nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from store.log.disk import Disk, File
from store.log.errors import DiskError

FILE_NAME: Final = "watermarks"
MAGIC: Final = b"KMQW"
VERSION: Final = 1
_COMMITS: Final = struct.Struct("<4sB3xQQQQ")
_MARKS: Final = struct.Struct("<4sB3xI")
_MARKS_OFFSET: Final = 4096
FILE_BYTES: Final = 3 * 4096
MARKS_BYTES_MAX: Final = FILE_BYTES - _MARKS_OFFSET - _MARKS.size - 4


class PeerMark(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The data that another node was known to have on its disk, by its own word. The mark concerns that disk alone: a
    node that returns with another incarnation starts a new mark.
    """

    incarnation: str
    term: int = 0
    """The latest term in which the node sent a message."""
    acked_term: int = 0
    acked_index: int = 0
    """The node acknowledged to the leader of `acked_term` to hold all records up to this index; 0 before it
    acknowledged any.
    """
    superseded: tuple[str, ...] = ()
    """Incarnations that the node gave up for later ones, the latest at the end."""


class Watermarks:
    """The open `watermarks` file. After an error (DiskError) the node must stop."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._marks_written = b""
        self._is_dirty = False
        self.sync_wanted = False
        """True asks for a sync after the next one of the log."""
        self.committed_index, self.known_term, self.known_index, self.cut_term = _read_commits(file)
        self.marks = _read_marks(file)
        """The marks as they were when the file was opened."""

    @classmethod
    def open(cls, disk: Disk, directory: str) -> Watermarks:
        """Open or create the file. Its blocks are allocated, so that later writes cannot run out of space.

        The file's name is durable on return. Raises DiskFull and DiskError.
        """
        file = disk.open(f"{directory}/{FILE_NAME}", create=True)
        size = file.size()
        if size < FILE_BYTES:
            file.allocate(size, FILE_BYTES - size)
            file.fdatasync()
            disk.sync_directory(directory)
        return cls(file)

    def note_commit(self, committed_index: int, known_term: int, known_index: int) -> None:
        """Notes that all records up to `committed_index` are committed and synced in this node's log, and that the
        entry (known_term, known_index), the last one this node was told of, is committed somewhere. Not durable on
        return.
        """
        if (committed_index, known_term, known_index) != (self.committed_index, self.known_term, self.known_index):
            self.committed_index, self.known_term, self.known_index = committed_index, known_term, known_index
            self._write_commits()

    def note_cut(self, term: int) -> None:
        """Notes, durably on return, that the log is about to be cut in this term: records acknowledged in an earlier
        term may be missing. On a DiskError nothing is noted, and the next call tries again.
        """
        if term == self.cut_term:
            return
        former, self.cut_term = self.cut_term, term
        try:
            self._write_commits()
            self._file.fdatasync()
        except DiskError:
            self.cut_term = former
            raise

    def note_marks(self, marks: Mapping[int, PeerMark]) -> None:
        """Write the marks of the other nodes, by node id. Not durable on return. Raises ValueError beyond
        MARKS_BYTES_MAX.
        """
        body = msgspec.msgpack.encode(sorted(marks.items()))
        if body == self._marks_written:
            return
        if len(body) > MARKS_BYTES_MAX:
            raise ValueError(f"{len(marks)} marks take {len(body)} bytes, at most {MARKS_BYTES_MAX} have room")
        head = _MARKS.pack(MAGIC, VERSION, len(body))
        self._file.pwrite(head + body + crc32c(head + body).to_bytes(4, "little"), _MARKS_OFFSET)
        self._marks_written = body
        self._is_dirty = True

    @property
    def is_dirty(self) -> bool:
        """True when anything was written since the last sync."""
        return self._is_dirty

    def sync(self) -> None:
        """Make everything written before the call durable. No other sync may be under way."""
        file = self.begin_sync()
        if file is not None:
            file.fdatasync()

    def begin_sync(self) -> File | None:
        """Return the file whose `fdatasync` makes everything written so far durable; None when that is durable."""
        self.sync_wanted = False
        if not self._is_dirty:
            return None
        self._is_dirty = False  # before the sync, which may not cover writes from here on
        return self._file

    def close(self) -> None:
        """Close the file without syncing it. No method may be called afterwards."""
        self._file.close()

    def _write_commits(self) -> None:
        body = _COMMITS.pack(MAGIC, VERSION, self.committed_index, self.known_term, self.known_index, self.cut_term)
        self._file.pwrite(body + crc32c(body).to_bytes(4, "little"), 0)
        self._is_dirty = True


def _read_commits(file: File) -> tuple[int, int, int, int]:
    data = file.pread(_COMMITS.size + 4, 0)
    if len(data) < _COMMITS.size + 4 or crc32c(data[:-4]) != int.from_bytes(data[-4:], "little"):
        return 0, 0, 0, 0
    magic, version, committed_index, known_term, known_index, cut_term = _COMMITS.unpack_from(data)
    return (
        (committed_index, known_term, known_index, cut_term) if (magic, version) == (MAGIC, VERSION) else (0, 0, 0, 0)
    )


def _read_marks(file: File) -> dict[int, PeerMark]:
    head = file.pread(_MARKS.size, _MARKS_OFFSET)
    if len(head) < _MARKS.size:
        return {}
    magic, version, length = _MARKS.unpack(head)
    if (magic, version) != (MAGIC, VERSION) or length > MARKS_BYTES_MAX:
        return {}
    data = file.pread(length + 4, _MARKS_OFFSET + _MARKS.size)
    if len(data) < length + 4 or crc32c(head + data[:-4]) != int.from_bytes(data[-4:], "little"):
        return {}
    try:
        return dict(msgspec.msgpack.decode(data[:-4], type=list[tuple[int, PeerMark]]))
    except msgspec.DecodeError:
        return {}
