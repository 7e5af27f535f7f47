"""Staged writes of the index, before they are written: values by key, keys in order, and deleted ranges.

Reading or writing one key costs as much as in a dict: keys are sorted only for a read in order, and then only the keys
staged since the last such read. So a scan costs what it yields, however much is staged.
"""

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import Final

SORT_SHARE: Final = 8
"""New keys are sorted in together if they are more than one in this many; fewer are inserted one by one."""


class StagedWrites:
    """The staged writes. `values` may be read and written directly; only `delete_range` and `clear` may remove keys
    from it.

    A value of None deletes the key. A deleted range hides stored pairs, but no pairs that are staged afterwards.
    """

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.removals = 0
        """Number of removals so far. While this number and `len(values)` are unchanged, so are the keys."""
        self._sorted: list[bytes] = []
        self.range_begins: list[bytes] = []
        """Begins of the deleted ranges, which do not overlap: in order, as their ends are."""
        self._range_ends: list[bytes] = []

    def __bool__(self) -> bool:
        return bool(self.values or self.range_begins)

    def keys(self) -> list[bytes]:
        """Return all keys in order; the list is valid until the next change."""
        keys = self._sorted
        new = len(self.values) - len(keys)
        if new:
            newest = islice(reversed(self.values), new)
            if new * SORT_SHARE > len(keys):
                keys.extend(newest)
                keys.sort()
            else:
                for key in newest:
                    insort(keys, key)
        return keys

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete begin <= key < end, staged and stored."""
        if begin >= end:
            return
        keys = self.keys()
        first, last = bisect_left(keys, begin), bisect_left(keys, end)
        for key in keys[first:last]:
            del self.values[key]
        del keys[first:last]
        self.removals += 1
        first, last = bisect_left(self._range_ends, begin), bisect_right(self.range_begins, end)
        if first < last:
            begin, end = min(begin, self.range_begins[first]), max(end, self._range_ends[last - 1])
        self.range_begins[first:last] = [begin]
        self._range_ends[first:last] = [end]

    @property
    def deleted_ranges(self) -> list[tuple[bytes, bytes]]:
        return list(zip(self.range_begins, self._range_ends, strict=True))

    def deleted_range(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the deleted range that hides the stored key; None if no range does."""
        place = bisect_right(self.range_begins, key) - 1
        if place < 0 or key >= self._range_ends[place]:
            return None
        return self.range_begins[place], self._range_ends[place]

    def clear(self) -> None:
        self.values.clear()
        self._sorted.clear()
        self.range_begins.clear()
        self._range_ends.clear()
        self.removals += 1
