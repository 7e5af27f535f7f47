"""The `watermarks` file: what this node knows to be committed, and what it knows the others to have acknowledged.

A log says what its node holds; the watermarks say what must not be missing, here or elsewhere. They are lower bounds:
written at once and synced now and then, so they survive the death of the process whole, and a power loss as of the last
sync. A part that cannot be read counts for nothing: less is noticed, nothing is lost.

Two slots in different pages (docs/log-format.md): the commit watermarks, written with every commit, and the marks of
the other nodes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from store.log.disk import Disk, File

FILE_NAME: Final = "watermarks"
MAGIC: Final = b"KMQW"
VERSION: Final = 1
_COMMITS: Final = struct.Struct("<4sB3xQQQQ")
_MARKS: Final = struct.Struct("<4sB3xI")
_MARKS_OFFSET: Final = 4096
FILE_BYTES: Final = 3 * 4096
MARKS_BYTES_MAX: Final = FILE_BYTES - _MARKS_OFFSET - _MARKS.size - 4


class PeerMark(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """What another node was known to have on its disk, by its own word. It concerns that disk alone: a node that comes
    with another incarnation begins anew.
    """

    incarnation: str
    term: int = 0
    """The latest term in which it spoke."""
    acked_term: int = 0
    acked_index: int = 0
    """It acknowledged to the leader of `acked_term` to hold everything up to here; 0 before it did."""
    superseded: tuple[str, ...] = ()
    """Incarnations that it gave up for later ones; the latest last."""


class Watermarks:
    """The open file. Used from the loop, but for `sync`. After an error (DiskError) the node must stop."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._marks_written = b""
        self._is_dirty = False
        self.sync_wanted = False
        """Whoever syncs the log next is asked to call `sync` as well."""
        self.committed_index, self.known_term, self.known_index, self.cut_term = _read_commits(file)
        self.marks = _read_marks(file)
        """As they were when the file was opened."""

    @classmethod
    def open(cls, disk: Disk, directory: str) -> Watermarks:
        """Opens or creates the file; its blocks are allocated, so that later writes cannot run out of space.

        Its name is durable on return. Raises DiskFull and DiskError.
        """
        file = disk.open(f"{directory}/{FILE_NAME}", create=True)
        size = file.size()
        if size < FILE_BYTES:
            file.allocate(size, FILE_BYTES - size)
            file.fdatasync()
            disk.sync_directory(directory)
        return cls(file)

    def note_commit(self, committed_index: int, known_term: int, known_index: int) -> None:
        """Everything up to `committed_index` in this node's log is committed and synced here. Somewhere the entry
        (known_term, known_index) is committed, the last one this node was told of. Not durable on return.
        """
        if (committed_index, known_term, known_index) != (self.committed_index, self.known_term, self.known_index):
            self.committed_index, self.known_term, self.known_index = committed_index, known_term, known_index
            self._write_commits()

    def note_cut(self, term: int) -> None:
        """In this term the log is about to be cut: what was acknowledged in an earlier one may be missing. Durable on
        return.
        """
        if term != self.cut_term:
            self.cut_term = term
            self._write_commits()
            self._file.fdatasync()

    def note_marks(self, marks: Mapping[int, PeerMark]) -> None:
        """The marks of the other nodes, by node id. Not durable on return. Raises ValueError beyond MARKS_BYTES_MAX."""
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
        """Whether anything was written since the last sync."""
        return self._is_dirty

    def sync(self) -> None:
        """From the sync thread, or while none runs: what was written before the call is durable on return."""
        self.sync_wanted = False
        if self._is_dirty:
            self._is_dirty = False  # before the sync: what is written from here on may not be covered
            self._file.fdatasync()

    def close(self) -> None:
        """Nothing may be called afterwards. What was written since the last sync is not made durable."""
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
