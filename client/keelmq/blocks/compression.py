"""zstd for whole blocks: a batch compresses far better than its messages one by one, and the broker keeps the frame.

The library is imported when the first block needs it: the `keelmq` command mostly does not.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

from keelmq.errors import Corrupt
from keelmq.limits import BLOCK_BYTES_MAX

if TYPE_CHECKING:
    import zstandard

COMPRESS_BYTES_MIN: Final = 4_096
"""Smaller blocks are sent as they are: a log record and a request cost more than what they would save."""
SAVED_PARTS_MIN: Final = 8
"""A frame is sent when it saves at least one part in so many; otherwise everybody would unpack it for nothing."""
LEVEL: Final = 1
"""On orders as JSON level 3 is no smaller and costs a third more time; what does not compress costs next to nothing."""


@cache
def _packer() -> "zstandard.ZstdCompressor":
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)


@cache
def _unpacker() -> "zstandard.ZstdDecompressor":
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)


def compress(block: bytes) -> bytes | None:
    """`block` as one zstd frame that says its content's size; None when it is too small or would not save enough."""
    if len(block) < COMPRESS_BYTES_MIN:
        return None
    frame = _packer().compress(block)
    return frame if len(frame) <= len(block) - len(block) // SAVED_PARTS_MIN else None


def unpack(frame: bytes, uncompressed_bytes: int) -> bytes:
    """The content of `frame`. Corrupt unless it is one frame of exactly `uncompressed_bytes`, at most 8 MiB.

    What it would take is known before any of it is taken.
    """
    import zstandard

    try:
        if uncompressed_bytes > BLOCK_BYTES_MAX or zstandard.frame_content_size(frame) != uncompressed_bytes:
            raise Corrupt("invalid_block", f"a compressed block does not declare {uncompressed_bytes} bytes")
        content = _unpacker().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise Corrupt("invalid_block", f"a compressed block with a right checksum cannot be unpacked: {exc}") from exc
    if len(content) != uncompressed_bytes:
        raise Corrupt("invalid_block", f"a compressed block holds {len(content)} bytes, not {uncompressed_bytes}")
    return content
