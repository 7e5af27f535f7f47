"""zstd for whole blocks: a batch compresses far better than its messages one by one, and the broker keeps the frame.

The library is imported when the first block needs it, because most `keelmq` commands do not.
"""

from functools import cache
from typing import TYPE_CHECKING, Final

from keelmq.errors import Corrupt
from keelmq.limits import BLOCK_BYTES_MAX

if TYPE_CHECKING:
    import zstandard

COMPRESS_BYTES_MIN: Final = 4_096
"""Smaller blocks are sent uncompressed: a log record and a request cost more than compression would save."""
SAVED_PARTS_MIN: Final = 8
"""A frame is sent only if it saves at least 1/8 of the block; otherwise readers would decompress it for nothing."""
LEVEL: Final = 1
"""zstd level. On JSON orders, level 3 is no smaller and a third slower; incompressible data costs next to nothing."""


@cache
def _packer() -> "zstandard.ZstdCompressor":
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True)


@cache
def _unpacker() -> "zstandard.ZstdDecompressor":
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)


def compress(block: bytes) -> bytes | None:
    """Compress `block` to one zstd frame with a content size; None when `block` is small or the frame saves little."""
    if len(block) < COMPRESS_BYTES_MIN:
        return None
    frame = _packer().compress(block)
    return frame if len(frame) <= len(block) - len(block) // SAVED_PARTS_MIN else None


def unpack(frame: bytes, uncompressed_bytes: int) -> bytes:
    """Decompress `frame`. Raises Corrupt unless it is one frame of exactly `uncompressed_bytes`, at most 8 MiB.

    The declared size is checked before any memory is allocated for the content.
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
