"""How fast checks are handed out: producers go first, also when very many transactions are undecided."""

from collections.abc import Callable
from typing import Final

SCAN_SHARE: Final = 20
"""A scan that took some time is followed by a pause of so many times as long."""


class CheckPace:
    """At most `per_second` checks on average, and a second's worth of them at once. `steady_ms` is a monotonic clock.

    A check costs the leader two requests and two entries, so this bounds what a storm of them takes from producers.
    """

    def __init__(self, per_second: int, steady_ms: Callable[[], int]) -> None:
        self._per_second = per_second
        self._steady_ms = steady_ms
        self._left = float(per_second)
        self._counted_at_ms: int | None = None

    def refill(self) -> None:
        """Account for the time that has passed."""
        now_ms = self._steady_ms()
        if self._counted_at_ms is not None:
            passed_ms = max(now_ms - self._counted_at_ms, 0)
            self._left = min(self._left + passed_ms * self._per_second / 1000, self._per_second)
        self._counted_at_ms = now_ms

    @property
    def left(self) -> int:
        """So many may be handed out now."""
        return max(int(self._left), 0)

    @property
    def used_up(self) -> bool:
        return self._left < 1

    def take(self) -> None:
        """One check was handed out."""
        self._left -= 1
