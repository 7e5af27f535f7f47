"""Syncs by the kernel: `KernelSyncer` of `raft/syncing/syncers.py` runs unchanged over this `BackgroundSync`."""

from functools import partial
from random import Random
from typing import Final

from store.log.disk import File
from store.log.errors import DiskError
from tests.simdisk import PowerLost

from .disk import TimedFile
from .fiber import Fiber
from .loop import SimLoop
from .threads import ThreadOwner

FAILS_AT_ONCE_PROBABILITY: Final = 0.3


class SimKernelSync:
    """Syncs one file at a time, also while the node is frozen: that stops its threads and not the kernel.

    The sync begins a moment after the call, as on a busy machine, and the loop hears of its end as of a socket. A sync
    that is going to fail fails now and then in the call that begins it.
    """

    descriptor = 0

    def __init__(self, owner: ThreadOwner, loop: SimLoop, random: Random) -> None:
        self._owner = owner
        self._loop = loop
        self._random = random
        self._fiber: Fiber | None = None
        self._failed: DiskError | None = None
        self._under_way = self._ended = False

    def start(self, file: File) -> None:
        assert not self._under_way, "there is room for one operation"
        assert isinstance(file, TimedFile)
        if file.has_failed and self._random.random() < FAILS_AT_ONCE_PROBABILITY:
            file.fdatasync()
        self._under_way, self._failed = True, None
        if self._fiber is not None:
            self._owner.fibers.remove(self._fiber)
        self._fiber = Fiber(partial(self._sync, file), of_kernel=True)
        self._owner.fibers.append(self._fiber)
        self._owner.wake(self._fiber)

    def finish(self) -> DiskError | None:
        assert self._ended, "the descriptor was not readable"
        self._under_way = self._ended = False
        return self._failed

    def close(self) -> None:
        assert not self._under_way, "a sync is under way"

    def _sync(self, file: File) -> None:
        try:
            file.fdatasync()
        except DiskError as error:
            self._failed = error
        except PowerLost:
            return
        self._ended = True
        self._loop.becomes_readable(self.descriptor)
