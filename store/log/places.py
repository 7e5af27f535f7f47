"""Where pieces of the log are, for those who read them without the log: in memory, or in which file and where.

Nothing here reads a payload from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from store.log.errors import LogTruncated
from store.log.extents import Extent, StoredBlock, StoredRecord, StoredRecords
from store.log.reader import LogReader
from store.log.record import HEADER_BYTES
from store.log.segment import SegmentIndex
from store.log.segments import SegmentSet


class LogPlaces:
    """Loop-only, as the log itself. Positions are those of records, as the index has them."""

    def __init__(self, segments: SegmentSet, reader: LogReader) -> None:
        self._segments = segments
        self._reader = reader

    def cached(self, position: int) -> bytes | None:
        """The payload of the record there if the newest part of the log, which is in memory, has it."""
        tail = self._reader.tail
        if position < tail.first_position:
            return None
        index = self._reader.index_at(position)
        entry = None if index is None else tail.get(index)
        return None if entry is None else entry.payload

    def require(self, position: int) -> None:
        """Raises `LogTruncated` when the record there was removed from the front of the log."""
        first = self._segments.segments[0]
        if position < first.start:
            raise LogTruncated(f"position {position}", first.first_index)

    def block(self, position: int, offset: int, length: int, checksum: int) -> StoredBlock:
        """`length` bytes of the payload of the record at `position`, from `offset` on. Raises `LogTruncated`."""
        self.require(position)
        segment = self._segments.with_position(position)
        begin = position - segment.start + HEADER_BYTES + offset
        return StoredBlock(Extent(segment.path, begin, length), checksum)

    def record(self, position: int) -> StoredRecord:
        """Raises `LogTruncated`."""
        self.require(position)
        segment = self._segments.with_position(position)
        return StoredRecord(segment.name, Extent(segment.path, position - segment.start, HEADER_BYTES), position)

    def load_ahead(
        self, index: int
    ) -> tuple[Callable[[], SegmentIndex | None], Callable[[SegmentIndex | None], None]] | None:
        """What `records` from record `index` on needs to know of its segment and would read: a step for any thread, and
        what takes its result back on the loop. None when it is known.
        """
        found = self._segments.load_ahead(index)
        if found is None:
            return None
        segment, load = found
        return load, partial(self._segments.adopt, segment)

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Term and position of record `index`, which is at most the last one. None if it was removed from the front of
        the log, or if that is not known without a read.
        """
        if index < self._segments.segments[0].first_index:
            return None
        segment = self._segments.with_index(index)
        known = segment.index
        return None if known is None else (known.term_of(index), segment.start + known.offset_of(index))

    def start_of(self, index: int) -> int:
        """Of the segment that holds record `index`."""
        return self._segments.with_index(index).start

    def records(self, first: int, last: int, max_bytes: int) -> StoredRecords:
        """Record `first`, and those behind it in its segment up to `last` that fit `max_bytes` with it. Raises
        `LogTruncated`, `LogCorruption`.
        """
        oldest = self._segments.segments[0]
        if first < oldest.first_index:
            raise LogTruncated(f"index {first}", oldest.first_index)
        segment = self._segments.with_index(first)
        index = self._segments.index_of(segment)
        until = min(last, index.last_within(first, max_bytes))
        begin, end = index.offset_of(first), index.offset_of(until + 1)
        return StoredRecords(
            segment.name, Extent(segment.path, begin, end - begin), segment.start + begin, first, until
        )
