"""A `Disk` in memory that does to unsynced writes what a real one may do. For unit tests and the simulation alike.

    disk = SimDisk(random.Random(seed))
    log = CommitLog.open(disk, "/data/log", ...)
    disk.lose_power()     # unsynced writes are lost, kept or torn, unsynced names are lost; every open file is dead
    log = CommitLog.open(disk, "/data/log", ...)

What it models:

* `pwrite`, `truncate` and `allocate` are visible at once and durable after `fdatasync`. When power is lost, each
  write made since may be gone, kept, or kept in parts, independently of the others; so holes appear as well as torn
  tails.
* names (create, rename, unlink) are durable after `sync_directory`. When power is lost, some number of the oldest
  changes of each directory survive: file systems keep these in order.
* `fail_write_back(path)`: the kernel could not write dirty pages. It drops them, keeps showing them to readers, and
  tells each open file once, at its next `fdatasync`.
* `flip(path, position, mask)`: bits of durable bytes turn over, for readers too, until something is written over them.
  `pristine(path)` is what would be durable without that.
* `capacity_bytes`: allocations and growing writes beyond it raise `DiskFull`. `descriptors` is the number of files that
  the process may still open, `free_inodes` what is told of inodes; None is no limit.
* `on_operation(operation, path)` runs before each operation on the disk or a file of it: raise an error there, call
  `lose_power`, or run what another thread would do at that moment.

All randomness comes from the generator that is passed in; the same seed and calls give the same losses.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from store.log.disk import Buffer
from store.log.errors import DiskError, disk_error
from store.log.record import HEADER_BYTES

directory_of = functools.lru_cache(4096)(os.path.dirname)

_UNLIMITED_FREE_BYTES = 1 << 50
_SECTOR_BYTES = 512


class PowerLost(Exception):
    """Raised by operations on a file that was open when the power was lost, and by `lose_power_at`."""


class _Write(NamedTuple):
    position: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        gap = self.position - len(content)
        if gap > 0:
            content.extend(bytes(gap))
        content[self.position : self.position + len(self.data)] = self.data


class _Resize(NamedTuple):
    size: int

    def apply(self, content: bytearray) -> None:
        if len(content) > self.size:
            del content[self.size :]
        else:
            content.extend(bytes(self.size - len(content)))


class _NameChange(NamedTuple):
    """The targets of all names that one directory operation changes. Either all of the changes survive or none."""

    directory: str
    targets: dict[str, _Inode | None]

    def apply(self, names: dict[str, _Inode]) -> None:
        for path, inode in self.targets.items():
            if inode is None:
                names.pop(path, None)
            else:
                names[path] = inode


class _Inode:
    """A file's content: what readers see, what is durable, and the changes between the two."""

    def __init__(self) -> None:
        self.current = bytearray()
        self.durable = bytearray()
        self.unsynced: list[_Write | _Resize] = []
        self.write_back_errors = 0
        self.flips: dict[int, int] = {}  # position -> mask, of durable bytes

    @classmethod
    def holding(cls, content: bytes) -> _Inode:
        inode = cls()
        inode.current[:] = inode.durable[:] = content
        return inode

    def change(self, change: _Write | _Resize) -> None:
        change.apply(self.current)
        self.unsynced.append(change)

    def sync(self) -> None:
        for change in self.unsynced:
            self.settle(change)
        self.unsynced.clear()

    def settle(self, change: _Write | _Resize) -> None:
        """Make the change durable."""
        change.apply(self.durable)
        if self.flips:
            if isinstance(change, _Resize):
                end = 1 << 62
                begin = change.size
            else:
                begin, end = change.position, change.position + len(change.data)
            self.flips = {at: mask for at, mask in self.flips.items() if not begin <= at < end}

    def flip(self, position: int, mask: int) -> None:
        self.durable[position] ^= mask
        if position < len(self.current):
            self.current[position] ^= mask
        self.flips[position] = self.flips.get(position, 0) ^ mask

    @property
    def pristine(self) -> bytearray:
        """Return `durable` without the flips."""
        if not self.flips:
            return self.durable
        content = bytearray(self.durable)
        for position, mask in self.flips.items():
            content[position] ^= mask
        return content

    def lose(self, random: Random) -> None:
        """Keep an arbitrary part of the unsynced changes."""
        keep = random.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        for change in self.unsynced:
            if isinstance(change, _Resize):
                parts: list[_Write | _Resize] = [change]
            else:
                parts = list(_torn(change, random))
            for part in parts:
                if random.random() < keep:
                    self.settle(part)
        self.unsynced.clear()
        self.current = bytearray(self.durable)


def _torn(write: _Write, random: Random) -> list[_Write]:
    """Cut a write into parts that reach the platter or do not: at an arbitrary byte, or at sectors."""
    size = len(write.data)
    if size < 2 or random.random() < 0.3:
        return [write]
    if random.random() < 0.5:
        cuts = [random.randrange(1, size)]
        if size > HEADER_BYTES and random.random() < 0.2:
            cuts = [HEADER_BYTES]  # where a log is easiest to deceive
    else:
        first = _SECTOR_BYTES - write.position % _SECTOR_BYTES
        cuts = list(range(first, size, _SECTOR_BYTES))
    edges = [0, *cuts, size]
    return [_Write(write.position + a, write.data[a:b]) for a, b in itertools.pairwise(edges)]


class SimFile:
    """An open file of a `SimDisk`."""

    def __init__(self, disk: SimDisk, inode: _Inode, path: str) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._era = disk.era
        self._errors_seen = inode.write_back_errors
        self._closed = False

    def pread(self, length: int, position: int) -> bytes:
        self._begin("pread")
        return bytes(self._inode.current[position : position + length])

    def fetch(self, length: int, position: int) -> None:
        assert not self._closed
        self._disk.fetched.append((self._path, position, length))

    def pwrite(self, data: Buffer, position: int) -> None:
        self._begin("pwrite")
        self._disk.take_space("write", self._path, self._inode, position + len(data))
        self._inode.change(_Write(position, bytes(data)))

    def fdatasync(self) -> None:
        self._begin("fdatasync")
        if self._errors_seen < self._inode.write_back_errors:
            self._errors_seen = self._inode.write_back_errors
            raise disk_error("fdatasync", self._path, OSError(errno.EIO, "write-back failed"))
        self._inode.sync()

    def truncate(self, size: int) -> None:
        self._begin("truncate")
        self._inode.change(_Resize(size))

    def allocate(self, position: int, length: int) -> None:
        self._begin("allocate")
        size = position + length
        self._disk.take_space("allocate", self._path, self._inode, size)
        if size > len(self._inode.current):
            self._inode.change(_Resize(size))

    def size(self) -> int:
        self._begin("size")
        return len(self._inode.current)

    def close(self) -> None:
        if self._closed:
            raise AssertionError(f"{self._path} was closed twice")
        self._closed = True
        self._disk.open_files.discard(self)
        if self._disk.descriptors is not None:
            self._disk.descriptors += 1

    def _begin(self, operation: str) -> None:
        if self._closed:
            raise AssertionError(f"{operation} on {self._path} after it was closed")
        if self._era != self._disk.era:
            raise PowerLost(f"{operation} on {self._path}")
        self._disk.begin(operation, self._path)
        if self._era != self._disk.era:  # the power went just now
            raise PowerLost(f"{operation} on {self._path}")
        if self._closed:  # by what ran in `on_operation`
            raise AssertionError(f"{self._path} was closed during {operation}")


class SimDisk:
    """A disk in memory, as the module describes it. `era` counts power losses and kills; files opened in an older era
    are dead.
    """

    def __init__(self, random: Random, *, capacity_bytes: int | None = None) -> None:
        self._random = random
        self.capacity_bytes = capacity_bytes
        self.free_inodes: int | None = None
        self.descriptors: int | None = None
        self.on_operation: Callable[[str, str], None] | None = None
        self.era = 0
        self.operations = 0
        self.open_files: set[SimFile] = set()
        self.fetched: deque[tuple[str, int, int]] = deque(maxlen=100)
        """Path, offset and length of what files were asked to fetch, the latest."""
        self._names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._directories = {"/"}
        self._name_changes: list[_NameChange] = []

    # What a Disk does

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.begin("open", path)
        self._require_descriptor("open", path)
        if path not in self._names:
            if not create:
                raise disk_error("open", path, OSError(errno.ENOENT, "no such file"))
            self._change_names(path, {path: _Inode()})
        file = SimFile(self, self._names[path], path)
        self.open_files.add(file)
        if self.descriptors is not None:
            self.descriptors -= 1
        return file

    def exists(self, path: str) -> bool:
        return path in self._names or path in self._directories

    def list(self, directory: str) -> list[str]:
        self.begin("list", directory)
        self._require_descriptor("list", directory)
        return sorted(os.path.basename(path) for path in self._names if directory_of(path) == directory)

    def make_directory(self, path: str) -> None:
        self.begin("make_directory", path)
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def rename(self, old: str, new: str) -> None:
        self.begin("rename", new)
        inode = self._existing("rename", old)
        self._change_names(new, {new: inode, old: None})

    def unlink(self, path: str) -> None:
        self.begin("unlink", path)
        self._existing("unlink", path)
        self._change_names(path, {path: None})

    def sync_directory(self, path: str) -> None:
        self.begin("sync_directory", path)
        self._require_descriptor("sync_directory", path)
        for change in self._name_changes:
            if change.directory == path:
                change.apply(self._durable_names)
        self._name_changes = [change for change in self._name_changes if change.directory != path]

    def read_bytes(self, path: str) -> bytes:
        self.begin("read_bytes", path)
        self._require_descriptor("read_bytes", path)
        return bytes(self._existing("read", path).current)

    def free_bytes(self, path: str) -> int:
        if self.capacity_bytes is None:
            return _UNLIMITED_FREE_BYTES
        return max(0, self.capacity_bytes - self._used())

    def free_files(self, path: str) -> int | None:
        return self.free_inodes

    def has_descriptors(self, count: int) -> bool:
        return self.descriptors is None or self.descriptors >= count

    def _require_descriptor(self, operation: str, path: str) -> None:
        if self.descriptors is not None and self.descriptors < 1:
            raise io_error(operation, path, errno.EMFILE)

    # What happens to a disk

    def lose_power(self) -> None:
        """Lose unsynced bytes and names in part; open files are dead."""
        self._end_era()
        for directory in sorted({change.directory for change in self._name_changes}):
            changes = [change for change in self._name_changes if change.directory == directory]
            for change in changes[: self._random.randint(0, len(changes))]:
                change.apply(self._durable_names)
        self._name_changes.clear()
        for _, inode in sorted(self._durable_names.items()):
            inode.lose(self._random)
        self._names = dict(self._durable_names)

    def kill_process(self) -> None:
        """Kill the process while the kernel lives: open files are dead, nothing is lost and nothing becomes durable."""
        self._end_era()

    def lose_power_at(self, operation_number: int) -> None:
        """Lose power right before the operation with that number (`operations` counts them); it raises `PowerLost`."""

        def count(operation: str, path: str) -> None:
            if self.operations >= operation_number:
                self.on_operation = None
                self.lose_power()
                raise PowerLost(f"at {operation} {path}")

        self.on_operation = count

    def fail_write_back(self, path: str) -> None:
        """Drop the dirty pages of `path`. Readers still see them, and each open file's next `fdatasync` fails."""
        inode = self._names[path]
        inode.unsynced.clear()
        inode.write_back_errors += 1

    def damage(self, path: str, position: int, data: bytes) -> None:
        """Overwrite durable bytes behind everyone's back."""
        for content in (self._names[path].current, self._names[path].durable):
            _Write(position, data).apply(content)

    def flip(self, path: str, position: int, mask: int) -> None:
        """Flip bits of a durable byte behind everyone's back."""
        self._durable_names[path].flip(position, mask)

    def pristine(self, path: str) -> bytearray | None:
        """Return the durable content of a file without flipped bits; None if its name is not durable."""
        inode = self._durable_names.get(path)
        return None if inode is None else inode.pristine

    def flipped(self) -> Sequence[str]:
        """Return the durable names of files with flipped bits that are still there."""
        return sorted(path for path, inode in self._durable_names.items() if inode.flips)

    def cut(self, path: str, size: int) -> None:
        """Shorten or lengthen (with zeros) a file behind everyone's back."""
        for content in (self._names[path].current, self._names[path].durable):
            _Resize(size).apply(content)

    def image(self) -> dict[str, bytes]:
        """Return the durable bytes of every file, by path."""
        return {path: bytes(inode.durable) for path, inode in self._durable_names.items()}

    def put_back(self, image: dict[str, bytes]) -> None:
        """Put everything back to the image. No process may be running."""
        self._end_era()
        self._name_changes.clear()
        self._durable_names = {path: _Inode.holding(content) for path, content in image.items()}
        self._names = dict(self._durable_names)

    def remove(self, path: str) -> None:
        """Remove a file behind everyone's back."""
        del self._names[path], self._durable_names[path]

    # Inside

    def begin(self, operation: str, path: str) -> None:
        self.operations += 1
        if self.on_operation is not None:
            self.on_operation(operation, path)

    def take_space(self, operation: str, path: str, inode: _Inode, size: int) -> None:
        growth = size - len(inode.current)
        if self.capacity_bytes is not None and growth > 0 and self._used() + growth > self.capacity_bytes:
            raise disk_error(operation, path, OSError(errno.ENOSPC, "no space left"))

    def _used(self) -> int:
        return sum(len(inode.current) for inode in self._names.values())

    def _existing(self, operation: str, path: str) -> _Inode:
        if path not in self._names:
            raise disk_error(operation, path, OSError(errno.ENOENT, "no such file"))
        return self._names[path]

    def _change_names(self, path: str, targets: dict[str, _Inode | None]) -> None:
        change = _NameChange(directory_of(path), targets)
        change.apply(self._names)
        self._name_changes.append(change)

    def _end_era(self) -> None:
        self.era += 1
        self.open_files.clear()
        self.descriptors = None  # the next process has its own


def io_error(operation: str, path: str, number: int = errno.EIO) -> DiskError:
    """Return the error that a failing operation raises, for `on_operation`."""
    return disk_error(operation, path, OSError(number, os.strerror(number)))
