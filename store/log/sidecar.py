"""The sidecar of a sealed segment: its `SegmentIndex` as a file, so that opening a log does not scan the segment.

A sidecar is derived data. It is used only if it belongs to the segment beside it: it names the segment's length and the
header CRC of the segment's last record, and by Raft's log matching property two logs that agree on a record's term and
index agree on all records before.
"""

from __future__ import annotations

import struct
import sys
from array import array

from crc32c import crc32c

from store.log.record_chain import RecordChain
from store.log.segment import SegmentIndex

MAGIC = b"KMQI"
VERSION = 1
CHAINED_VERSION = 2
"""Format version of a sidecar that also holds the record chain, at its end; written when the chain is known."""
_HEADER = struct.Struct("<4sB3xQQQIII")
_CHAIN = struct.Struct("<QQQII")
_CRC_BYTES = 4


def encode_sidecar(start: int, index: SegmentIndex, last_header_crc: int) -> bytes:
    """Return the bytes of the sidecar for the segment at `start`."""
    header = _HEADER.pack(
        MAGIC,
        VERSION if index.chain.origin is None else CHAINED_VERSION,
        start,
        index.length,
        index.first_index,
        len(index.offsets),
        len(index.run_firsts),
        last_header_crc,
    )
    arrays = [array(a.typecode, a) for a in (index.offsets, index.run_firsts, index.run_terms)]
    body = header + b"".join(_little_endian(a).tobytes() for a in arrays) + _encode_chain(index.chain)
    return body + crc32c(body).to_bytes(_CRC_BYTES, "little")


def decode_sidecar(data: bytes, start: int, length: int, first_index: int) -> tuple[SegmentIndex, int] | None:
    """Return the index and its last record's header CRC, for the caller to compare; None if damaged or of another
    segment.
    """
    if len(data) < _HEADER.size + _CRC_BYTES:
        return None
    if crc32c(memoryview(data)[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "little"):
        return None
    magic, version, its_start, its_length, its_first, count, runs, last_header_crc = _HEADER.unpack_from(data)
    if (magic, its_start, its_length, its_first) != (MAGIC, start, length, first_index):
        return None
    size = len(data) - _HEADER.size - 4 * count - 16 * runs - _CRC_BYTES
    if version not in (VERSION, CHAINED_VERSION) or size < 0 or not count or not runs:
        return None
    index = SegmentIndex(first_index)
    at = _HEADER.size
    for target, size in ((index.offsets, 4 * count), (index.run_firsts, 8 * runs), (index.run_terms, 8 * runs)):
        target.frombytes(data[at : at + size])
        _little_endian(target)
        at += size
    index.length = length
    if not _decode_chain(index, data[at:-_CRC_BYTES], chained=version == CHAINED_VERSION):
        return None
    return index, last_header_crc


def _encode_chain(chain: RecordChain) -> bytes:
    if chain.origin is None:
        return b""
    head = _CHAIN.pack(*chain.origin, chain.first, chain.seed, len(chain.values))
    return head + _little_endian(array("I", chain.values)).tobytes()


def _decode_chain(index: SegmentIndex, data: bytes, *, chained: bool) -> bool:
    """Read the chain into the index. Returns False if `data` is not the index's chain, or is not empty without
    `chained`.
    """
    if not chained:
        return not data
    if len(data) < _CHAIN.size:
        return False
    origin_index, origin_term, first, seed, count = _CHAIN.unpack_from(data)
    if len(data) != _CHAIN.size + 4 * count or first < index.first_index or first + count != index.next_index:
        return False
    chain = index.chain
    chain.origin, chain.first, chain.seed = (origin_index, origin_term), first, seed
    chain.values.frombytes(data[_CHAIN.size :])
    _little_endian(chain.values)
    chain.last = chain.values[-1] if count else seed
    return True


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values
