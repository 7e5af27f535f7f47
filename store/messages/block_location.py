"""The location of a message block in the log."""

import msgspec

from store.commands.messages import BatchHeader, BlockEncoding
from store.commands.views import Row


class BlockLocation(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message block: `length` bytes from `offset` on in the payload of the commit log record at `position`."""

    position: int
    offset: int
    length: int
    crc32c: int
    batch_id: str
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None
    inline: bytes | None = None
    """The block itself, for a message that the broker made: such a block is in no log record."""

    @classmethod
    def of_row(cls, row: Row) -> "BlockLocation":
        """Return the location of the block that a row points at."""
        return cls(
            row.position,
            row.block_offset,
            row.block_length,
            row.crc32c,
            row.batch_id,
            row.encoding,
            row.uncompressed_bytes,
            row.inline,
        )

    @classmethod
    def of(cls, header: BatchHeader, position: int, offset: int) -> "BlockLocation":
        """Return the location of the block of `header`, at `offset` in the payload of the record at `position`."""
        return cls(
            position,
            offset,
            header.length,
            header.crc32c,
            header.batch_id,
            header.encoding,
            header.uncompressed_bytes,
        )
