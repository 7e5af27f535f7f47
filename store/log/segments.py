"""The segments of a log in order: finds the segment of an index or a position, and bounds the sealed segments in
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from store.descriptors import SPARES
from store.log.disk import Disk, File
from store.log.errors import DiskFull, LogCorruption, UnsupportedLog
from store.log.record import HEADER_BYTES, UnsupportedRecord
from store.log.record_chain import Link, chained_of
from store.log.scan import scan_records
from store.log.segment import Segment, SegmentIndex, sidecar_name
from store.log.sidecar import decode_sidecar, encode_sidecar

LOADED_SEGMENTS_MAX = 64
OPEN_SEGMENTS_MAX = 16
LOADED_INDEX_BYTES_MAX = 16 * 1024 * 1024


class SegmentSet:
    """The segments of a log; never empty once recovery is done. The last segment is the active one: its index and file
    are always loaded.

    Invariant: each segment begins at the position and the index where the segment before it ends.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.directory = directory
        self.segments: list[Segment] = []
        self._starts: list[int] = []
        self._firsts: list[int] = []
        self._loaded: OrderedDict[int, Segment] = OrderedDict()  # sealed segments, least recently used first
        self.sidecars_rebuilt = 0
        self.base_link: Link | None = None
        """The chain before the first record; None if it is not known."""

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def add(self, segment: Segment) -> None:
        """Make `segment` the last one; a new segment continues the chain. The previous one, now sealed, stays loaded
        until it is evicted.
        """
        if segment.index is not None and not segment.index.offsets:
            segment.index.chain.begin(self.link_before(segment), segment.first_index)
        if self.segments and self.active.index is not None:
            self._loaded[self.active.start] = self.active
        self.segments.append(segment)
        self._starts.append(segment.start)
        self._firsts.append(segment.first_index)
        self._evict()
        self._bound_open()

    def remove_last(self) -> Segment:
        """Take the last segment out, leaving its files untouched; the segment before it is loaded and becomes the
        active one.
        """
        removed = self.segments.pop()
        self._starts.pop()
        self._firsts.pop()
        self.index_of(self.active)
        self.file_of(self.active)
        self._loaded.pop(self.active.start, None)
        return removed

    def remove_first(self) -> Segment:
        """Take the first segment, which must not be the active one, out and close it. Its files stay untouched."""
        removed = self.segments.pop(0)
        self._starts.pop(0)
        self._firsts.pop(0)
        self._loaded.pop(removed.start, None)
        _close(removed)
        return removed

    def with_index(self, index: int) -> Segment:
        return self.segments[bisect_right(self._firsts, index) - 1]

    def with_position(self, position: int) -> Segment:
        return self.segments[bisect_right(self._starts, position) - 1]

    def file_of(self, segment: Segment) -> File:
        if segment.file is None:
            segment.file = self._disk.open(segment.path)
            self._note_use(segment)
            self._bound_open()
        return segment.file

    def files_of(self, position: int, length: int) -> Iterator[tuple[File, int, int]]:
        """Yield the files that hold these bytes of the log, each with the offset and the number of its bytes, as far as
        two files that are not open yet, for each of which there must be a descriptor beside the reserve.
        """
        end, left_to_open = position + length, 2
        for segment in self.segments[bisect_right(self._starts, position) - 1 :]:
            until = end if segment is self.active else min(end, segment.start + segment.length)
            if segment.start >= end:
                return
            if segment.file is None:
                if not left_to_open or not self._disk.has_descriptors(SPARES + 1):
                    return
                left_to_open -= 1
            begin = max(position, segment.start)
            if begin < until:
                yield self.file_of(segment), begin - segment.start, until - begin

    def _bound_open(self) -> None:
        """Close the files of the sealed segments used longest ago, if more than OPEN_SEGMENTS_MAX are open."""
        for segment in [each for each in self._loaded.values() if each.file is not None][:-OPEN_SEGMENTS_MAX]:
            _close(segment)

    def index_of(self, segment: Segment) -> SegmentIndex:
        if segment.index is None:
            segment.index = self._read_sidecar(segment) or self._rebuild(segment)
            self._check_continuity(segment, segment.index)
            self._note_use(segment)
        elif segment is not self.active:
            self._loaded.move_to_end(segment.start)
        return segment.index

    def link_before(self, segment: Segment) -> Link | None:
        """Return the chain before the segment's first record; None if that needs a scan of another segment."""
        ordinal = bisect_right(self._starts, segment.start - 1) - 1
        if ordinal < 0:
            return self.base_link
        before = self.segments[ordinal]
        index = before.index or self._read_sidecar(before)
        return None if index is None else index.chain.at(index.next_index - 1)

    def write_sidecar(self, segment: Segment) -> None:
        """Write the sidecar, not durable on return. Gives up when the disk is full: a missing sidecar is rebuilt by a
        scan.
        """
        index, file = self.index_of(segment), self.file_of(segment)
        data = encode_sidecar(segment.start, index, _last_header_crc(file, index))
        path = f"{self.directory}/{sidecar_name(segment.start)}"
        try:
            sidecar = self._disk.open(path, create=True)
            try:
                sidecar.truncate(0)
                sidecar.pwrite(data, 0)
            finally:
                sidecar.close()
        except DiskFull:
            self.remove_sidecar(segment)

    def remove_sidecar(self, segment: Segment) -> None:
        path = f"{self.directory}/{sidecar_name(segment.start)}"
        if self._disk.exists(path):
            self._disk.unlink(path)

    def close_sealed(self) -> bool:
        """Close the files of sealed segments. Their indexes stay loaded. Returns whether one was open."""
        return any([_close(segment) for segment in self.segments[:-1]])

    def close(self) -> None:
        for segment in self.segments:
            _close(segment)

    def _note_use(self, segment: Segment) -> None:
        if segment is not self.active:
            self._loaded[segment.start] = segment
            self._loaded.move_to_end(segment.start)
            self._evict()

    def _evict(self) -> None:
        size = sum(s.index.memory_bytes for s in self._loaded.values() if s.index is not None)
        while len(self._loaded) > 1 and (len(self._loaded) > LOADED_SEGMENTS_MAX or size > LOADED_INDEX_BYTES_MAX):
            _, segment = self._loaded.popitem(last=False)
            if segment.index is not None:
                size -= segment.index.memory_bytes
            segment.index = None
            _close(segment)

    def load_ahead(self, index: int) -> tuple[Segment, Callable[[Disk], SegmentIndex | None]] | None:
        """Return the sealed segment of record `index` and a callable that reads its sidecar from a disk, in any
        thread; None if it is loaded.
        """
        segment = self.with_index(index)
        if segment.index is not None:
            return None
        place = SidecarPlace(self.directory, segment.path, segment.start, segment.length, segment.first_index)
        return segment, partial(read_sidecar, place=place)

    def adopt(self, segment: Segment, index: SegmentIndex | None) -> None:
        """Take over an index that `load_ahead` read, unless the segment was changed or removed meanwhile, or the index
        is None.
        """
        unchanged = segment in self.segments and segment.index is None
        if index is not None and unchanged and segment.length == index.length:
            segment.index = index
            self._check_continuity(segment, index)
            self._note_use(segment)

    def _read_sidecar(self, segment: Segment) -> SegmentIndex | None:
        place = SidecarPlace(self.directory, segment.path, segment.start, segment.length, segment.first_index)
        return read_sidecar(self._disk, place)

    def _rebuild(self, segment: Segment) -> SegmentIndex:
        index = SegmentIndex(segment.first_index)
        index.chain.begin(self.link_before(segment), segment.first_index)
        try:
            for header, _ in scan_records(self.file_of(segment), segment.start):
                index.append(HEADER_BYTES + header.payload_length, header.term, chained_of(header))
        except UnsupportedRecord as error:
            raise UnsupportedLog(segment.name, segment.start + index.length, str(error)) from error
        if index.length != segment.length:
            raise self._corrupt(segment, index, "a record of a sealed segment is damaged")
        segment.index = index
        self.write_sidecar(segment)
        self.sidecars_rebuilt += 1
        return index

    def _check_continuity(self, segment: Segment, index: SegmentIndex) -> None:
        after = bisect_right(self._starts, segment.start)
        if after < len(self.segments) and self._firsts[after] != index.next_index:
            detail = f"{self.segments[after].name} begins with index {self._firsts[after]}"
            raise self._corrupt(segment, index, detail)

    @staticmethod
    def _corrupt(segment: Segment, index: SegmentIndex, detail: str) -> LogCorruption:
        return LogCorruption(
            "corrupt_synced_record", segment.name, segment.start + index.length, index.next_index, detail
        )


def _close(segment: Segment) -> bool:
    """Close the file of the segment; return whether it was open."""
    if segment.file is None:
        return False
    segment.file.close()
    segment.file = None
    return True


class SidecarPlace(NamedTuple):
    """The location of a sealed segment, with the values that its sidecar has to match."""

    directory: str
    path: str
    start: int
    length: int
    first_index: int


def read_sidecar(disk: Disk, place: SidecarPlace) -> SegmentIndex | None:
    """Return the index in the sidecar of one segment; None if there is none or it does not match. Callable from any
    thread. Raises `DiskError`.
    """
    path = f"{place.directory}/{sidecar_name(place.start)}"
    if not disk.exists(path):
        return None
    decoded = decode_sidecar(disk.read_bytes(path), place.start, place.length, place.first_index)
    if decoded is None:
        return None
    index, last_header_crc = decoded
    file = disk.open(place.path)
    try:
        return index if _last_header_crc(file, index) == last_header_crc else None
    finally:
        file.close()


def _last_header_crc(file: File, index: SegmentIndex) -> int:
    return int.from_bytes(file.pread(4, index.offsets[-1] + HEADER_BYTES - 4), "little")
