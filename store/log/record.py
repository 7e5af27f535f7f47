"""The record of the commit log: a 52-byte header and a payload. Layout: docs/log-format.md."""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c

from store.log.disk import Buffer

MAGIC = b"KMQR"
VERSION = 1
GENESIS_INDEX = 1
"""Index of the record that every log begins with, a no-op of term 0."""
KIND_ENTRY = 1
KIND_NOOP = 2
KIND_CONFIG = 3
KINDS = (KIND_ENTRY, KIND_NOOP, KIND_CONFIG)
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024

_BODY = struct.Struct("<4sBBHIIQQQQ")
_HEADER = struct.Struct("<4sBBHIIQQQQI")
HEADER_BYTES = _HEADER.size
_BODY_BYTES = _BODY.size


class Entry(NamedTuple):
    """One record as Raft sees it. The order matters: PySyncObj reads entry[0], entry[1], entry[2]."""

    payload: bytes  # b"" for a no-op
    index: int  # type: ignore[assignment]  # Raft index, 1-based, contiguous; hides tuple.index
    term: int
    kind: int  # KIND_ENTRY | KIND_NOOP | KIND_CONFIG
    position: int  # commit log position of the record's first byte


class Header(NamedTuple):
    """A record's header whose CRC was verified."""

    kind: int
    payload_length: int
    payload_crc: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    position: int
    synced_position: int

    @property
    def end_position(self) -> int:
        """Position of the byte after the record."""
        return self.position + HEADER_BYTES + self.payload_length


class UnsupportedRecord(Exception):
    """An intact header of a version or kind this program does not know: newer data, which must never be cut."""


def encode_header(
    kind: int, payload_length: int, payload_crc: int, index: int, term: int, position: int, synced_position: int
) -> bytes:
    """Return the 52 bytes that precede the payload on disk."""
    body = _BODY.pack(MAGIC, VERSION, kind, 0, payload_length, payload_crc, index, term, position, synced_position)
    return body + crc32c(body).to_bytes(4, "little")


def parse_header(data: Buffer, offset: int = 0) -> Header | None:
    """Return the header at `offset`, or None if there is no intact header.

    Raises `UnsupportedRecord` when the CRC holds but version, kind or reserved bits are unknown.
    """
    if len(data) - offset < HEADER_BYTES:
        return None
    (magic, version, kind, reserved, length, payload_crc, index, term, position, synced_position, header_crc) = (
        _HEADER.unpack_from(data, offset)
    )
    if magic != MAGIC or crc32c(data[offset : offset + _BODY_BYTES]) != header_crc:
        return None
    if version != VERSION or reserved or kind not in KINDS:
        raise UnsupportedRecord(f"record version {version}, kind {kind}, reserved {reserved}")
    if length > MAX_PAYLOAD_BYTES:
        return None
    return Header(kind, length, payload_crc, index, term, position, synced_position)
