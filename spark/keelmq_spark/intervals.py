"""Sets of offsets as sorted, disjoint ranges [begin, end)."""

from collections.abc import Iterator

Ranges = list[list[int]]


def missing(ranges: Ranges, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [begin, end) that are in none of `ranges`."""
    for low, high in ranges:
        if high <= begin:
            continue
        if low >= end:
            break
        if begin < low:
            yield begin, low
        begin = high
    if begin < end:
        yield begin, end


def add(ranges: Ranges, begin: int, end: int) -> None:
    """Add [begin, end) to `ranges`, and join it with adjacent ranges."""
    if ranges and ranges[-1][0] <= begin <= ranges[-1][1]:  # most commits continue where the last one ended
        ranges[-1][1] = max(ranges[-1][1], end)
        return
    kept = [r for r in ranges if r[1] < begin or r[0] > end]
    joined = [r for r in ranges if not (r[1] < begin or r[0] > end)]
    low = min([begin, *(r[0] for r in joined)])
    high = max([end, *(r[1] for r in joined)])
    ranges[:] = sorted([*kept, [low, high]])
