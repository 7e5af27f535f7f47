"""What of the log the state still points at: how many blocks per range of positions, by the kind of what points there.

Rows, timers and the halves of undecided transactions point at message blocks in log records. Whatever lies before the
first range that anything points at may be removed. The counts are a function of the entries, the same on every replica.
A table of the holders, and of when each lets go, is in docs/retention.md.
"""

import struct
from enum import IntEnum
from operator import add
from typing import Final, NamedTuple

from store.index import keys
from store.index.index import Index
from store.messages.block_location import BlockLocation

LOG_RANGE_BYTES: Final = 4 * 1024 * 1024
"""Positions are counted in ranges of this size: so much more than necessary may be kept."""


class Holder(IntEnum):
    """What points at a block. The numbers are those of the counts in the index."""

    MESSAGE = 0
    """A row of a topic, within the topic's retention."""
    RETRY = 1
    """A row of `%RETRY%<group>`, until the group has processed it."""
    DEAD_LETTER = 2
    """A row of `%DLQ%<group>`."""
    SCHEDULED = 3
    """A timer, until it is due or taken back."""
    TRANSACTION = 4
    """A half of a transaction that is prepared or discarded, or its row among the discarded ones."""
    VIEW = 5
    """A row of the half topic: it can be read as long as the log is there, and goes when nothing else needs the log."""


_VALUE: Final = struct.Struct(f">{1 + len(Holder)}Q")


class _Range:
    __slots__ = ("counts", "first_index", "held")

    def __init__(self, first_index: int, counts: list[int]) -> None:
        self.first_index = first_index
        self.counts = counts
        self.held = sum(counts) - counts[Holder.VIEW]
        """Blocks that something points at that needs them: views do not."""


class HeldFrom(NamedTuple):
    """Where in the log what some kind of holder points at begins: an entry, and a position at or before its record."""

    raft_index: int
    position: int


class LogReferences:
    """All counts are in memory, written through to the index: one key per range that something points at."""

    def __init__(self, index: Index, range_bytes: int = LOG_RANGE_BYTES) -> None:
        self._index = index
        self._range_bytes = range_bytes
        self._ranges: dict[int, _Range] = {}  # in ascending order: a new range is that of the newest entry
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
        """Something new points at the block: its own entry is being applied, or something points at it already."""
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
        """Store what has changed. Only now is a range forgotten: what an entry moves, it points at all the time."""
        for number in self._touched:
            known = self._ranges[number]
            if any(known.counts):
                self._index.put(keys.log_references(number), range_value(known.first_index, known.counts))
            else:
                del self._ranges[number]
                self._index.delete(keys.log_references(number))
        self._touched.clear()

    def floor(self, applied_index: int) -> int:
        """Nothing that is applied points before this entry; `applied_index` + 1 if nothing points anywhere."""
        first = next((each for each in self._ranges.values() if any(each.counts)), None)
        return applied_index + 1 if first is None else first.first_index

    def needed(self, applied_index: int) -> int:
        """Nothing but views points before this entry; `applied_index` + 1 if nothing else points anywhere."""
        first = next((each for each in self._ranges.values() if each.held), None)
        return applied_index + 1 if first is None else first.first_index

    def needed_position(self) -> int | None:
        """Nothing but views points before this log position; None if nothing else points anywhere. It is a function of
        the tables alone, whatever version counted them and from which entry on."""
        first = next((number for number, each in self._ranges.items() if each.held), None)
        return None if first is None else first * self._range_bytes

    def holds_views_alone(self) -> bool:
        """Whether views point before everything else that points at the log."""
        first = next(iter(self._ranges.values()), None)
        return first is not None and not first.held

    def is_kept(self, position: int) -> bool:
        """Whether the log has the record at this position on every node that has applied it."""
        first = next(iter(self._ranges), None)
        return first is not None and first <= position // self._range_bytes

    def first_of(self, holder: Holder) -> HeldFrom | None:
        """Where what a kind of holder points at begins; None when it points at nothing. Looks at each range before."""
        if self._totals[holder]:
            for number, each in self._ranges.items():
                if each.counts[holder]:
                    return HeldFrom(each.first_index, number * self._range_bytes)
        return None

    def is_in_range(self, position: int, held: HeldFrom) -> bool:
        """Whether a block lies in the range that begins there."""
        return position // self._range_bytes == held.position // self._range_bytes


def range_of(value: bytes) -> tuple[int, list[int]]:
    """First entry, and counts by holder, of a range as it is in the index."""
    first_index, *counts = _VALUE.unpack(value)
    return int(first_index), list(map(int, counts))


def range_value(first_index: int, counts: list[int]) -> bytes:
    return _VALUE.pack(first_index, *counts)
