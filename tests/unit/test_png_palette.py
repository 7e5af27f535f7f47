"""Pictures with a palette have the pixels of the file from which they were made, whichever filters its rows have."""

import struct
import zlib

from tests.png_palette import COLOURS_MAX, indexed


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, rows: list[bytes]) -> bytes:
    """Return a file of 8-bit RGB; each row begins with its filter."""
    head = struct.pack(">IIBBBBB", width, len(rows), 8, 2, 0, 0, 0)
    data = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def pixels(made: bytes, width: int) -> list[list[bytes]]:
    """Return the colours of a file that `indexed` made."""
    parts = {}
    at = 8
    while at < len(made):
        (length,) = struct.unpack_from(">I", made, at)
        parts[made[at + 4 : at + 8]] = made[at + 8 : at + 8 + length]
        at += length + 12
    palette, data = parts[b"PLTE"], zlib.decompress(parts[b"IDAT"])
    rows = [data[start + 1 : start + 1 + width] for start in range(0, len(data), width + 1)]
    return [[palette[3 * place : 3 * place + 3] for place in row] for row in rows]


def test_rows_with_each_filter_keep_their_pixels() -> None:
    plain = bytes([10, 20, 30, 40, 50, 60])
    rows = [b"\0" + plain, b"\1" + bytes([10, 20, 30, 30, 30, 30]), b"\2" + bytes(6)]
    rows.append(b"\3" + bytes([5, 10, 15, 15, 15, 15]))  # the mean of 10 and 40 is 25, of 0 and 10 it is 5
    rows.append(b"\4" + bytes(3) + bytes([0, 0, 0]))
    assert pixels(indexed(png(2, rows)), 2) == [[plain[:3], plain[3:]]] * 5


def test_a_rare_colour_stays_and_many_become_the_nearest() -> None:
    greys = [bytes([value, value, value + shade]) for value in range(100, 200) for shade in (0, 1, 2)]
    orange = bytes([255, 128, 0])
    row = b"".join(greys * 2) + orange
    made = pixels(indexed(png(601, [b"\0" + row])), 601)[0]
    assert made[-1] == orange
    assert len(set(made)) == COLOURS_MAX
    wanted = [*greys, *greys, orange]
    assert (
        max(abs(one - other) for pair in zip(made, wanted, strict=True) for one, other in zip(*pair, strict=True)) < 4
    )
