"""A loop whose clock stands still while anything can run, and then jumps to the next timer: 15 minutes take no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

IDLE_S = 30 * 24 * 3_600.0
"""Longer than any timer of a test: when nothing comes before it, nothing will ever happen."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > IDLE_S:
            raise RuntimeError("nothing is left to run: the test waits for what never comes")
        if timeout > 0:
            self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run_in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main`. No thread and no socket can wake it."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
