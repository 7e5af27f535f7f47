"""Limits the rate of checks, so that producers go first even when very many transactions are undecided."""

from collections.abc import Callable
from typing import Final

SCAN_SHARE: Final = 20
"""Ratio of the pause after a scan to the time that the scan took."""


class CheckPace:
    """Allows `per_second` checks on average, and at most one second's worth at once. `steady_ms` is a monotonic clock.

    A check costs the leader two requests and two entries: the pace bounds how much a storm of checks slows producers.
    """

    def __init__(self, per_second: int, steady_ms: Callable[[], int]) -> None:
        self._per_second = per_second
        self._steady_ms = steady_ms
        self._left = float(per_second)
        self._counted_at_ms: int | None = None

    def refill(self) -> None:
        """Allow further checks for the time that has passed since the last call."""
        now_ms = self._steady_ms()
        if self._counted_at_ms is not None:
            passed_ms = max(now_ms - self._counted_at_ms, 0)
            self._left = min(self._left + passed_ms * self._per_second / 1000, self._per_second)
        self._counted_at_ms = now_ms

    @property
    def left(self) -> int:
        """Number of checks that may be handed out now."""
        return max(int(self._left), 0)

    @property
    def used_up(self) -> bool:
        return self._left < 1

    def take(self) -> None:
        """Count one check that was handed out."""
        self._left -= 1
