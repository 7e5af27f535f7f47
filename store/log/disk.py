"""File access of the store: the `Disk` protocol and its POSIX implementation.

The simulation and the crash tests pass their own disk, which loses unsynced writes. Every `Disk` keeps these promises:

* The effect of `pwrite` and `truncate` is visible at once to `pread` through every open `File` of that path, and
  durable only after `fdatasync` of any of these `File`s returned.
* Names (`open(create=True)`, `rename`, `unlink`) are durable only after `sync_directory` of their directory returned.
* Each `File` reports a failed write-back to its own next `fdatasync`, as Linux does per open file description: that
  is why appends and syncs have different `File`s of the same path.

Errors are `DiskError`, or `DiskFull` when space, inodes or file descriptors ran out.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, TypeVar

from store.descriptors import NO_DESCRIPTOR, SpareDescriptors
from store.log.errors import DiskError, DiskFull, disk_error

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

_ZERO_CHUNK_BYTES = 1 << 20
_NO_FALLOCATE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


class File(Protocol):
    """An open file, read and written at explicit positions."""

    def pread(self, length: int, position: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end of the file."""
        ...

    def fetch(self, length: int, position: int) -> None:
        """Has the disk bring these bytes into memory for a later `pread`, and does not wait for it. A hint, which never
        fails.
        """
        ...

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write the whole buffer or raise `DiskError`. Not durable on return."""
        ...

    def fdatasync(self) -> None:
        """Make content and length durable. Releases the GIL; another thread than that of the other methods may call
        it.
        """
        ...

    def truncate(self, size: int) -> None:
        """Set the length of the file. Not durable on return."""
        ...

    def allocate(self, position: int, length: int) -> None:
        """Reserve zeroed blocks for the range, which must hold no data yet, and extend the file to the end of the
        range.

        Raises `DiskFull` with the length of the file unchanged.
        """
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class BackgroundSync(Protocol):
    """Syncs one file at a time without a thread of ours."""

    descriptor: int
    """Becomes readable when the sync under way has ended."""

    def start(self, file: File) -> None:
        """Begin to sync the file as `fdatasync` does, for everything written before the call. The file stays open until
        `finish`.

        Raises `DiskError`, with nothing begun.
        """
        ...

    def finish(self) -> DiskError | None:
        """Return how the sync that has ended ended: Error that `fdatasync` would have raised; None without an error."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """The file system that holds the store's files."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; with `create` a missing file is created, empty."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Return the sorted names in `directory`."""
        ...

    def make_directory(self, path: str) -> None:
        """Make `path` and its missing parents, durably on return. Does nothing if `path` exists."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Rename `old` to `new`, replacing `new` atomically."""
        ...

    def unlink(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def read_bytes(self, path: str) -> bytes: ...

    def free_bytes(self, path: str) -> int:
        """Return the bytes that an unprivileged process may still use on the file system of `path`."""
        ...

    def free_files(self, path: str) -> int | None:
        """Return how many more files an unprivileged process may create on the file system of `path`; None where that
        has no limit.
        """
        ...

    def has_descriptors(self, count: int) -> bool:
        """Return whether `count` more files can be opened at the same time."""
        ...


@contextlib.contextmanager
def _translated(operation: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_error(operation, path, error) from error


class PosixFile:
    """An open file of the operating system; it owns one file descriptor."""

    __slots__ = ("borrowed_of", "descriptor", "path")

    def __init__(self, descriptor: int, path: str, borrowed_of: SpareDescriptors | None = None) -> None:
        """`borrowed_of` lent the descriptor, and gets it back when the file is closed."""
        self.descriptor = descriptor
        self.path = path
        self.borrowed_of = borrowed_of

    def pread(self, length: int, position: int) -> bytes:
        try:
            data = os.pread(self.descriptor, length, position)
            if len(data) == length or not data:
                return data
            parts = [data]
            got = len(data)
            while got < length:  # Linux returns at most 2 GiB at once, and signals may cut a read short
                data = os.pread(self.descriptor, length - got, position + got)
                if not data:
                    break
                parts.append(data)
                got += len(data)
            return b"".join(parts)
        except OSError as error:
            raise disk_error("read", self.path, error) from error

    def fetch(self, length: int, position: int) -> None:
        with contextlib.suppress(OSError):
            os.posix_fadvise(self.descriptor, position, length, os.POSIX_FADV_WILLNEED)

    def pwrite(self, data: Buffer, position: int) -> None:
        try:
            written = os.pwrite(self.descriptor, data, position)
            total = len(data)
            while written < total:
                written += os.pwrite(self.descriptor, memoryview(data)[written:], position + written)
        except OSError as error:
            raise disk_error("write", self.path, error) from error

    def fdatasync(self) -> None:
        with _translated("fdatasync", self.path):
            os.fdatasync(self.descriptor)

    def truncate(self, size: int) -> None:
        with _translated("truncate", self.path):
            os.ftruncate(self.descriptor, size)

    def allocate(self, position: int, length: int) -> None:
        if length <= 0:
            return
        size_before = self.size()
        try:
            try:
                os.posix_fallocate(self.descriptor, position, length)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
                self._write_zeros(position, length)
        except OSError as error:
            with contextlib.suppress(OSError):  # the error that matters is the first one
                os.ftruncate(self.descriptor, size_before)
            raise disk_error("allocate", self.path, error) from error

    def _write_zeros(self, position: int, length: int) -> None:
        zeros = bytes(min(length, _ZERO_CHUNK_BYTES))
        end = position + length
        while position < end:
            position += os.pwrite(self.descriptor, zeros[: end - position], position)

    def size(self) -> int:
        with _translated("stat", self.path):
            return os.fstat(self.descriptor).st_size

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1  # whatever is called by mistake meets no other file
        with _translated("close", self.path):
            os.close(descriptor)
        if self.borrowed_of is not None:
            self.borrowed_of.take_back()


class PosixDisk:
    """The operating system's file system. When the process has no descriptor left, files are opened with `spares`."""

    def __init__(self, spares: SpareDescriptors | None = None) -> None:
        self.spares = spares or SpareDescriptors()

    def open(self, path: str, *, create: bool = False) -> PosixFile:
        return self._open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0))

    def _open(self, path: str, flags: int) -> PosixFile:
        with _translated("open", path):
            descriptor, is_borrowed = self._with_spare(lambda: os.open(path, flags, 0o600))
        return PosixFile(descriptor, path, self.spares if is_borrowed else None)

    def _with_spare(self, opening: Callable[[], T]) -> tuple[T, bool]:
        """Return what `opening` returns, and whether it took a spare descriptor, which the caller takes back."""
        lent = 0
        try:
            while True:
                try:
                    return opening(), lent > 0
                except OSError as error:
                    if error.errno not in NO_DESCRIPTOR or not self.spares.lend():
                        raise
                    lent += 1  # another thread may be quicker to open a file in its place: then one more
        except BaseException:
            for _ in range(lent):
                self.spares.take_back()
            raise

    def _briefly(self, using: Callable[[], T]) -> T:
        """Return what `using` returns, which closes all that it opens."""
        result, is_borrowed = self._with_spare(using)
        if is_borrowed:
            self.spares.take_back()
        return result

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, directory: str) -> list[str]:
        with _translated("list", directory):
            return sorted(self._briefly(lambda: os.listdir(directory)))

    def make_directory(self, path: str) -> None:
        path = os.path.abspath(path)
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        self.make_directory(parent)
        with _translated("make directory", path):
            os.mkdir(path, 0o700)
        self.sync_directory(parent)

    def rename(self, old: str, new: str) -> None:
        with _translated("rename", old):
            os.replace(old, new)

    def unlink(self, path: str) -> None:
        with _translated("unlink", path):
            os.unlink(path)

    def sync_directory(self, path: str) -> None:
        with _translated("sync directory", path):
            self._briefly(lambda: _sync_directory(path))

    def read_bytes(self, path: str) -> bytes:
        with _translated("read", path):
            return self._briefly(lambda: _read_bytes(path))

    def free_bytes(self, path: str) -> int:
        with _translated("statvfs", path):
            status = os.statvfs(path)
            return status.f_bavail * status.f_frsize

    def free_files(self, path: str) -> int | None:
        with _translated("statvfs", path):
            status = os.statvfs(path)
            return status.f_favail if status.f_files else None  # 0 where inodes are made as they are needed

    def has_descriptors(self, count: int) -> bool:
        return self.spares.has(count)


class ReadOnlyDisk(PosixDisk):
    """The operating system's file system for those who only read: they need no permission to write, and files may be
    on one that is mounted read-only.
    """

    def open(self, path: str, *, create: bool = False) -> PosixFile:
        assert not create, "nothing is created by those who only read"
        return self._open(path, os.O_RDONLY | os.O_CLOEXEC)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def require_free(disk: Disk, directory: str, length: int, reserve: int) -> None:
    """Raise `DiskFull` unless `directory` has `length` bytes free and `reserve` bytes on top of that."""
    free = disk.free_bytes(directory)
    if free < length + reserve:
        reason = f"{free} bytes free, {length} needed and {reserve} kept in reserve"
        raise DiskFull("allocate", directory, errno.ENOSPC, reason)


def require_files(disk: Disk, directory: str, reserve: int) -> None:
    """Raise `DiskFull` unless `directory` has room for more files than the `reserve`."""
    free = disk.free_files(directory)
    if free is not None and free <= reserve:
        reason = f"{free} inodes free and {reserve} kept in reserve"
        raise DiskFull("create a file in", directory, errno.ENOSPC, reason)


def require_descriptors(disk: Disk, path: str, count: int) -> None:
    """Raise `DiskFull` unless `count` more files can be opened. Steps that must not stop half-way ask before they
    change anything.
    """
    if not disk.has_descriptors(count):
        raise DiskFull("open", path, errno.EMFILE, os.strerror(errno.EMFILE))
