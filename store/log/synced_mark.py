"""The `synced` file: a lower bound of the durable log position, by which recovery tells damage from a torn tail.

Two slots in different sectors:

* the *floor* is written and synced at open, at rollover and before a truncation cuts anything;
* the *progress* is written after each sync and not synced.

Both carry an epoch, which every truncation raises. Progress whose epoch differs from the floor's is ignored: it comes
from a sync that ran while the log was truncated. An unreadable floor makes the mark 0: less damage is detected, no data
is lost.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from store.log.disk import Disk, File

FILE_NAME = "synced"
MAGIC = b"KMQS"
_BODY = struct.Struct("<4sB3xQQ")
_SLOT_BYTES = _BODY.size + 4
_FLOOR_OFFSET = 0
_PROGRESS_OFFSET = 4096
FILE_BYTES = 2 * 4096
VERSION = 1


def _encode(epoch: int, position: int) -> bytes:
    body = _BODY.pack(MAGIC, VERSION, epoch, position)
    return body + crc32c(body).to_bytes(4, "little")


def _decode(data: bytes) -> tuple[int, int] | None:
    if len(data) < _SLOT_BYTES:
        return None
    magic, version, epoch, position = _BODY.unpack_from(data)
    if (magic, version) != (MAGIC, VERSION) or crc32c(data[: _BODY.size]) != int.from_bytes(
        data[_BODY.size :], "little"
    ):
        return None
    return epoch, position


class SyncedMark:
    """The open `synced` file of a log directory. `epoch` and `position` are the values it held when it was opened."""

    def __init__(self, file: File) -> None:
        self._file = file
        floor = _decode(file.pread(_SLOT_BYTES, _FLOOR_OFFSET))
        progress = _decode(file.pread(_SLOT_BYTES, _PROGRESS_OFFSET))
        self.epoch = max(floor[0] if floor else 0, progress[0] if progress else 0)
        self.position = floor[1] if floor else 0
        if floor and progress and progress[0] == floor[0]:
            self.position = max(floor[1], progress[1])

    @classmethod
    def open(cls, disk: Disk, directory: str) -> SyncedMark:
        """Open or create the file. Its blocks are allocated, so that later writes cannot run out of space."""
        file = disk.open(f"{directory}/{FILE_NAME}", create=True)
        size = file.size()
        if size < FILE_BYTES:
            file.allocate(size, FILE_BYTES - size)
        return cls(file)

    def set_floor(self, epoch: int, position: int) -> None:
        """Write the floor, durably on return."""
        self._file.pwrite(_encode(epoch, position), _FLOOR_OFFSET)
        self._file.fdatasync()

    def set_progress(self, epoch: int, position: int) -> None:
        """Write the progress, which is a hint and not durable on return."""
        self._file.pwrite(_encode(epoch, position), _PROGRESS_OFFSET)

    def close(self) -> None:
        self._file.close()
