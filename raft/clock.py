"""The time a leader stamps on entries: it never goes back, and is never ahead of the clocks of a majority.

No wall clock is stamped. The replicated clock goes on at the pace of the monotonic clock from where it was, and follows
the time that a majority of wall clocks has reached (raft/clock_agreement.py) when that is later. If a majority is not
heard, it just goes on. If it was carried ahead, it goes on from there as well: waiting for the wall clocks to catch up
would stop everything that is due by time.
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
    """Callable: milliseconds since 1970, never below the time of the last applied entry, nor what it said before.

    `agreed_ms()` is the time that a majority of wall clocks has reached, or None. Without it, and without any entry
    yet, the time is not known: then this is the own wall clock, which may be wrong, and nothing is held to it.
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
        """The time that a new entry gets; None until an entry or a majority of clocks has said what time it is."""
        now_ms = self()
        return now_ms if self._anchor_ms else None

    def lead_ms(self) -> float | None:
        """How far the replicated clock is ahead of the agreed time; None while that is not known."""
        agreed_ms = self._agreed_ms()
        return None if agreed_ms is None else self() - agreed_ms
