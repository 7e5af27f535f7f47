"""Strategies of bytes that are nearly right, with bits flipped, and parts removed, repeated or inserted."""

from collections.abc import Callable
from typing import Final

import msgspec
from hypothesis import strategies as st

EDITS_MAX: Final = 6
NOISE_BYTES_MAX: Final = 40
NESTED_MAX: Final = 5_000
# Where lengths, signs and widths change.
EDGES: Final = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


def integers_at_edges() -> st.SearchStrategy[int]:
    return st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1)


@st.composite
def damaged(draw: st.DrawFn, original: bytes) -> bytes:
    """Return `original` with one to six edits."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, EDITS_MAX))):
        draw(st.sampled_from(_EDITS))(draw, data)
    return bytes(data)


def _place(draw: st.DrawFn, data: bytearray) -> int:
    return draw(st.integers(0, max(0, len(data) - 1)))


def _flip(draw: st.DrawFn, data: bytearray) -> None:
    if data:
        data[_place(draw, data)] ^= 1 << draw(st.integers(0, 7))


def _overwrite_number(draw: st.DrawFn, data: bytearray) -> None:
    width = draw(st.sampled_from((1, 2, 4, 8)))
    at = _place(draw, data)
    number = draw(integers_at_edges()) % (1 << 8 * width)
    order = draw(st.sampled_from(("little", "big")))
    data[at : at + width] = number.to_bytes(width, order)  # type: ignore[arg-type]


def _cut_end(draw: st.DrawFn, data: bytearray) -> None:
    del data[_place(draw, data) :]


def _cut_out(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    del data[at : at + draw(st.integers(1, 200))]


def _insert(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at:at] = draw(st.binary(max_size=NOISE_BYTES_MAX))


def _repeat(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at:at] = data[at : at + draw(st.integers(1, 400))]


def _zero(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    length = min(len(data) - at, draw(st.integers(1, 600)))
    data[at : at + length] = bytes(length)


def _nest(draw: st.DrawFn, data: bytearray) -> None:
    """Insert nested arrays, in msgpack or JSON, deeper than Python's stack."""
    at = _place(draw, data)
    data[at:at] = draw(st.sampled_from((b"\x91", b"["))) * draw(st.integers(1, NESTED_MAX))


_Edit = Callable[[st.DrawFn, bytearray], None]
_EDITS: Final[tuple[_Edit, ...]] = (_flip, _overwrite_number, _cut_end, _cut_out, _insert, _repeat, _zero, _nest)


def plain_values() -> st.SearchStrategy[object]:
    """Return a strategy of values that msgpack and JSON can carry."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers(-(1 << 63), (1 << 64) - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=20)
        | st.binary(max_size=20)
    )
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
    )


def msgpack_like(original: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy of damaged `original`, other msgpack values, deep nesting, and noise."""
    return st.one_of(
        damaged(original),
        plain_values().map(msgspec.msgpack.encode),
        st.binary(max_size=200),
    )
