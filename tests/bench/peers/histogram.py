"""Latencies as the clients report them: counts in buckets whose bounds grow by 2 %; a quantile is right to 1 %."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

BUCKET_FACTOR: Final = 1.02
UNITS_PER_MS: Final = 10_000
"""The first bucket ends at 0.1 us; all clients compute the same buckets."""

Buckets = Mapping[int, int]


def bucket_of(latency_ms: float) -> int:
    return int(math.log(max(latency_ms * UNITS_PER_MS, 1.0)) / math.log(BUCKET_FACTOR))


def middle_ms(bucket: int) -> float:
    """Return the latency that stands for a bucket: the geometric middle of its bounds."""
    return float(BUCKET_FACTOR ** (bucket + 0.5) / UNITS_PER_MS)


def merged(all_buckets: Iterable[Buckets]) -> dict[int, int]:
    total: dict[int, int] = {}
    for buckets in all_buckets:
        for bucket, count in buckets.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def quantile_ms(buckets: Buckets, share: float) -> float:
    """Return the latency that `share` of the counted messages do not exceed; NaN without messages."""
    needed = share * sum(buckets.values())
    reached = 0
    for bucket in sorted(buckets):
        reached += buckets[bucket]
        if reached >= needed:
            return middle_ms(bucket)
    return math.nan


def distribution(buckets: Buckets) -> list[tuple[float, float]]:
    """Return the points of the cumulative distribution: latency in ms, share of messages at or below it."""
    total, reached, points = sum(buckets.values()), 0, []
    for bucket in sorted(buckets):
        reached += buckets[bucket]
        points.append((middle_ms(bucket), reached / total))
    return points
