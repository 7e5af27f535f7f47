"""The time a leader stamps on entries: wall time that never stands still.

The replicated clock never goes back, nor does what one node makes of it: a wall clock that leaps to and fro would undo
what was due. If it was carried ahead by a node whose wall clock was ahead, waiting for the own wall clock to catch up
would stop everything that is due by time; so it goes on from where it is, at the pace of the monotonic clock.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from raft.library import now


class Clock(NamedTuple):
    """Where a node's time comes from."""

    wall_ms: Callable[[], int]
    """Milliseconds since 1970; may leap, in both directions."""
    steady_s: Callable[[], float] = now
    """Seconds from any beginning; never leaps."""
    worked_s: Callable[[], float] = time.thread_time
    """Seconds of processor time that the thread which asks has used."""


SYSTEM_CLOCK: Final = Clock(lambda: time.time_ns() // 1_000_000)


class ReplicatedClock:
    """Callable: milliseconds since 1970, never below the time of the last applied entry, nor what it said before."""

    def __init__(self, clock: Clock, applied_ms: Callable[[], int]) -> None:
        self._clock = clock
        self._applied_ms = applied_ms
        self._anchor_ms = 0
        self._anchored_at_s = clock.steady_s()

    def __call__(self) -> int:
        steady_s = self._clock.steady_s()
        onward_ms = self._anchor_ms + int((steady_s - self._anchored_at_s) * 1000)
        ahead_ms = max(self._applied_ms(), self._clock.wall_ms())
        if ahead_ms <= onward_ms:
            return onward_ms
        self._anchor_ms, self._anchored_at_s = ahead_ms, steady_s
        return ahead_ms
