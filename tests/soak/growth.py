"""The criterion of the soak: whether a figure grows.

Growth is the slope of the last two thirds of the samples, by Theil and Sen (the median of the slopes of all pairs),
times their duration. The first third is the warm-up: caches, memtables and the first retention fill meanwhile.
Sawteeth (segments go and indexes are compacted in steps) and a few outliers do not move the median, as they would move
a difference of two samples or a least-squares line, and a leak moves it fully.
"""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final, NamedTuple

MIB: Final = 1 << 20

WARM_UP: Final = 1 / 3
PAIRS_SAMPLES_MAX: Final = 240
"""Maximum number of samples to compare, evenly chosen: the number of pairs grows with its square."""


class Sample(NamedTuple):
    """The value of one metric of one node at one time."""

    at_s: float
    value: float


class Growth(NamedTuple):
    per_s: float
    duration_s: float

    @property
    def total(self) -> float:
        return self.per_s * self.duration_s


def growth_of(samples: Sequence[Sample]) -> Growth:
    """Return the growth after the warm-up. Raises ValueError for less than three samples."""
    if len(samples) < 3:
        raise ValueError(f"{len(samples)} samples do not show whether anything grows")
    begin_s = samples[0].at_s + (samples[-1].at_s - samples[0].at_s) * WARM_UP
    counted = [each for each in samples if each.at_s >= begin_s]
    step = max(1, len(counted) // PAIRS_SAMPLES_MAX)
    chosen = counted[::step]
    slopes = [(b.value - a.value) / (b.at_s - a.at_s) for a, b in combinations(chosen, 2) if b.at_s > a.at_s]
    return Growth(median(slopes), counted[-1].at_s - counted[0].at_s)
