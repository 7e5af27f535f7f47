"""The offsets of one queue that a group has handed out: their number, and the lowest, without visiting all of them."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final

_STALE_MAX: Final = 64
"""The heap may hold this many offsets more than twice the handed-out ones before it is rebuilt without returned
offsets.
"""


class HeldOffsets:
    """The handed-out offsets of one queue, in memory; the leases in the index are their source."""

    def __init__(self) -> None:
        self._out: set[int] = set()
        self._heap: list[int] = []
        """All offsets that are handed out, and some that were."""

    def __len__(self) -> int:
        return len(self._out)

    def change(self, before: Iterable[int], after: Iterable[int]) -> None:
        """Replace the handed-out offsets `before` by `after`."""
        self._out.difference_update(before)
        self._out.update(after)
        for offset in set(after).difference(before):
            heappush(self._heap, offset)
        if len(self._heap) > 2 * len(self._out) + _STALE_MAX:
            self._heap = list(self._out)
            heapify(self._heap)

    def first(self) -> int | None:
        while self._heap and self._heap[0] not in self._out:
            heappop(self._heap)
        return self._heap[0] if self._heap else None
