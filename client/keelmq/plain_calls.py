"""Runs the application's functions: validates them when they are given, and runs plain functions in worker threads.

A plain function cannot be cancelled. A consumer's or a check's call therefore keeps its place until the function has
returned: two calls that must run one after the other never overlap.
"""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import copy_context
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar

from keelmq.errors import InvalidRequest

A = TypeVar("A", contravariant=True)

HAVE_YIELD: Final = (inspect.isasyncgenfunction, inspect.isgeneratorfunction)
"""Predicates for functions that contain a `yield`."""

SIGNATURE_OF_BUILTINS: Final = (ValueError, TypeError)
"""Errors that `inspect.signature` raises for a callable without an introspectable signature."""


class AsyncCall(Protocol[A]):
    def __call__(self, argument: A, /) -> Awaitable[Any]: ...


def check_function(name: str, function: object) -> None:
    """Raise InvalidRequest if `function` cannot be called with one argument, or its call would run nothing."""
    if isinstance(function, FunctionType) and _certainly_fits(function):
        return  # looking closer takes 30 µs, which each transaction would pay
    if not callable(function) or inspect.isclass(function):
        raise InvalidRequest("invalid_request", f"{name}: give a function, not {_described(function)}")
    if any(has_yield(each) for each in (function, _called(function)) for has_yield in HAVE_YIELD):
        detail = f"{name}: {_described(function)} has a yield, so calling it would run nothing"
        raise InvalidRequest("invalid_request", detail)
    try:
        signature = inspect.signature(function)
    except SIGNATURE_OF_BUILTINS:
        return
    try:
        signature.bind(None)
    except TypeError as exc:
        detail = f"{name}: {_described(function)} is called with one argument, and takes {signature}: {exc}"
        raise InvalidRequest("invalid_request", detail) from None


def _certainly_fits(function: FunctionType) -> bool:
    """Return whether the code of the function alone shows that it takes one argument, needs no more, and runs."""
    code, defaults = function.__code__, function.__defaults__ or ()
    has_yield = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
    needs_one_at_most = code.co_argcount - len(defaults) <= 1 <= code.co_argcount
    return not has_yield and needs_one_at_most and not code.co_kwonlyargcount and not function.__dict__


def check_plain_function(name: str, function: object) -> None:
    """Raise InvalidRequest unless `function` is a plain function. It is called on the event loop and must not block."""
    if not callable(function) or is_async(function):
        raise InvalidRequest("invalid_request", f"{name}: give a plain function (def), not {_described(function)}")


def is_async(function: object) -> bool:
    """Return whether a call of `function` is known to return an awaitable; a lambda may return one nevertheless."""
    if type(function) is FunctionType and not function.__dict__:  # as `inspect` does, in a tenth of its time
        return bool(function.__code__.co_flags & inspect.CO_COROUTINE)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(_called(function))


class _Threads(ThreadPoolExecutor):
    """A pool that goes on with the threads that it has when no other can start.

    That of the standard library reports such a call as failed and keeps it: a thread that is free later runs it.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if self._threads:
                return
            self._work_queue.get_nowait()  # without a thread nobody else has taken it
            raise


class WorkerThreads:
    """Runs at most `threads_max` plain functions at a time; further calls wait. The owner calls `close`.

    At exit, the interpreter waits for functions that still run.
    """

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._executor: ThreadPoolExecutor | None = None
        self._places = asyncio.Semaphore(threads_max)

    @asynccontextmanager
    async def place(self) -> "AsyncIterator[Place]":
        """Reserve a thread for one call. A cancelled call leaves the thread busy until the function has returned."""
        await self._places.acquire()
        place = Place(self)
        try:
            yield place
        finally:
            place.when_returned(self._places.release)

    def awaitable(self, function: Callable[[A], Any]) -> AsyncCall[A]:
        """Return `function` itself if it is async; otherwise an async function that runs it in a thread.

        The thread has the caller's context. If the plain function returns an awaitable, that is awaited. A cancelled
        call continues until the function has returned, and then has its result.
        """
        if is_async(function):
            return function

        async def call(argument: A) -> Any:
            returned = self.run(function, argument)
            while not returned.done():
                try:
                    await asyncio.wait([returned])
                except asyncio.CancelledError:
                    continue
            result = returned.result()
            return await result if inspect.isawaitable(result) else result

        return call

    def close(self) -> None:
        """Release the threads without waiting for functions that still run."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None

    def run(self, function: Callable[[A], Any], argument: A) -> "asyncio.Future[Any]":
        if self._executor is None:
            self._executor = _Threads(self._threads_max, thread_name_prefix="keelmq")
        return asyncio.get_running_loop().run_in_executor(
            self._executor, copy_context().run, _without_stop_iteration, function, argument
        )


class Place:
    """Tracks the worker thread of one call; see `WorkerThreads.place`."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._threads = threads
        self._returned: asyncio.Future[Any] | None = None

    def awaitable(self, function: Callable[[A], Any]) -> AsyncCall[A]:
        """Wrap `function` as `WorkerThreads.awaitable` does, but end a cancelled call at once; the function runs on."""
        if is_async(function):
            return function

        async def call(argument: A) -> Any:
            self._returned = self._threads.run(function, argument)
            result = await asyncio.shield(self._returned)
            return await result if inspect.isawaitable(result) else result

        return call

    def when_returned(self, then: Callable[[], None]) -> None:
        """Call `then` once no function of this call runs any more."""
        if self._returned is None or self._returned.done():
            then()
        else:
            self._returned.add_done_callback(lambda _: then())


def _without_stop_iteration(function: Callable[[A], Any], argument: A) -> Any:
    try:
        return function(argument)
    except StopIteration as exc:  # a future cannot carry StopIteration: the awaiting task would wait for ever
        raise RuntimeError("the function raised StopIteration") from exc


def _called(function: object) -> object:
    """Return the `__call__` method that runs when `function` is called, if it is an object with one."""
    return getattr(type(function), "__call__", None)  # noqa: B004


def _described(function: object) -> str:
    name = getattr(function, "__qualname__", None)
    if inspect.isclass(function):
        return f"the class {name}"
    if name is not None:
        return f"{'async def' if inspect.iscoroutinefunction(function) else 'def'} {name}"
    return f"an object of type {type(function).__name__}"
