"""Estimates answer times, and derives which requests are too late to send and how many may be in flight."""

from typing import Final

MEAN_SHARE: Final = 1 / 8
DEVIATION_SHARE: Final = 1 / 4
DEVIATIONS: Final = 4
SLACK_MIN: Final = 1 / 4
"""Minimum slack as a share of the mean: even after equal answer times, an answer may take a little longer."""
LEAST_SHARE: Final = 1 / 256
"""Share by which the shortest answer time moves towards each longer one, in case the round trip has become longer."""
FRESH_SHARE: Final = 0.25
"""A request that has waited for less than this share of its budget is sent, however slow answers are. Otherwise a slow
spell would end all sending, and nothing would find out that the spell is over."""

WINDOW_MIN: Final = 2
GROWS_BELOW: Final = 1.5
SHRINKS_ABOVE: Final = 2.5

RATE_SPAN_S: Final = 0.1
RATE_SHARE: Final = 1 / 4


class AnswerTime:
    """Estimates the time from sending a request to its answer as RFC 6298 does. Belongs to one event loop."""

    __slots__ = ("_deviation_s", "_mean_s", "least_s")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        self.least_s = 0.0
        """Approximate shortest recent answer time, which is the bare round trip; 0 before the first answer."""

    @property
    def expected_s(self) -> float:
        """Time in seconds within which nearly every answer arrives; 0 before the first answer."""
        return self._mean_s + max(DEVIATIONS * self._deviation_s, SLACK_MIN * self._mean_s)

    def took(self, duration_s: float) -> None:
        """Record an answer after `duration_s`."""
        if not self._mean_s:
            self._mean_s, self._deviation_s, self.least_s = duration_s, duration_s / 2, duration_s
            return
        self._deviation_s += DEVIATION_SHARE * (abs(duration_s - self._mean_s) - self._deviation_s)
        self._mean_s += MEAN_SHARE * (duration_s - self._mean_s)
        if duration_s < self.least_s:
            self.least_s = duration_s
        else:
            self.least_s += LEAST_SHARE * (duration_s - self.least_s)

    def lost(self, duration_s: float) -> None:
        """Record that no answer came within `duration_s`; it would have taken longer."""
        if self._mean_s and duration_s > self._mean_s:
            self._deviation_s += DEVIATION_SHARE * (duration_s - self._mean_s - self._deviation_s)
            self._mean_s += MEAN_SHARE * (duration_s - self._mean_s)

    def needed_s(self, budget_s: float) -> float:
        """Return the part of a budget that must be left when a request is sent, in seconds."""
        return min(self.expected_s, (1 - FRESH_SHARE) * budget_s)


class Window:
    """Limits the number of requests in flight: `size`, from 2 up to `size_max`.

    The window grows while requests leave full and answers arrive about as soon as the shortest one did, because
    requests then wait for the round trip and not for the broker. It shrinks when answers take much longer, and falls to
    2 when a request fails.
    """

    __slots__ = ("_credit", "_size_max", "size")

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._credit = 0.0
        self.size = min(WINDOW_MIN, size_max)

    def answered(self, took_s: float, least_s: float, *, full: bool) -> None:
        if took_s > SHRINKS_ABOVE * least_s:
            self._credit = 0.0
            self.size = max(self.size - 1, min(WINDOW_MIN, self._size_max))
        elif full and took_s <= GROWS_BELOW * least_s and self.size < self._size_max:
            self._credit += 1 / self.size
            if self._credit >= 1:
                self._credit = 0.0
                self.size += 1

    def failed(self) -> None:
        self._credit = 0.0
        self.size = min(WINDOW_MIN, self._size_max)


class ServiceRate:
    """Measures the bytes answered per second while more bytes are pending; otherwise the rate is unknown (None)."""

    __slots__ = ("_answered_bytes", "_since_s", "bytes_per_s")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._answered_bytes = 0
        self.bytes_per_s: float | None = None

    def answered(self, size: int, now_s: float, *, more_waits: bool) -> None:
        if not more_waits:
            self._since_s = self.bytes_per_s = None
            return
        if self._since_s is None:  # bytes answered before this answer were not counted
            self._since_s, self._answered_bytes = now_s, 0
            return
        self._answered_bytes += size
        span_s = now_s - self._since_s
        if span_s >= RATE_SPAN_S:
            rate = self._answered_bytes / span_s
            before = self.bytes_per_s
            self.bytes_per_s = rate if before is None else before + RATE_SHARE * (rate - before)
            self._since_s, self._answered_bytes = now_s, 0
