"""The time a leader stamps on entries: it never goes back, and is never ahead of the clocks of a majority.

No wall clock is stamped directly. The replicated clock advances at the pace of the monotonic clock from its last
value, and moves ahead to the time that a majority of wall clocks has reached (raft/health/clock_agreement.py) when that
is later. When no majority is heard, the clock keeps advancing at the monotonic pace. When the clock was carried ahead,
it also keeps advancing from there: waiting for the wall clocks to catch up would stop everything that is due by time.
"""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from raft.library import now


class Clock(NamedTuple):
    """The sources of a node's time."""

    wall_ms: Callable[[], int]
    """Returns milliseconds since 1970; may leap in both directions."""
    steady_s: Callable[[], float] = now
    """Returns seconds from an arbitrary beginning; never leaps."""
    worked_s: Callable[[], float] = time.thread_time
    """Returns the seconds of processor time that the calling thread has used."""


SYSTEM_CLOCK: Final = Clock(lambda: time.time_ns() // 1_000_000)


class ReplicatedClock:
    """Callable that returns milliseconds since 1970, never less than the last applied entry's time or an earlier
    result.

    `agreed_ms()` is the time that a majority of wall clocks has reached, or None. While it is None and no entry is
    applied, the time is not known: the call then returns this node's wall clock, which may be wrong, and later results
    are not held to it.
    """

    def __init__(self, clock: Clock, applied_ms: Callable[[], int], agreed_ms: Callable[[], float | None]) -> None:
        self._clock = clock
        self._applied_ms = applied_ms
        self._agreed_ms = agreed_ms
        self._anchor_ms = 0.0
        self._anchored_at_s = clock.steady_s()

    def __call__(self) -> int:
        steady_s = self._clock.steady_s()
        onward_ms = self._anchor_ms + (steady_s - self._anchored_at_s) * 1000 if self._anchor_ms else 0.0
        agreed_ms = self._agreed_ms()
        ahead_ms = max(self._applied_ms(), 0.0 if agreed_ms is None else agreed_ms)
        if ahead_ms > onward_ms:
            self._anchor_ms, self._anchored_at_s = ahead_ms, steady_s
            return int(ahead_ms)
        return int(onward_ms) if onward_ms else self._clock.wall_ms()

    def stamp_ms(self) -> int | None:
        """Return the time for a new entry in ms since 1970; None until an entry or a majority of clocks has given a
        time.
        """
        now_ms = self()
        return now_ms if self._anchor_ms else None

    def lead_ms(self) -> float | None:
        """Return by how many ms the replicated clock is ahead of the agreed time; None while no time is agreed."""
        agreed_ms = self._agreed_ms()
        return None if agreed_ms is None else self() - agreed_ms
