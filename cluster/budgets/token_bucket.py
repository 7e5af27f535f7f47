"""A token bucket that may owe: it fills at a rate, and what is taken beyond its content delays what comes next."""

import math
from typing import Final

BURST_S: Final = 1.0
"""Seconds for which a bucket fills: what a client that was silent may take at once."""
TURNS_S_MAX: Final = BURST_S
"""Seconds over which the returns of those who were refused are spread. A bucket fills for as long while nobody comes,
so nothing is lost if they never come."""
ROUNDING_S: Final = 1e-6
"""Seconds by which the sum of many small amounts may be off."""


class TokenBucket:
    """Holds up to BURST_S times `rate` tokens, and is full at first. Its only state is the time at which it is full
    again, so taking is one addition, and nothing has to fill it.
    """

    __slots__ = ("_full_s", "_last_s", "_token_s", "_turn_s", "rate")

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._token_s = 1 / rate
        self._full_s = float("-inf")
        self._last_s = 0.0
        """Seconds in which the bucket fills by the amount that was taken last."""
        self._turn_s = float("-inf")
        """Time at which whoever was refused last may come again."""

    def wait_s(self, now_s: float, tokens: int) -> float:
        """Return the seconds until the bucket holds `tokens`, at most a full one; 0 or less when it does."""
        return self._full_s + tokens * self._token_s - BURST_S - ROUNDING_S - now_s

    def take(self, now_s: float, tokens: float) -> None:
        """Take the tokens, whether the bucket holds them or not."""
        self._last_s = tokens * self._token_s
        self._full_s = max(self._full_s, now_s) + self._last_s

    def turn_s(self, now_s: float, wait_s: float) -> float:
        """Return the seconds after which a request that has to wait for `wait_s` may come again: behind those that were
        told a time before, if each takes as much as the last one did. Otherwise all would come back at once, for what
        is enough for one.
        """
        earliest_s = now_s + wait_s
        self._turn_s = min(max(self._turn_s + self._last_s, earliest_s), earliest_s + TURNS_S_MAX)
        return self._turn_s - now_s

    def left(self, now_s: float) -> int:
        """Return the tokens that the bucket holds; negative while it owes."""
        return math.floor(min(BURST_S, now_s + BURST_S - self._full_s + ROUNDING_S) * self.rate)

    def is_full(self, now_s: float) -> bool:
        return self._full_s <= now_s
