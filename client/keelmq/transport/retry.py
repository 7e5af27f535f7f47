"""Time budgets and backoff. Durations are milliseconds in the API and seconds (loop time) inside."""

import random
import time
from collections.abc import Callable

Clock = Callable[[], float]
"""Returns monotonic time in seconds."""


class Deadline:
    """A point in time by which a call has to end, including all its tries."""

    __slots__ = ("_clock", "at_s", "budget_ms")

    def __init__(self, budget_ms: float, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self.budget_ms = budget_ms
        self.at_s = clock() + budget_ms / 1000

    @classmethod
    def until(cls, at_s: float, budget_ms: float, clock: Clock = time.monotonic) -> "Deadline":
        """Return a deadline at clock time `at_s`; `budget_ms` only appears in error messages."""
        deadline = cls(budget_ms, clock)
        deadline.at_s = at_s
        return deadline

    def remaining_s(self) -> float:
        """Return the seconds left, never negative."""
        left = self.at_s - self._clock()
        return left if left > 0 else 0.0


class Backoff:
    """Exponential pauses with jitter: between half and all of `base * 2^n`, at most `max`.

    Jitter keeps clients that lost the same leader at the same moment from coming back in step.
    """

    __slots__ = ("_base_ms", "_max_ms", "_next_ms", "_random")

    def __init__(self, base_ms: float, max_ms: float, rng: Callable[[], float] = random.random) -> None:
        self._base_ms = base_ms
        self._max_ms = max_ms
        self._next_ms = base_ms
        self._random = rng

    def next_s(self) -> float:
        """Return the seconds to pause now, and double the following pause."""
        pause_ms = self._next_ms * (0.5 + self._random() / 2)
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return pause_ms / 1000

    def reset(self) -> None:
        self._next_ms = self._base_ms
