"""Compressed blocks: unpacked to exactly what was declared, or refused before the memory for it is taken.

A block may travel and be stored as one zstd frame. The frame has to say its content's size (zstd does when it
compresses a whole buffer), so what unpacking will take is known, and bounded, before any of it is done.
"""

from typing import Final

import zstandard

from cluster.limits import BLOCK_BYTES_MAX

_unpacker: Final = zstandard.ZstdDecompressor(max_window_size=BLOCK_BYTES_MAX)


def unpack(frame: bytes, uncompressed_bytes: int) -> bytes:
    """The content of `frame`. ValueError unless it is one zstd frame of exactly `uncompressed_bytes`, and nothing else.

    Never takes memory for more than `uncompressed_bytes`, which the caller has bounded by BLOCK_BYTES_MAX.
    """
    try:
        parameters = zstandard.get_frame_parameters(frame)
        if parameters.content_size != uncompressed_bytes:
            raise ValueError(f"the zstd frame does not declare {uncompressed_bytes} bytes of content")
        content = _unpacker.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"not one whole zstd frame: {error}") from None
    if len(content) != uncompressed_bytes:  # a skippable frame says a size, and has no content
        raise ValueError(f"the zstd frame holds {len(content)} bytes, not {uncompressed_bytes}")
    return content
