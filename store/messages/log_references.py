"""References from the state to the log: the number of blocks per range of log positions, by kind of holder.

Rows, timers and the halves of undecided transactions point at message blocks in log records. The log before the first
range that any holder points at may be removed. The counts are a function of the entries, the same on every replica.
docs/retention.md has a table of the holders and of when each kind lets go.
"""

import struct
from enum import IntEnum
from operator import add
from typing import Final, NamedTuple

from store.index import keys
from store.index.index import Index
from store.messages.block_location import BlockLocation

LOG_RANGE_BYTES: Final = 4 * 1024 * 1024
"""Size of a range of counted positions; up to this many bytes more than necessary may be kept."""


class Holder(IntEnum):
    """The kinds of holders that point at a block. The values are positions of the counts in the index."""

    MESSAGE = 0
    """A row of a topic, while the topic's retention lasts."""
    RETRY = 1
    """A row of `%RETRY%<group>`, until the group has processed it."""
    DEAD_LETTER = 2
    """A row of `%DLQ%<group>`."""
    SCHEDULED = 3
    """A timer, until it is due or cancelled."""
    TRANSACTION = 4
    """A half of a transaction that is prepared or discarded, or its row in the discarded topic."""
    VIEW = 5
    """A row of the half topic: readable as long as the log is there, and removed when nothing else needs the log."""


_VALUE: Final = struct.Struct(f">{1 + len(Holder)}Q")


class _Range:
    __slots__ = ("counts", "first_index", "held")

    def __init__(self, first_index: int, counts: list[int]) -> None:
        self.first_index = first_index
        self.counts = counts
        self.held = sum(counts) - counts[Holder.VIEW]
        """Number of blocks with holders that need them; views do not count."""


class HeldFrom(NamedTuple):
    """The begin of the log that a kind of holder needs: an entry, and a position at or before the entry's record."""

    raft_index: int
    position: int


class LogReferences:
    """The counts of all ranges, in memory and written through to the index: one key per range with a holder."""

    def __init__(self, index: Index, range_bytes: int = LOG_RANGE_BYTES) -> None:
        self._index = index
        self._range_bytes = range_bytes
        self._ranges: dict[int, _Range] = {}  # in ascending order: a new range belongs to the newest entry
        self._touched: set[int] = set()
        self._totals = [0] * len(Holder)
        self._entry_index = 0
        for key, value in index.scan(keys.LOG_REFERENCES, keys.after(keys.LOG_REFERENCES)):
            first_index, counts = range_of(value)
            self._ranges[keys.read_u64(key[1:])] = _Range(first_index, counts)
            self._totals = list(map(add, self._totals, counts))

    def begin_entry(self, raft_index: int) -> None:
        self._entry_index = raft_index

    def add(self, block: BlockLocation, holder: Holder) -> None:
        """Count a new reference to the block. Either the block's own entry is being applied, or a holder points at it
        already.
        """
        if block.inline is not None:
            return
        number = block.position // self._range_bytes
        known = self._ranges.get(number)
        if known is None:
            if number < next(reversed(self._ranges), 0):
                raise AssertionError(f"nothing pointed at log position {block.position} any more")
            known = self._ranges[number] = _Range(self._entry_index, [0] * len(Holder))
        known.counts[holder] += 1
        self._totals[holder] += 1
        known.held += holder is not Holder.VIEW
        self._touched.add(number)

    def remove(self, block: BlockLocation, holder: Holder) -> None:
        if block.inline is not None:
            return
        number = block.position // self._range_bytes
        known = self._ranges.get(number)
        if known is None or known.counts[holder] == 0:
            raise AssertionError(f"no {holder.name} was known to point at log position {block.position}")
        known.counts[holder] -= 1
        self._totals[holder] -= 1
        known.held -= holder is not Holder.VIEW
        self._touched.add(number)

    def end_entry(self) -> None:
        """Store the changed counts. Empty ranges are forgotten only here: an entry that moves a reference may empty a
        range before it adds the reference again.
        """
        for number in self._touched:
            known = self._ranges[number]
            if any(known.counts):
                self._index.put(keys.log_references(number), range_value(known.first_index, known.counts))
            else:
                del self._ranges[number]
                self._index.delete(keys.log_references(number))
        self._touched.clear()

    def floor(self, applied_index: int) -> int:
        """Return the first entry that any holder may point at; `applied_index` + 1 if there are no holders."""
        first = next((each for each in self._ranges.values() if any(each.counts)), None)
        return applied_index + 1 if first is None else first.first_index

    def needed(self, applied_index: int) -> int:
        """Return the first entry that a holder other than a view may point at; `applied_index` + 1 if there is none."""
        first = next((each for each in self._ranges.values() if each.held), None)
        return applied_index + 1 if first is None else first.first_index

    def needed_position(self) -> int | None:
        """Return the first log position that a holder other than a view may point at; None if there is none. The result
        is a function of the tables alone, whatever version counted them and from which entry on.
        """
        first = next((number for number, each in self._ranges.items() if each.held), None)
        return None if first is None else first * self._range_bytes

    def holds_views_alone(self) -> bool:
        """Return whether the first referenced range of the log is referenced by views only."""
        first = next(iter(self._ranges.values()), None)
        return first is not None and not first.held

    def is_kept(self, position: int) -> bool:
        """Return whether every node that has applied the record at this position still has it in its log."""
        first = next(iter(self._ranges), None)
        return first is not None and first <= position // self._range_bytes

    def first_of(self, holder: Holder) -> HeldFrom | None:
        """Return where the log that a kind of holder points at begins; None without such holders. Visits every range
        before.
        """
        if self._totals[holder]:
            for number, each in self._ranges.items():
                if each.counts[holder]:
                    return HeldFrom(each.first_index, number * self._range_bytes)
        return None

    def is_in_range(self, position: int, held: HeldFrom) -> bool:
        """Return whether a log position lies in the range that begins at `held`."""
        return position // self._range_bytes == held.position // self._range_bytes


def range_of(value: bytes) -> tuple[int, list[int]]:
    """Return first entry and counts by holder of a range, decoded from its value in the index."""
    first_index, *counts = _VALUE.unpack(value)
    return int(first_index), list(map(int, counts))


def range_value(first_index: int, counts: list[int]) -> bytes:
    return _VALUE.pack(first_index, *counts)
