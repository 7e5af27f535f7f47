"""Change a record of a stopped node's log so that no CRC shows it, as if a bit had flipped in memory before the
write.
"""

from pathlib import Path

from crc32c import crc32c

from store.log.record import HEADER_BYTES, Header, encode_header, parse_header


def rewrite_record(segment: Path, index: int) -> Header:
    """Flip one bit in the payload of record `index` and make both CRCs fit. Returns the record's old header."""
    data, at = bytearray(segment.read_bytes()), 0
    while (header := parse_header(bytes(data[at : at + HEADER_BYTES]))) is not None and header.index != index:
        at += HEADER_BYTES + header.payload_length
    assert header is not None, f"{segment} does not hold record {index}"
    end = at + HEADER_BYTES + header.payload_length
    data[end - 1] ^= 1
    payload = bytes(data[at + HEADER_BYTES : end])
    data[at : at + HEADER_BYTES] = encode_header(
        header.kind, len(payload), crc32c(payload), index, header.term, header.position, header.synced_position
    )
    segment.write_bytes(data)
    return header
