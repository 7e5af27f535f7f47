"""The budget of each fuzz test: its examples, and the limits of an example's time and of memory.

FUZZ_SCALE multiplies the examples: 1 in the normal test run, more in `make fuzz`.
"""

import functools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from hypothesis import HealthCheck, settings

SCALE: Final = float(os.environ.get("FUZZ_SCALE", "1"))
HANG_S: Final = 20.0
"""Seconds after which an example hangs: none needs a hundredth of it, also on a busy machine."""
MEMORY_BYTES_MAX: Final = 160 << 20
"""Memory that a module's tests may add to the process, Hypothesis included. No input is larger than some KiB."""

Test = TypeVar("Test", bound=Callable[..., None])


def fuzz(examples: int) -> Callable[[Test], Test]:
    """Return a decorator of a `@given` test: it runs `examples` (times the scale), each of which has to end in time."""

    def decorate(test: Test) -> Test:
        handle: Any = test.hypothesis  # type: ignore[attr-defined]
        handle.inner_test = _in_time(handle.inner_test)
        limit = settings(
            max_examples=max(1, int(examples * SCALE)),
            # Bytes that fail to be a log are slow to make and much is thrown away: this is intended.
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        )
        return limit(test)

    return decorate


class Hang(BaseException):
    """An example did not end in time. Not an Exception, so that no code under test catches it."""


def _in_time(inner: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(inner)
    def run(*arguments: Any, **named: Any) -> None:
        with in_time(HANG_S):
            inner(*arguments, **named)

    return run


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """Raise Hang in the main thread when the block does not end within `seconds`."""

    def on_alarm(number: int, frame: object) -> None:
        raise Hang(f"no end within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def in_memory(limit_bytes: int) -> Iterator[None]:
    """Raise AssertionError when the process needed `limit_bytes` more than it had, at any moment of the block."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status_bytes("VmRSS")
    yield
    grown = _status_bytes("VmHWM") - before
    assert grown <= limit_bytes, f"{grown >> 20} MiB were needed, {limit_bytes >> 20} MiB are allowed"


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise LookupError(name)
