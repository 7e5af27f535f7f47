"""Reads pieces of the log's files without the log: from any thread, by file, offset and length.

The loop computes the places (`store/log/places.py`), a thread reads them. Each call opens the files it needs and closes
them again, so it does not matter when the log meanwhile removes a segment or unloads it. Checksums detect bytes that
are gone or damaged; the log decides what the finding means.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from crc32c import crc32c

from store.log.disk import Disk, File
from store.log.errors import DiskError
from store.log.reader import parse_records
from store.log.record import HEADER_BYTES, Entry, UnsupportedRecord, parse_header

PAGE_BYTES = 4096
"""Minimum unit of a disk read; the size of a read is counted in these pages."""
GAP_BYTES = 32 * 1024
"""Blocks of one file at most this far apart are read in one operation, together with the bytes between them."""


class Extent(NamedTuple):
    """`length` bytes of the file `path` from `offset` on."""

    path: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        return self.offset + self.length


class StoredBlock(NamedTuple):
    """The place of a message block, and the checksum of its bytes."""

    extent: Extent
    crc32c: int


class StoredRecord(NamedTuple):
    """The place of a record. Its index is unknown until the record is read."""

    segment: str
    extent: Extent
    position: int


class StoredRecords(NamedTuple):
    """The whole records `first` to `last` of one segment; record `first` begins at the log position `position`."""

    segment: str
    extent: Extent
    position: int
    first: int
    last: int


class BlockPlan:
    """A list of blocks that are read in one step, with the number of bytes that the step reads."""

    def __init__(self) -> None:
        self.read_bytes = 0
        """Bytes read from the disk, in whole pages, including the gaps between blocks."""
        self._spans: list[tuple[Extent, list[StoredBlock]]] = []

    def __len__(self) -> int:
        return sum(len(blocks) for _, blocks in self._spans)

    def bytes_with(self, block: StoredBlock) -> int:
        """Return the value of `read_bytes` if `block` were added."""
        _, grown, before = self._joined(block)
        return self.read_bytes + _pages(grown) - before

    def add(self, block: StoredBlock) -> None:
        joins, grown, before = self._joined(block)
        self.read_bytes += _pages(grown) - before
        if joins:
            blocks = self._spans[-1][1]
            blocks.append(block)
            self._spans[-1] = grown, blocks
        else:
            self._spans.append((grown, [block]))

    def _joined(self, block: StoredBlock) -> tuple[bool, Extent, int]:
        """Return whether `block` joins the last read, the extent of that read then, and the bytes of it that are
        counted already.
        """
        if self._spans:
            span = self._spans[-1][0]
            extent = block.extent
            if span.path == extent.path and span.offset <= extent.offset <= span.end + GAP_BYTES:
                end = max(span.end, extent.end)
                return True, span._replace(length=end - span.offset), _pages(span)
        return False, block.extent, 0

    def read(self, disk: Disk) -> list[bytes | None]:
        """Read the blocks in the order of `add`; None stands for a block whose bytes do not match its checksum.

        Raises `DiskError`; `DiskFull` when no file descriptor is left.
        """
        found: list[bytes | None] = []
        path, file = "", None
        try:
            for span, blocks in self._spans:
                if file is None or span.path != path:
                    if file is not None:
                        file.close()
                        file = None
                    path, file = span.path, disk.open(span.path)
                data = file.pread(span.length, span.offset)
                for block in blocks:
                    begin = block.extent.offset - span.offset
                    # A copy: a memoryview of the whole span would keep the gaps between blocks in memory.
                    part = data[begin : begin + block.extent.length] if len(blocks) > 1 else data
                    found.append(part if crc32c(part) == block.crc32c else None)
        finally:
            if file is not None:
                file.close()
        return found


def read_record(disk: Disk, record: StoredRecord) -> Entry:
    """Read a whole record and verify its CRCs. Raises `LogCorruption`, `UnsupportedLog`, `DiskError`, `DiskFull`."""
    with _opened(disk, record.extent.path) as file:
        data = file.pread(HEADER_BYTES, record.extent.offset)
        header = None
        with suppress(UnsupportedRecord):  # parse_records raises it below, with the segment's name
            header = parse_header(data)
        if header is not None:
            data += file.pread(header.payload_length, record.extent.offset + HEADER_BYTES)
    index = 0 if header is None else header.index
    return parse_records(memoryview(data), record.segment, record.position, index, index)[0]


def read_records(disk: Disk, records: StoredRecords) -> bytes:
    """Read the records as they are on disk and verify their CRCs. Raises as `read_record` does."""
    with _opened(disk, records.extent.path) as file:
        data = file.pread(records.extent.length, records.extent.offset)
    parse_records(memoryview(data), records.segment, records.position, records.first, records.last)
    return data


def is_missing(error: DiskError) -> bool:
    """Return whether the error says that the file does not exist, which is right if the log has removed it."""
    return error.errno == errno.ENOENT


@contextmanager
def _opened(disk: Disk, path: str) -> Iterator[File]:
    file = disk.open(path)
    try:
        yield file
    finally:
        file.close()


def _pages(extent: Extent) -> int:
    first = extent.offset // PAGE_BYTES
    return (-(-extent.end // PAGE_BYTES) - first) * PAGE_BYTES
