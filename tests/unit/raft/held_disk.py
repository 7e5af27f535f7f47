"""A real disk whose fdatasync of the commit log the test can hold back or make fail."""

import errno
import threading
from dataclasses import dataclass
from typing import Any

from store.log.disk import File, PosixDisk
from store.log.errors import DiskError
from tests.patience import PATIENCE_S


@dataclass
class HeldFile:
    """A file that behaves as the wrapped one, except for fdatasync."""

    file: File
    disk: "HeldDisk"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def fdatasync(self) -> None:
        if not self.disk.may_sync.wait(timeout=PATIENCE_S):
            raise AssertionError("the test never let this sync go on")
        if self.disk.broken:
            raise DiskError("fdatasync", "segment", errno.EIO, "input/output error")
        self.file.fdatasync()


class HeldDisk(PosixDisk):
    """A disk on which `hold()` blocks every sync that begins until `release()`. A `broken` disk fails syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.broken = False

    def hold(self) -> None:
        self.may_sync.clear()

    def release(self) -> None:
        self.may_sync.set()

    def open(self, path: str, *, create: bool = False) -> Any:
        file = super().open(path, create=create)
        return HeldFile(file, self) if "/log/" in path else file  # term and vote are written on the loop
