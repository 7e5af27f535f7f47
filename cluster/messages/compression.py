"""Compressed blocks: unpacked to exactly the declared size, or refused before memory is allocated.

A block may be sent and stored as one zstd frame. The frame must declare its content size (as zstd does when it
compresses a whole buffer), so the memory for unpacking is known and bounded in advance.
"""

from typing import Final

import zstandard

from cluster.limits import BLOCK_BYTES_MAX

_unpacker: Final = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)


def unpack(frame: bytes, uncompressed_bytes: int) -> bytes:
    """Return the content of `frame`. Raises ValueError unless it is exactly one zstd frame of `uncompressed_bytes`.

    Never allocates more than `uncompressed_bytes`, which the caller has bounded by BLOCK_BYTES_MAX.
    """
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if parameters.content_size != uncompressed_bytes:
            raise ValueError(f"the zstd frame does not declare {uncompressed_bytes} bytes of content")
        content = _unpacker.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"not one whole zstd frame: {error}") from None
    if len(content) != uncompressed_bytes:  # a skippable frame declares a size, but has no content
        raise ValueError(f"the zstd frame holds {len(content)} bytes, not {uncompressed_bytes}")
    return content
