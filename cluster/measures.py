"""Counts and durations of hot paths: an addition, or a search in a short list and two additions, without a lock."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


class Count:
    """A number that only grows. Use in one thread only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        self.value += amount


class Durations:
    """The durations of one kind of event. Use in one thread only."""

    __slots__ = ("_bounds_s", "counts", "sum_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        """Create empty buckets. Each holds the durations up to its bound; one more holds all longer ones."""
        self._bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds_s, seconds)] += 1
        self.sum_s += seconds

    def add_to(self, family: HistogramMetricFamily, labels: Sequence[str]) -> None:
        """Add the buckets to the family as one series."""
        bounds = map(floatToGoString, (*self._bounds_s, inf))
        family.add_metric(labels, list(zip(bounds, accumulate(self.counts), strict=True)), self.sum_s)
