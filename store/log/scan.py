"""Scans the records of one segment file without an index: for recovery, rebuilding sidecars and the operator's dump."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from store.log.disk import File
from store.log.record import HEADER_BYTES, MAGIC, Header, UnsupportedRecord, parse_header

SCAN_WINDOW_BYTES = 4 * 1024 * 1024
_ZERO_WINDOW_BYTES = 256 * 1024  # small enough to stay in the processor's cache


def scan_records(file: File, start: int, offset: int = 0) -> Iterator[tuple[Header, memoryview]]:
    """Yield header and payload of every record of the segment that begins at position `start`, from file offset
    `offset` up to the first record that is not intact.

    A record is intact when both CRCs hold and its header names the position where the record lies. The caller judges
    the order of indexes and terms. The payload is only valid until the next step. Raises `UnsupportedRecord` at an
    intact header of an unknown version.
    """
    window = memoryview(b"")
    base = offset  # file offset of the window; `offset` is the file offset of the next record
    while True:
        at = offset - base
        if at + HEADER_BYTES > len(window):
            window, base, at = memoryview(file.pread(SCAN_WINDOW_BYTES, offset)), offset, 0
        header = parse_header(window, at)
        if header is None or header.position != start + offset:
            return
        size = HEADER_BYTES + header.payload_length
        if at + size > len(window):
            window, base, at = memoryview(file.pread(max(size, SCAN_WINDOW_BYTES), offset)), offset, 0
            if size > len(window):
                return
        payload = window[at + HEADER_BYTES : at + size]
        if crc32c(payload) != header.payload_crc:
            return
        yield header, payload
        offset += size


def later_headers(file: File, start: int, after: int) -> Iterator[Header]:
    """Yield every intact header beyond file offset `after`, at any byte, that names the position where it lies.
    Payloads are not checked.
    """
    base = after + 1
    while True:
        window = file.pread(SCAN_WINDOW_BYTES + HEADER_BYTES - 1, base)  # windows overlap: a header may lie across two
        at = window.find(MAGIC)
        while 0 <= at < SCAN_WINDOW_BYTES:
            header = _header_or_none(window, at)
            if header is not None and header.position == start + base + at:
                yield header
            at = window.find(MAGIC, at + 1)
        if len(window) < SCAN_WINDOW_BYTES + HEADER_BYTES - 1:
            return
        base += SCAN_WINDOW_BYTES


def _header_or_none(window: bytes, at: int) -> Header | None:
    try:
        return parse_header(window, at)
    except UnsupportedRecord:
        return None


def last_nonzero(file: File, offset: int) -> int:
    """Return the file offset after the last nonzero byte at or beyond `offset`; `offset` if all bytes are zero."""
    end = position = offset
    zeros = bytes(_ZERO_WINDOW_BYTES)
    while window := file.pread(_ZERO_WINDOW_BYTES, position):
        if window != zeros[: len(window)]:  # comparing is much faster than stripping, and usually all are zeros
            end = position + len(window.rstrip(b"\0"))
        position += len(window)
    return end
