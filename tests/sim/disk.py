"""The simulated disk of one node: `tests.simdisk` with time, and with a view of what would survive a power loss."""

import os.path
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.simdisk import SimDisk, SimFile, directory_of

from .fiber import Fiber
from .world import World

SYNC_US_MIN, SYNC_US_MAX = 100, 3_000

Hook = Callable[[str, str], None]


def kind_of(path: str) -> str:
    """Return the kind of a node's file or directory."""
    stem, suffix = os.path.splitext(os.path.basename(path).removesuffix(".tmp"))
    return {".log": "segment", ".idx": "sidecar"}.get(suffix, stem)


@dataclass(frozen=True)
class Damage:
    """A change to synced data that happened behind the node's back."""

    what: str
    path: str
    position: int | None = None
    """Log position of the damaged record."""
    index: int | None = None
    is_flip: bool = False
    """Bits turned over: it ends when they are written over."""
    must_be_noticed: bool = True


class TimedFile(SimFile):
    """A file whose `fdatasync` on a fiber takes time, and covers what was written before it began."""

    @property
    def has_failed(self) -> bool:
        """True when the next `fdatasync` will fail: the kernel has dropped pages, and this file was not told yet."""
        return self._errors_seen < self._inode.write_back_errors

    def fdatasync(self) -> None:
        self._begin("fdatasync")
        disk = self._disk
        assert isinstance(disk, TimedDisk)
        inode = self._inode
        covered = list(inode.unsynced)
        if Fiber.current is not None:
            disk.wait_for_platter()
            self._begin("fdatasync")
        if self.has_failed:
            disk.failures_seen += 1
            super().fdatasync()  # raises, and remembers that this file was told
        if Fiber.current is not None:
            disk.on_synced(Fiber.current)
        disk.synced(self._path, min((_start_of(change) for change in covered), default=None))
        remaining = iter(covered)
        following = next(remaining, None)
        while inode.unsynced and inode.unsynced[0] is following:
            inode.settle(inode.unsynced.pop(0))
            following = next(remaining, None)


def _start_of(change: object) -> int:
    """Return the lowest byte that a change may alter."""
    return int(getattr(change, "position", getattr(change, "size", 0)))


class TimedDisk(SimDisk):
    """A disk that keeps `changed` up to date: per path, the lowest byte whose durable content changed since it was last
    taken, or 0 when the name has come or gone.
    """

    def __init__(self, world: World, random: Random) -> None:
        super().__init__(random)
        self._world = world
        self._timing = random
        self.slow_until_us = 0
        self.slow_sync_us = 0
        self.failures_seen = 0
        self.damages: list[Damage] = []
        self._on_full: Callable[[], None] = lambda: None
        self._fills = 0
        self.on_segment: Callable[[], None] = lambda: None
        self._hooks: list[Hook] = []
        self.names_changed = True
        self.changed: dict[str, int] = {}

    def open(self, path: str, *, create: bool = False) -> TimedFile:
        file = super().open(path, create=create)
        timed = TimedFile(self, file._inode, path)
        self.open_files.discard(file)
        self.open_files.add(timed)
        return timed

    def wait_for_platter(self) -> None:
        """Pause the fiber that syncs for as long as the device takes."""
        fiber = Fiber.current
        assert fiber is not None
        duration_us = self._timing.randint(SYNC_US_MIN, SYNC_US_MAX)
        if self._world.now_us < self.slow_until_us:
            duration_us += self._timing.randint(0, self.slow_sync_us)
        self._world.after(duration_us, lambda: self.resume_sync(fiber))
        Fiber.pause()

    resume_sync: Callable[[Fiber], None] = staticmethod(lambda fiber: fiber.resume())
    on_synced: Callable[[Fiber], None] = staticmethod(lambda fiber: None)

    def synced(self, path: str, lowest_byte: int | None) -> None:
        if lowest_byte is not None:
            self.changed[path] = min(lowest_byte, self.changed.get(path, lowest_byte))

    def sync_directory(self, path: str) -> None:
        changes = [change for change in self._name_changes if change.directory == path]
        super().sync_directory(path)
        for change in changes:
            self.changed.update(dict.fromkeys(change.targets, 0))

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if new.endswith(".log"):
            self.on_segment()

    def lose_power(self) -> None:
        super().lose_power()
        self.names_changed = True

    def put_back(self, image: dict[str, bytes]) -> None:
        super().put_back(image)
        self.names_changed = True

    def durable_bytes(self, path: str) -> bytearray | None:
        """Return the bytes of a file that are certain to be left after a power loss right now; None if its name would
        be gone.

        Bits that were flipped count as they were before: the node has no part in that.
        """
        return self.pristine(path)

    def durable_names(self, directory: str) -> list[str]:
        return sorted(path for path in self._durable_names if directory_of(path) == directory)

    def files(self, directory: str) -> list[str]:
        """Return the sorted paths. Unlike `list`, this is no operation of the node."""
        return sorted(path for path in self._names if directory_of(path) == directory)

    def is_anything_at(self, position: int) -> bool:
        """Return whether a reader of the log's last segment finds more than zeros from that log position on."""
        segments = [path for path in self._names if path.endswith(".log")]
        last = max(segments)
        return bool(self._names[last].current[position - int(last[-24:-4]) :].strip(b"\0"))

    def add_hook(self, hook: Hook) -> None:
        """Call `hook(operation, path)` before each operation, as `on_operation`."""
        self._hooks.append(hook)
        self.on_operation = self._run_hooks

    def remove_hook(self, hook: Hook) -> None:
        self._hooks.remove(hook)
        if not self._hooks:
            self.on_operation = None

    def clear_hooks(self) -> None:
        self._hooks.clear()
        self.on_operation = None

    def _run_hooks(self, operation: str, path: str) -> None:
        for hook in list(self._hooks):
            hook(operation, path)

    @property
    def standing_damages(self) -> list[Damage]:
        """The damages that have not been written over since."""
        flipped = self.flipped() if self.damages else ()
        return [damage for damage in self.damages if not damage.is_flip or damage.path in flipped]

    @property
    def is_damaged(self) -> bool:
        """True when some data that the node must notice is not as it was synced."""
        return any(damage.must_be_noticed for damage in self.standing_damages)

    def fill(self, free_bytes: int, on_full: Callable[[], None]) -> None:
        """Leave only `free_bytes` more to take, until `make_space` was called as often as `fill`. `on_full` is called
        when more is wanted.
        """
        self._fills += 1
        self.capacity_bytes = self._used() + free_bytes
        self._on_full = on_full

    @property
    def is_full(self) -> bool:
        """True when the disk is limited, so that a log may not grow on it."""
        return self.capacity_bytes is not None

    def make_space(self) -> None:
        self._fills = max(0, self._fills - 1)
        if not self._fills:
            self.capacity_bytes = None

    def free_bytes(self, path: str) -> int:
        if self.capacity_bytes is not None:
            self._tell_full()
        return super().free_bytes(path)

    def _tell_full(self) -> None:
        on_full, self._on_full = self._on_full, lambda: None
        on_full()
