"""An asyncio event loop on simulated time, one for each life of a node."""

import asyncio
import itertools
import math
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from .world import MICROSECONDS_PER_SECOND, World

TIDY_TASKS = 64

Around = Callable[[Callable[[], None]], None]


class _Numbered:
    """A base class that hashes by order of creation: the services keep futures and tasks in sets, and their order must
    not vary.
    """

    _number: int

    def __hash__(self) -> int:
        return self._number


class SimFuture(_Numbered, asyncio.Future[Any]):
    """A future of one simulated loop."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._number = number
        super().__init__(loop=loop)


class SimTask(_Numbered, asyncio.Task[Any]):
    """A task of one simulated loop."""

    def __init__(self, number: int, coroutine: Any, loop: asyncio.AbstractEventLoop, **keywords: Any) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, **keywords)


class SimLoop(asyncio.AbstractEventLoop):
    """The part of an event loop that a Raft node uses. Callbacks run as events of the world; a dead loop runs nothing
    more.

    `around(action)` runs an action on behalf of the node: later while the node is frozen, and followed by the checks
    after each step of a node.
    """

    def __init__(self, world: World, around: Around, on_error: Callable[[BaseException], None]) -> None:
        self._world = world
        self._around = around
        self._on_error = on_error
        self.alive = True
        self._coroutines: dict[asyncio.Task[Any], Any] = {}
        self._tidy_at = TIDY_TASKS
        self._numbers = itertools.count()
        self._readers: dict[int, Callable[[], object]] = {}

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._world.after(0, partial(self._run_handle, handle))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        # Upwards: who waits for a moment and looks at the clock afterwards must find it past.
        delay_us = max(0, math.ceil((when - self.time()) * MICROSECONDS_PER_SECOND))
        self._world.after(delay_us, partial(self._run_handle, handle))
        return handle

    def time(self) -> float:
        """Return the node's monotonic clock, in seconds, as the node sees it. A leap of that clock brings no timer
        forward.
        """
        return (self._world.now_us + self._world.skew_us) / MICROSECONDS_PER_SECOND

    def create_future(self) -> "asyncio.Future[Any]":
        return SimFuture(next(self._numbers), self)

    def create_task(self, coroutine: Any, **keywords: Any) -> "asyncio.Task[Any]":  # type: ignore[override]
        task = SimTask(next(self._numbers), coroutine, self, **keywords)
        if len(self._coroutines) >= self._tidy_at:
            self._coroutines = {task: each for task, each in self._coroutines.items() if not task.done()}
            self._tidy_at = 2 * len(self._coroutines) + TIDY_TASKS
        self._coroutines[task] = coroutine
        return task

    def close_tasks(self) -> None:
        """Unwind the tasks of a dead process now, and not whenever the garbage is collected."""
        coroutines, self._coroutines = self._coroutines, {}
        for coroutine in coroutines.values():
            coroutine.close()

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":  # type: ignore[override]
        """Run the function at once: a thread that the loop awaits has nothing to race with here."""
        future = self.create_future()
        future.set_result(function(*args))
        return future

    def add_reader(self, descriptor: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._readers[descriptor] = partial(callback, *args)

    def remove_reader(self, descriptor: int) -> bool:  # type: ignore[override]
        return self._readers.pop(descriptor, None) is not None

    def becomes_readable(self, descriptor: int) -> None:
        """Call the reader of the descriptor in the next turn of the loop."""
        self.call_soon(lambda: self._readers.get(descriptor, lambda: None)())

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive:
            self._on_error(error if isinstance(error, BaseException) else RuntimeError(context["message"]))

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.alive

    def is_closed(self) -> bool:
        return not self.alive

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def _run_handle(self, handle: asyncio.Handle) -> None:
        def run() -> None:
            if not handle.cancelled():  # while the node was frozen
                handle._run()

        if self.alive and not handle.cancelled():
            self._around(run)
