"""What of the log the state still points at: how many blocks per range of positions.

Rows, timers and the halves of transactions point at message blocks in log records. Whatever lies before the first range
that anything points at may be removed. The counts are a function of the entries, the same on every replica.
"""

from typing import Final

from store import keys
from store.block_location import BlockLocation
from store.index import Index

LOG_RANGE_BYTES: Final = 4 * 1024 * 1024
"""Positions are counted in ranges of this size: so much more than necessary may be kept."""


class _Range:
    __slots__ = ("count", "first_index")

    def __init__(self, count: int, first_index: int) -> None:
        self.count = count
        self.first_index = first_index


class LogReferences:
    """All counts are in memory, written through to the index: one per range that something points at."""

    def __init__(self, index: Index, range_bytes: int = LOG_RANGE_BYTES) -> None:
        self._index = index
        self._range_bytes = range_bytes
        self._ranges: dict[int, _Range] = {}  # in ascending order: a new range is that of the newest entry
        self._touched: set[int] = set()
        self._entry_index = 0
        for key, value in index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES)):
            self._ranges[keys.read_u64(key[1:])] = _Range(keys.read_u64(value[:8]), keys.read_u64(value[8:]))

    def begin_entry(self, raft_index: int) -> None:
        self._entry_index = raft_index

    def add(self, block: BlockLocation) -> None:
        """Something new points at the block: its own entry is being applied, or something points at it already."""
        if block.inline is not None:
            return
        number = block.position // self._range_bytes
        known = self._ranges.get(number)
        if known is None:
            if number < next(reversed(self._ranges), 0):
                raise AssertionError(f"nothing pointed at log position {block.position} any more")
            known = self._ranges[number] = _Range(0, self._entry_index)
        known.count += 1
        self._touched.add(number)

    def remove(self, block: BlockLocation) -> None:
        if block.inline is not None:
            return
        number = block.position // self._range_bytes
        known = self._ranges.get(number)
        if known is None or known.count == 0:
            raise AssertionError(f"nothing was known to point at log position {block.position}")
        known.count -= 1
        self._touched.add(number)

    def end_entry(self) -> None:
        """Store what has changed. Only now is a range forgotten: what an entry moves, it points at all the time."""
        for number in self._touched:
            known = self._ranges[number]
            if known.count:
                self._index.put(keys.log_references(number), keys.u64(known.count) + keys.u64(known.first_index))
            else:
                del self._ranges[number]
                self._index.delete(keys.log_references(number))
        self._touched.clear()

    def floor(self, applied_index: int) -> int:
        """Nothing that is applied points before this entry; `applied_index` + 1 if nothing points anywhere."""
        first = next((each for each in self._ranges.values() if each.count), None)
        return applied_index + 1 if first is None else first.first_index

    @property
    def blocks(self) -> int:
        """How often something points at a block."""
        return sum(each.count for each in self._ranges.values())
