"""How long answers take, and what follows from it: what is too late to be sent, and how many requests go at once."""

from typing import Final

MEAN_SHARE: Final = 1 / 8
DEVIATION_SHARE: Final = 1 / 4
DEVIATIONS: Final = 4
SLACK_MIN: Final = 1 / 4
"""Of the mean: answers that have all taken the same time may still take a little longer."""
LEAST_SHARE: Final = 1 / 256
"""The shortest answer is forgotten this slowly, in case the way has become longer."""
FRESH_SHARE: Final = 0.25
"""What has waited for less than this share of its budget is sent, however long answers take: a slow spell must not end
all sending, for nothing else would find out that it is over."""

WINDOW_MIN: Final = 2
GROWS_BELOW: Final = 1.5
SHRINKS_ABOVE: Final = 2.5

RATE_SPAN_S: Final = 0.1
RATE_SHARE: Final = 1 / 4


class AnswerTime:
    """A moving estimate of the time from sending a request to its answer, by the rule of RFC 6298. Loop-only."""

    __slots__ = ("_deviation_s", "_mean_s", "least_s")

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._deviation_s = 0.0
        self.least_s = 0.0
        """About the shortest of late: what the way alone takes. 0 while nothing is known."""

    @property
    def expected_s(self) -> float:
        """Within this time nearly every answer comes; 0 while nothing is known."""
        return self._mean_s + max(DEVIATIONS * self._deviation_s, SLACK_MIN * self._mean_s)

    def took(self, duration_s: float) -> None:
        """An answer came after `duration_s`."""
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
        """No answer came within `duration_s`: it would have taken longer."""
        if self._mean_s and duration_s > self._mean_s:
            self._deviation_s += DEVIATION_SHARE * (duration_s - self._mean_s - self._deviation_s)
            self._mean_s += MEAN_SHARE * (duration_s - self._mean_s)

    def needed_s(self, budget_s: float) -> float:
        """How much of a budget has to be left when a request is sent."""
        return min(self.expected_s, (1 - FRESH_SHARE) * budget_s)


class Window:
    """How many requests may be under way at once: `size`, from 2 up to `size_max`.

    It grows while requests leave as full as they may and answers come about as soon as the shortest did: then they wait
    for the way, not for the broker. It shrinks when answers take much longer, and falls to 2 when there are none.
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
    """Bytes that are answered per second while more of them wait; None while nothing waits, for then nobody knows."""

    __slots__ = ("_answered_bytes", "_since_s", "bytes_per_s")

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._answered_bytes = 0
        self.bytes_per_s: float | None = None

    def answered(self, size: int, now_s: float, *, more_waits: bool) -> None:
        if not more_waits:
            self._since_s = self.bytes_per_s = None
            return
        if self._since_s is None:  # what came before this answer was not counted
            self._since_s, self._answered_bytes = now_s, 0
            return
        self._answered_bytes += size
        span_s = now_s - self._since_s
        if span_s >= RATE_SPAN_S:
            rate = self._answered_bytes / span_s
            before = self.bytes_per_s
            self.bytes_per_s = rate if before is None else before + RATE_SHARE * (rate - before)
            self._since_s, self._answered_bytes = now_s, 0
