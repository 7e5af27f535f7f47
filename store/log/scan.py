"""Walks the records of one segment file without an index: recovery, rebuilding sidecars and the operator's dump."""

from __future__ import annotations

from collections.abc import Iterator

from crc32c import crc32c

from store.log.disk import File
from store.log.record import HEADER_BYTES, MAGIC, Header, UnsupportedRecord, parse_header

SCAN_WINDOW_BYTES = 4 * 1024 * 1024
_ZERO_WINDOW_BYTES = 256 * 1024  # small enough to stay in the processor's cache


def scan_records(file: File, start: int, offset: int = 0) -> Iterator[tuple[Header, memoryview]]:
    """Header and payload of every record of the segment that begins at `start`, from file offset `offset` up to the
    first that is not intact.

    A record counts as intact when both CRCs hold and it says it lies where it lies. Order of indexes and terms is for
    the caller to judge. The payload is only valid until the next step. Raises `UnsupportedRecord` at an intact header
    of an unknown version.
    """
    window = memoryview(b"")
    base = offset  # of the window in the file; `offset` is that of the next record
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
    """Every intact header that lies where it says it lies, at any byte beyond file offset `after`. Payloads are not
    checked.
    """
    base = after + 1
    while True:
        window = file.pread(SCAN_WINDOW_BYTES + HEADER_BYTES - 1, base)  # overlaps: a header may lie across
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
    """The file offset after the last byte that is not zero, at or beyond `offset`; `offset` if there is none."""
    end = position = offset
    zeros = bytes(_ZERO_WINDOW_BYTES)
    while window := file.pread(_ZERO_WINDOW_BYTES, position):
        if window != zeros[: len(window)]:  # comparing is much faster than stripping, and almost always it is all
            end = position + len(window.rstrip(b"\0"))
        position += len(window)
    return end
