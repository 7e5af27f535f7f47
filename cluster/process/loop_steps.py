"""An event loop for tests that measures the processor time of each of its steps, and logs the long ones.

No other request is served while a step runs, so no step may take long. The loop measures the processor time of its
thread, not wall time, so that other work on the machine makes no step longer. It is asyncio's own loop in Python,
several times slower than the loop that nodes use otherwise.
"""

import asyncio
import gc
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

FRAMES_MAX: Final = 25
"""Number of innermost stack frames that are logged."""
NAME_LENGTH_MAX: Final = 300


def stack_of(thread: int) -> str:
    """Return the innermost frames of a thread's stack in lines. No frame is held while they are written, or after: it
    would hold what is in it, such as an iterator that keeps the index open after it was closed.
    """
    frame, places = sys._current_frames().get(thread), list[tuple[str, int, str]]()
    while frame is not None and len(places) < FRAMES_MAX:
        places.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    del frame
    return "".join(traceback.format_list([traceback.FrameSummary(*place) for place in reversed(places)])).rstrip()


class StepMeter:
    """Measures the steps of one loop in the loop's thread. Owns a second thread, which records the stack of long steps.

    The time of a garbage collection is not counted: it hits the step that makes the last of 50,000 objects, most of
    which other steps have made.
    """

    def __init__(self, bound_ms: int) -> None:
        self.bound_ms = bound_ms
        self.longest_ms = 0.0
        self.longest_collection_ms = 0.0
        """The longest garbage collection, which is not part of any step."""
        self.long_steps = 0
        """Number of steps that took longer than `bound_ms`."""
        self._step = 0
        self._is_running = False
        self._loop_thread = threading.get_ident()
        self._seen: tuple[int, str] = (0, "")
        self._collection_begun_s = 0.0
        self._collecting_s = 0.0
        gc.callbacks.append(self._on_collection)
        threading.Thread(target=self._look, name="loop-steps", daemon=True).start()

    def run(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Run one step of the loop and measure it."""
        self._loop_thread = threading.get_ident()
        self._step += 1
        self._is_running = True
        self._collecting_s = 0.0
        begun_s = time.thread_time()
        try:
            callback(*arguments)
        finally:
            took_ms = (time.thread_time() - begun_s - self._collecting_s) * 1000
            self._is_running = False
            self.longest_ms = max(self.longest_ms, took_ms)
            if took_ms > self.bound_ms:
                self._tell(took_ms, callback)

    def _on_collection(self, phase: str, _: object) -> None:
        if threading.get_ident() == self._loop_thread:
            if phase == "start":
                self._collection_begun_s = time.thread_time()
            else:
                took_s = time.thread_time() - self._collection_begun_s
                self._collecting_s += took_s
                self.longest_collection_ms = max(self.longest_collection_ms, took_s * 1000)

    def _tell(self, took_ms: float, callback: Callable[..., object]) -> None:
        self.long_steps += 1
        step, stack = self._seen
        where = f", among other things here:\n{stack}" if step == self._step else ""
        name = repr(getattr(callback, "__self__", callback))[:NAME_LENGTH_MAX]
        logger.error("a step of the event loop took %.0f ms of processor time: %s%s", took_ms, name, where)

    def _look(self) -> None:
        before = 0
        while True:
            time.sleep(self.bound_ms / 2000)
            step = self._step if self._is_running else 0
            if step and step == before:
                self._seen = step, stack_of(self._loop_thread)
            before = step


class MeasuredEventLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, which runs every callback as a step of `meter`. Owns the meter."""

    def __init__(self, bound_ms: int) -> None:
        self.meter = StepMeter(bound_ms)
        super().__init__()

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon(self.meter.run, callback, *args, context=context)

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return super().call_soon_threadsafe(self.meter.run, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:  # type: ignore[override]
        return super().call_at(when, self.meter.run, callback, *args, context=context)

    # Transports of this loop register their sockets by these two private methods only.

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
        return super()._add_reader(fd, self.meter.run, callback, *args)  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:
        return super()._add_writer(fd, self.meter.run, callback, *args)  # type: ignore[misc]


def running_meter() -> StepMeter | None:
    """Return the meter of the running loop; None if the loop does not measure its steps."""
    loop = asyncio.get_running_loop()
    return loop.meter if isinstance(loop, MeasuredEventLoop) else None
