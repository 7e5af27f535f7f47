"""Sets of offsets as sorted, disjoint ranges [begin, end), none adjacent to another."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

Ranges = list[list[int]]

RANGES_MAX: Final = 10_000
"""Maximum number of ranges of a set; beyond it, the first two are joined, and the gap between them is forgotten."""


def missing(ranges: Ranges, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [begin, end) that are in none of `ranges`."""
    for low, high in ranges[bisect_right(ranges, begin, key=_end) :]:
        if low >= end:
            break
        if begin < low:
            yield begin, low
        begin = high
    if begin < end:
        yield begin, end


def has(ranges: Ranges, offset: int) -> bool:
    """Return whether the offset is in `ranges`."""
    at = bisect_right(ranges, offset, key=_begin) - 1
    return at >= 0 and offset < ranges[at][1]


def add(ranges: Ranges, begin: int, end: int) -> None:
    """Add [begin, end) to `ranges`, and join it with adjacent ranges."""
    if begin >= end:
        return
    first, last = bisect_left(ranges, begin, key=_end), bisect_right(ranges, end, key=_begin)
    touched = ranges[first:last]
    if touched:
        begin, end = min(begin, touched[0][0]), max(end, touched[-1][1])
    ranges[first:last] = [[begin, end]]
    if len(ranges) > RANGES_MAX:
        ranges[:2] = [[ranges[0][0], ranges[1][1]]]


def add_except(ranges: Ranges, begin: int, end: int, left_out: Iterable[int]) -> None:
    """Add [begin, end) without the offsets `left_out`. Of these, those that are in `ranges` stay there."""
    for offset in sorted(left_out):
        if begin <= offset < end:
            add(ranges, begin, offset)
            begin = offset + 1
    add(ranges, begin, end)


def remove(ranges: Ranges, offset: int) -> None:
    """Remove one offset from `ranges`."""
    at = bisect_right(ranges, offset, key=_begin) - 1
    if at >= 0 and offset < ranges[at][1]:
        begin, end = ranges[at]
        ranges[at : at + 1] = [part for part in ([begin, offset], [offset + 1, end]) if part[0] < part[1]]


def _begin(each: list[int]) -> int:
    return each[0]


def _end(each: list[int]) -> int:
    return each[1]
