"""Locations of pieces of the log, for readers that work without the log: in memory, or in a file at an offset.

Nothing here reads a payload from disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from store.log.disk import Disk
from store.log.errors import LogTruncated
from store.log.extents import Extent, StoredBlock, StoredRecord, StoredRecords
from store.log.reader import LogReader
from store.log.record import HEADER_BYTES
from store.log.segment import SegmentIndex
from store.log.segments import SegmentSet


class LogPlaces:
    """Finds the places of records and blocks. Loop-only, as the log itself is. Positions are log positions of records,
    as the index stores them.
    """

    def __init__(self, segments: SegmentSet, reader: LogReader) -> None:
        self._segments = segments
        self._reader = reader

    def cached(self, position: int) -> bytes | None:
        """Return the payload of the record at `position` if the tail cache holds the record; otherwise None."""
        tail = self._reader.tail
        if position < tail.first_position:
            return None
        index = self._reader.index_at(position)
        entry = None if index is None else tail.get(index)
        return None if entry is None else entry.payload

    def require(self, position: int) -> None:
        """Raise `LogTruncated` when the record at `position` was removed from the front of the log."""
        first = self._segments.segments[0]
        if position < first.start:
            raise LogTruncated(f"position {position}", first.first_index)

    def block(self, position: int, offset: int, length: int, checksum: int) -> StoredBlock:
        """Return the place of a block: `length` payload bytes from `offset` on in the record at `position`.

        Raises `LogTruncated`.
        """
        self.require(position)
        segment = self._segments.with_position(position)
        begin = position - segment.start + HEADER_BYTES + offset
        return StoredBlock(Extent(segment.path, begin, length), checksum)

    def record(self, position: int) -> StoredRecord:
        """Return the place of the record at `position`. Raises `LogTruncated`."""
        self.require(position)
        segment = self._segments.with_position(position)
        return StoredRecord(segment.name, Extent(segment.path, position - segment.start, HEADER_BYTES), position)

    def load_ahead(
        self, index: int
    ) -> tuple[Callable[[Disk], SegmentIndex | None], Callable[[SegmentIndex | None], None]] | None:
        """Prepare loading the segment index that `records` needs for record `index`; None when the index is loaded
        already.

        The first callable reads the index from a disk and may run in any thread; the second takes the result and must
        run on the loop.
        """
        found = self._segments.load_ahead(index)
        if found is None:
            return None
        segment, load = found
        return load, partial(self._segments.adopt, segment)

    def place_of(self, index: int) -> tuple[int, int] | None:
        """Return term and position of record `index`, which must not lie beyond the last record. None if the record was
        removed from the front of the log, or if finding its place would need a read.
        """
        if index < self._segments.segments[0].first_index:
            return None
        segment = self._segments.with_index(index)
        known = segment.index
        return None if known is None else (known.term_of(index), segment.start + known.offset_of(index))

    def segment_at(self, position: int) -> int:
        """Return the index of the first record of the segment that holds `position`. Raises `LogTruncated`."""
        self.require(position)
        return self._segments.with_position(position).first_index

    def index_at(self, position: int) -> int | None:
        """Return the index of the record that begins at `position`; None if none does. Raises `LogTruncated`."""
        self.require(position)
        return self._reader.index_at(position)

    def start_of(self, index: int) -> int:
        """Return the start position of the segment that holds record `index`."""
        return self._segments.with_index(index).start

    def records(self, first: int, last: int, max_bytes: int) -> StoredRecords:
        """Return the place of record `first` and of the records that follow in its segment, up to record `last` and
        `max_bytes`. The result always contains `first`. Raises `LogTruncated`, `LogCorruption`.
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
