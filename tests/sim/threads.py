"""Threading primitives on fibers: `ThreadSyncer` of `raft/syncing/syncers.py` runs unchanged, but deterministically."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import raft.syncing.syncers

from .fiber import Fiber


class ThreadOwner(Protocol):
    """The node whose code runs at the moment. Threads that it makes die with it."""

    fibers: list[Fiber]

    def wake(self, fiber: Fiber) -> None:
        """Resume the fiber soon."""
        ...


class Running:
    """The owner of the code that runs at the moment."""

    node: ThreadOwner | None = None


class SimQueue:
    """A `queue.SimpleQueue` on fibers: `put` wakes the one fiber that waits in `get`."""

    def __init__(self) -> None:
        assert Running.node is not None
        self._owner = Running.node
        self._items: deque[Any] = deque()
        self._waiting: Fiber | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            fiber, self._waiting = self._waiting, None
            self._owner.wake(fiber)

    def get(self) -> Any:
        while not self._items:
            self._waiting = Fiber.current
            Fiber.pause()
        return self._items.popleft()


class SimThread:
    """A `threading.Thread` on fibers, as far as the sync thread uses it."""

    def __init__(self, *, target: Callable[[], object], name: str, daemon: bool) -> None:
        assert Running.node is not None
        self._owner = Running.node
        self._fiber = Fiber(target)
        self._owner.fibers.append(self._fiber)

    def start(self) -> None:
        self._owner.wake(self._fiber)

    def join(self) -> None:
        while not self._fiber.finished:
            self._fiber.resume()


@contextmanager
def simulated_threads() -> Iterator[None]:
    with (
        mock.patch.object(raft.syncing.syncers, "threading", SimpleNamespace(Thread=SimThread)),
        mock.patch.object(raft.syncing.syncers, "queue", SimpleNamespace(SimpleQueue=SimQueue)),
    ):
        yield
