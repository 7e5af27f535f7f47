from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from store.log.record import (
    HEADER_BYTES,
    KIND_ENTRY,
    KIND_NOOP,
    MAX_PAYLOAD_BYTES,
    Header,
    UnsupportedRecord,
    encode_header,
    parse_header,
)

U64 = st.integers(0, 2**64 - 1)
HEADERS = st.builds(
    Header,
    kind=st.sampled_from([KIND_ENTRY, KIND_NOOP]),
    payload_length=st.integers(0, MAX_PAYLOAD_BYTES),
    payload_crc=st.integers(0, 2**32 - 1),
    index=U64,
    term=U64,
    position=U64,
    synced_position=U64,
)


def resealed(data: bytes) -> bytes:
    return data[:48] + crc32c(data[:48]).to_bytes(4, "little")


def test_layout_is_the_documented_one() -> None:
    """The layout is that of docs/log-format.md, byte by byte: a change here is a new version of the format."""
    data = encode_header(KIND_ENTRY, 5, 0xAABBCCDD, 7, 3, 0x1122, 0x99)
    assert len(data) == HEADER_BYTES == 52
    assert data[:48].hex() == (
        "4b4d5152" "01" "01" "0000" "05000000" "ddccbbaa"
        "0700000000000000" "0300000000000000" "2211000000000000" "9900000000000000"
    )  # fmt: skip
    assert int.from_bytes(data[48:], "little") == crc32c(data[:48])


@given(HEADERS, st.binary(max_size=9))
def test_round_trip_at_any_offset(header: Header, before: bytes) -> None:
    data = before + encode_header(*header)
    assert parse_header(data, len(before)) == header
    assert parse_header(memoryview(data), len(before)) == header
    assert header.end_position == header.position + 52 + header.payload_length


@given(HEADERS, st.integers(0, HEADER_BYTES * 8 - 1))
def test_any_flipped_bit_is_noticed(header: Header, bit: int) -> None:
    data = bytearray(encode_header(*header))
    data[bit // 8] ^= 1 << bit % 8
    assert parse_header(data) is None


@given(HEADERS, st.integers(0, HEADER_BYTES - 1))
def test_a_cut_header_is_none(header: Header, length: int) -> None:
    assert parse_header(encode_header(*header)[:length]) is None


def test_zeros_are_no_header() -> None:
    assert parse_header(bytes(HEADER_BYTES)) is None


@pytest.mark.parametrize(("offset", "value"), [(4, 2), (5, 0), (5, 4), (6, 1)])
def test_intact_header_of_another_version_is_not_taken_for_damage(offset: int, value: int) -> None:
    data = bytearray(encode_header(KIND_ENTRY, 0, 0, 1, 1, 0, 0))
    data[offset] = value
    with pytest.raises(UnsupportedRecord):
        parse_header(resealed(bytes(data)))


def test_a_length_over_the_limit_is_no_header() -> None:
    assert parse_header(encode_header(KIND_ENTRY, MAX_PAYLOAD_BYTES, 0, 1, 1, 0, 0)) is not None
    assert parse_header(encode_header(KIND_ENTRY, MAX_PAYLOAD_BYTES + 1, 0, 1, 1, 0, 0)) is None
