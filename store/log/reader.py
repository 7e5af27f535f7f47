"""Reads records of the log: from memory if they are cached, from disk otherwise, always with their CRCs checked."""

from __future__ import annotations

import contextlib

from crc32c import crc32c

from store.log.disk import Buffer
from store.log.entry_cache import ReadCache, TailCache
from store.log.errors import DiskError, LogCorruption, UnsupportedLog
from store.log.record import HEADER_BYTES, Entry, Header, UnsupportedRecord, parse_header
from store.log.segments import SegmentSet

FETCHED_AHEAD_BYTES = 16 * 1024 * 1024
"""Bytes behind a read that are asked for before their turn: as many as are under way to a follower
(raft/replication/progress.py)."""


class LogReader:
    """Reads the records `first_index` to `last_index` of a `SegmentSet`. Callers check the bounds."""

    def __init__(self, segments: SegmentSet, cache_bytes: int) -> None:
        self._segments = segments
        self.tail = TailCache(cache_bytes - cache_bytes // 4)
        self._recent = ReadCache(cache_bytes // 4)

    def truncate(self, index: int) -> None:
        self.tail.truncate(index)
        self._recent.clear()

    def entry(self, index: int) -> Entry:
        entry = self.tail.get(index) or self._recent.get(index)
        if entry is None:
            entry = self._read_range(index, index)[0]
            self._recent.add(entry)
        return entry

    def entries(self, first: int, last: int, max_bytes: int) -> list[Entry]:
        """Return records `first` to `last`, as many as fit in `max_bytes` with their headers; at least one."""
        found: list[Entry] = []
        index = first
        while index <= last:
            entry = self.tail.get(index)
            batch = [entry] if entry else self._read_on(index, self._last_within(index, last, max_bytes))
            for read in batch:
                max_bytes -= HEADER_BYTES + len(read.payload)
                if max_bytes < 0 and found:
                    return found
                found.append(read)
            if max_bytes <= 0:
                break
            index += len(batch)
        return found

    def indexes_of_kind(self, kind: int, first: int, last: int) -> list[int]:
        """Return the indexes of the records of that kind. Payloads are neither read nor checked."""
        return [index for index in range(first, last + 1) if self.header(index).kind == kind]

    def term_at(self, index: int) -> int:
        return self._segments.index_of(self._segments.with_index(index)).term_of(index)

    def position_of(self, index: int) -> int:
        segment = self._segments.with_index(index)
        return segment.start + self._segments.index_of(segment).offset_of(index)

    def index_at(self, position: int) -> int | None:
        segment = self._segments.with_position(position)
        return self._segments.index_of(segment).index_at(position - segment.start)

    def _last_within(self, first: int, last: int, max_bytes: int) -> int:
        """Return the last record of the segment of `first` up to which all fit; at least `first`, at most `last`."""
        index = self._segments.index_of(self._segments.with_index(first))
        return min(last, index.last_within(first, max_bytes))

    def _read_bytes(self, first: int, last: int) -> memoryview:
        """Read the bytes of records `first` to `last`, which lie in one segment."""
        segment = self._segments.with_index(first)
        index, file = self._segments.index_of(segment), self._segments.file_of(segment)
        begin, end = index.offset_of(first), index.offset_of(last + 1)
        data = file.pread(end - begin, begin)
        return memoryview(data)

    def header(self, index: int) -> Header:
        """Read the header of a record. The header's CRC is verified, the payload's is not."""
        segment = self._segments.with_index(index)
        offset = self._segments.index_of(segment).offset_of(index)
        data = self._segments.file_of(segment).pread(HEADER_BYTES, offset)
        return _parse_header(data, 0, segment.name, index, segment.start + offset)

    def _read_on(self, first: int, last: int) -> list[Entry]:
        """Read records of one segment, and have the disk fetch what follows, also in later segments. Whoever reads
        entries that are not in memory goes through the log, and stands while it reads: a follower is filled, or entries
        are applied again.
        """
        entries = self._read_range(first, last)
        segment = self._segments.with_index(first)
        position = segment.start + self._segments.index_of(segment).offset_of(last + 1)
        with contextlib.suppress(DiskError):  # a file that cannot be opened now is not needed now
            for file, offset, length in self._segments.files_of(position, FETCHED_AHEAD_BYTES):
                file.fetch(length, offset)
        return entries

    def _read_range(self, first: int, last: int) -> list[Entry]:
        return self._parse(self._read_bytes(first, last), first, last)

    def _parse(self, data: memoryview, first: int, last: int) -> list[Entry]:
        segment = self._segments.with_index(first)
        return parse_records(data, segment.name, self.position_of(first), first, last)


def parse_records(data: memoryview, segment: str, position: int, first: int, last: int) -> list[Entry]:
    """Parse `data`, which holds the records `first` to `last`, and verify their CRCs. Record `first` begins at the
    log position `position`. Raises `LogCorruption`, `UnsupportedLog`, which name the segment.
    """
    entries: list[Entry] = []
    at = 0
    for index in range(first, last + 1):
        header = _parse_header(data, at, segment, index, position)
        end = at + HEADER_BYTES + header.payload_length
        payload = bytes(data[at + HEADER_BYTES : end])
        if len(payload) != header.payload_length or crc32c(payload) != header.payload_crc:
            raise _damaged(segment, position, index, "the payload does not match its CRC")
        entries.append(Entry(payload, index, header.term, header.kind, position))
        at = end
        position = header.end_position
    return entries


def _parse_header(data: Buffer, at: int, segment: str, index: int, position: int) -> Header:
    try:
        header = parse_header(data, at)
    except UnsupportedRecord as error:
        raise UnsupportedLog(segment, position, str(error)) from error
    if header is None or (header.index, header.position) != (index, position):
        raise _damaged(segment, position, index, "the header is damaged")
    return header


def _damaged(segment: str, position: int, index: int, detail: str) -> LogCorruption:
    return LogCorruption("corrupt_synced_record", segment, position, index, detail)
