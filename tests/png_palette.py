"""Writes the PNG files of a browser with a palette: pictures of text have few colours, and take half the room so."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOURS_MAX: Final = 256
FREQUENT: Final = 192
CHANNELS: Final = {2: 3, 6: 4}
"""Bytes of a pixel by the colour type of the file, of 8 bits a channel."""


def indexed(png: bytes) -> bytes:
    """Return the picture with 256 colours, those that it has most of and the ones that differ most from them. Every
    other one becomes the nearest of them."""
    parts = list(_chunks(png))
    width, height, depth, kind, *_ = struct.unpack(">IIBBBBB", parts[0][1])
    if depth != 8 or kind not in CHANNELS:
        raise ValueError(f"a picture of {depth} bits and colour type {kind}")
    channels = CHANNELS[kind]
    rows = _rows(zlib.decompress(b"".join(data for name, data in parts if name == b"IDAT")), width * channels, channels)
    pixels = [[row[at : at + 3] for at in range(0, len(row), channels)] for row in rows]
    palette, places = _palette(Counter(each for row in pixels for each in row))
    data = b"".join(b"\0" + bytes(places[each] for each in row) for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(data, 9)), (b"IEND", b""))
    return SIGNATURE + b"".join(_chunk(name, each) for name, each in chunks)


def _palette(colours: Counter[bytes]) -> tuple[list[bytes], dict[bytes, int]]:
    """Return the palette, and for each colour its place there."""
    palette = [colour for colour, _ in colours.most_common(FREQUENT)]
    places = {colour: place for place, colour in enumerate(palette)}
    nearest = {
        colour: min((_distance(each, colour), place) for place, each in enumerate(palette))
        for colour in sorted(colours.keys() - places.keys())
    }
    while nearest and len(palette) < COLOURS_MAX:
        farthest = max(nearest, key=lambda each: nearest[each])
        place = len(palette)
        palette.append(farthest)
        nearest = {
            colour: min(found, (_distance(farthest, colour), place))
            for colour, found in nearest.items()
            if colour != farthest
        }
        places[farthest] = place
    return palette, places | {colour: place for colour, (_, place) in nearest.items()}


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += length + 12


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _rows(data: bytes, length: int, pixel: int) -> Iterator[bytes]:
    """Yield the rows without their filters (PNG specification, 9)."""
    before = bytearray(length)
    for at in range(0, len(data), length + 1):
        kind, row = data[at], bytearray(data[at + 1 : at + 1 + length])
        for place in range(length if kind else 0):
            left = row[place - pixel] if place >= pixel else 0
            above = before[place]
            corner = before[place - pixel] if place >= pixel else 0
            row[place] = (row[place] + (0, left, above, (left + above) // 2, _paeth(left, above, corner))[kind]) & 255
        yield bytes(row)
        before = row


def _paeth(left: int, above: int, corner: int) -> int:
    near = left + above - corner
    return min((left, above, corner), key=lambda each: abs(near - each))
