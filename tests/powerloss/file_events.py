"""Waits within microseconds for a file to be made, renamed, written or removed, by inotify."""

import ctypes
import os
import select
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Self

WRITTEN: Final = 0x002
RENAMED_TO: Final = 0x080
CREATED: Final = 0x100
DELETED: Final = 0x200
_FLAGS: Final = os.O_NONBLOCK | os.O_CLOEXEC
_EVENT: Final = struct.Struct("iIII")
_READ_BYTES: Final = 64 * 1024

_libc = ctypes.CDLL(None, use_errno=True)


class FileEvent(NamedTuple):
    directory: str  # its last component
    kind: int  # WRITTEN, RENAMED_TO, CREATED or DELETED
    name: str


class FileEvents:
    """Watches the files directly in `directories` from now on; use it as a context manager."""

    def __init__(self, *directories: Path) -> None:
        self._descriptor = _checked(_libc.inotify_init1(_FLAGS))
        self._watches: dict[int, str] = {}
        try:
            for directory in directories:
                mask = WRITTEN | RENAMED_TO | CREATED | DELETED
                watch = _checked(_libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask))
                self._watches[watch] = directory.name
        except OSError:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)

    def wait(self, wanted: Callable[[FileEvent], bool], timeout_s: float) -> bool:
        """Return True at the first event that is `wanted`, False when none came in time."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._descriptor], [], [], left_s)
            if ready and any(wanted(event) for event in self._read()):
                return True
        return False

    def _read(self) -> list[FileEvent]:
        data = os.read(self._descriptor, _READ_BYTES)
        events, at = [], 0
        while at < len(data):
            watch, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size
            name = data[at : at + length].rstrip(b"\0").decode()
            at += length
            if watch in self._watches:
                events.append(FileEvent(self._watches[watch], mask, name))
        return events


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
