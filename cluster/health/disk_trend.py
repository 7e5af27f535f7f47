"""Rate at which the disk of the log fills up: the free space of the last hour, a measurement a minute."""

from collections import deque
from statistics import linear_regression
from typing import Final

SAMPLE_S: Final = 60.0
WINDOW_S: Final = 3_600.0
KNOWN_AFTER_S: Final = 600.0
"""Time that measurements must span: within less, files that come and go would look like a trend."""


class DiskTrend:
    """Owns the measurements: at most one a minute, of the last hour."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def note(self, now_s: float, free_bytes: int) -> None:
        """Take a measurement at `now_s` of a monotonic clock; none is kept within a minute of the last one."""
        samples = self._samples
        if samples and now_s < samples[-1][0] + SAMPLE_S:
            return
        samples.append((now_s, free_bytes))
        while samples[0][0] < now_s - WINDOW_S:
            samples.popleft()

    @property
    def fill_bytes_per_s(self) -> float:
        """Bytes per second by which the free space shrinks, by the line of least squares; negative while it grows, 0
        until ten minutes are known.
        """
        samples = self._samples
        if not samples or samples[-1][0] - samples[0][0] < KNOWN_AFTER_S:
            return 0.0
        return -linear_regression(*zip(*samples, strict=True)).slope
