"""The two ways to sync a file while the loop goes on: the kernel does it, or a thread."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from raft.library import now
from store.log.disk import BackgroundSync, File

OnEnd = Callable[[BaseException | None, float], None]


class Syncer(Protocol):
    """Syncs one file at a time."""

    def start(self, file: File, on_end: OnEnd) -> None:
        """Begin to sync `file`, and call `on_end(error, took_s)` on the loop when that has ended; `error` is the error
        that `fdatasync` raised; None without one. The file stays open until then.

        Raises DiskError, with nothing begun.
        """
        ...

    def close(self) -> None:
        """Release the resources of the syncer. No sync may be under way."""
        ...


def syncer_of(
    loop: asyncio.AbstractEventLoop, background: BackgroundSync | None, worked_s: Callable[[], float]
) -> Syncer:
    """Return a syncer by the kernel, or by a thread where the kernel offers nothing. `worked_s` returns the processor
    time of the loop's thread, in seconds.
    """
    return ThreadSyncer(loop) if background is None else KernelSyncer(loop, background, worked_s)


class KernelSyncer:
    """Has the kernel sync. No thread takes part, so nothing waits for the GIL: of the time of a sync, the process
    spends some ten microseconds. `took_s` leaves out the time in which the loop computed, and could not hear of the
    end: a disk is not called slow because its node is busy.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, background: BackgroundSync, worked_s: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._background = background
        self._worked_s = worked_s
        self._on_end: OnEnd | None = None
        self._begun_s = self._computed_s = 0.0
        loop.add_reader(background.descriptor, self._ended)

    def start(self, file: File, on_end: OnEnd) -> None:
        self._on_end, self._begun_s, self._computed_s = on_end, now(), self._worked_s()
        self._background.start(file)

    def close(self) -> None:
        self._loop.remove_reader(self._background.descriptor)
        self._background.close()

    def _ended(self) -> None:
        computed_s = self._worked_s() - self._computed_s
        on_end, took_s = self._on_end, max(now() - self._begun_s - computed_s, 0.0)
        assert on_end is not None
        on_end(self._background.finish(), took_s)


class ThreadSyncer:
    """Owns a thread that calls `fdatasync`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[tuple[File, OnEnd] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="commit-log-sync", daemon=True)
        self._thread.start()

    def start(self, file: File, on_end: OnEnd) -> None:
        self._jobs.put((file, on_end))

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            file, on_end = job
            begun_s, failed = now(), None
            try:
                file.fdatasync()
            except BaseException as error:
                failed = error
            self._loop.call_soon_threadsafe(on_end, failed, now() - begun_s)
