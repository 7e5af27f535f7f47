"""Threads that read the log, so that the loop does not wait for a disk.

A reader (one request, one page of a background service) has one step under way at a time, and a step is small: the
queue is first in, first out, so each reader gets one step for each of the others'.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from cluster.problems import Problem

READER_THREADS: Final = 2
"""Number of threads in one pool. A thread that waits for a bad sector does not keep the other readers waiting."""

T = TypeVar("T")


class ReaderPool(Protocol):
    """Runs steps of readers beside the loop."""

    async def run(self, step: Callable[[], T]) -> T:
        """Run `step` in a thread, and return its result or raise its error. When the caller is cancelled, a step that
        has not begun is skipped. Raises Problem overloaded when there is no thread.
        """
        ...

    def stop(self) -> None:
        """Begin no further step."""
        ...


class ReaderThreads:
    """The real pool, which owns its threads. Create and use it on the event loop only. The threads, whose names begin
    with `name`, start with the first step.
    """

    def __init__(self, name: str = "log-reader", threads: int = READER_THREADS) -> None:
        self._name = name
        self._size = threads
        self._steps: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    async def run(self, step: Callable[[], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        if self._stopped:
            raise asyncio.CancelledError
        if len(self._threads) < self._size:
            self._start()
        self._steps.put((future, step))
        return await future

    def stop(self) -> None:
        """End each thread after its present step, without waiting, since a disk may hang for long."""
        self._stopped = True
        for _ in self._threads:
            self._steps.put(None)

    def _start(self) -> None:
        """Start the threads that are missing. Raises Problem overloaded when there is none then; the next step tries
        again.
        """
        while len(self._threads) < self._size:
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process, or its user, has as many threads as it may
                if self._threads:
                    return
                raise Problem("overloaded", "the node cannot start a thread that reads; try again later") from error
            self._threads.append(thread)

    def _run(self) -> None:
        while (item := self._steps.get()) is not None:
            future, step = item
            if self._stopped or future.cancelled():
                continue
            result, error = None, None
            try:
                result = step()
            except BaseException as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                future.get_loop().call_soon_threadsafe(_settle, future, result, error)


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
