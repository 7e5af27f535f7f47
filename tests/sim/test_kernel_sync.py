"""The kernel of the simulation syncs as the real one does: by itself, and it says so."""

from random import Random

import pytest

from store.log.disk import File
from store.log.errors import DiskError

from .disk import SYNC_US_MAX, TimedDisk
from .fiber import Fiber
from .kernel_sync import SimKernelSync
from .loop import SimLoop
from .world import World

FILE = "/data/file"


class Process:
    """A process without a node: its loop runs, or stands while the kernel goes on."""

    def __init__(self) -> None:
        self.world = World(0)
        self.disk = TimedDisk(self.world, Random(0))
        self.fibers: list[Fiber] = []
        self.errors: list[BaseException] = []
        self.stands = False
        self.ends: list[DiskError | None] = []
        self.loop = SimLoop(self.world, self._around, self.errors.append)  # type: ignore[abstract]
        self.random = Random(0)
        self.sync = SimKernelSync(self, self.loop, self.random)
        self.loop.add_reader(self.sync.descriptor, lambda: self.ends.append(self.sync.finish()))
        self.file: File = self.disk.open(FILE, create=True)
        self.disk.sync_directory("/data")

    def _around(self, action: object) -> None:
        assert callable(action)
        if self.stands:
            self.world.after(SYNC_US_MAX, lambda: self._around(action))
        else:
            action()

    def wake(self, fiber: Fiber) -> None:
        self.world.after(1, fiber.resume)

    @property
    def durable(self) -> bytes:
        return bytes(self.disk.durable_bytes(FILE) or b"")

    def run(self) -> None:
        self.world.run(3 * SYNC_US_MAX)


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_sync_goes_on_while_its_process_stands(process: Process) -> None:
    process.file.pwrite(b"before", 0)
    process.sync.start(process.file)
    process.stands = True
    process.run()
    assert process.durable == b"before"
    assert process.ends == []
    process.stands = False
    process.run()
    assert process.ends == [None]
    process.file.pwrite(b"second", 0)
    process.sync.start(process.file)
    process.run()
    assert (process.durable, process.ends) == (b"second", [None, None])
    assert len(process.fibers) == 1


def test_the_end_of_a_sync_tells_its_failure(process: Process) -> None:
    process.file.pwrite(b"lost", 0)
    process.disk.fail_write_back(FILE)
    process.sync.start(process.file)
    process.run()
    (failed,) = process.ends
    assert isinstance(failed, DiskError)
    assert process.durable == b""
    process.sync.close()


def test_a_sync_that_fails_at_once_has_not_begun(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.random, "random", lambda: 0.0)
    process.disk.fail_write_back(FILE)
    with pytest.raises(DiskError):
        process.sync.start(process.file)
    process.run()
    assert process.ends == []
    process.sync.close()


def test_nobody_hears_of_a_sync_when_the_power_is_lost(process: Process) -> None:
    process.file.pwrite(b"gone", 0)
    process.sync.start(process.file)
    process.disk.lose_power()
    process.run()
    assert (process.ends, process.errors) == ([], [])
