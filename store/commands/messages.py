"""Commands that carry messages or affect waiting ones, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase

BlockEncoding = Literal["none", "zstd"]


class BatchHeader(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """One message block: `count` messages that stay together in one queue with consecutive offsets."""

    topic: str
    queue: int
    count: int
    batch_id: str
    message_ids: tuple[str | None, ...] | None
    """Message ids by ordinal in the block; None stands for an implicit id (`<batch_id>-<ordinal>`), and None for the
    whole tuple when all ids are implicit.
    """
    crc32c: int
    length: int
    encoding: BlockEncoding = "none"
    """Compression of the block; `crc32c` and `length` are those of the block as it is stored."""
    uncompressed_bytes: int | None = None
    """Exact size in bytes of the unpacked block; None when the block is not compressed."""
    deliver_at_ms: int | None = None
    """Time at which the batch becomes visible; a past time means at once. Excludes `delay_ms`."""
    delay_ms: int | None = None
    """Time from applying the produce until the batch becomes visible; in a transaction, from applying its commit."""
    keys: tuple[bytes, ...] | None = None
    """Concatenated hashes (message_index.py) of each message's keys, by ordinal in the block. None when no message has
    a key, and in entries written before key lookup existed.
    """

    @property
    def is_delayed(self) -> bool:
        return self.deliver_at_ms is not None or self.delay_ms is not None


class MessagePlaced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of one message. A waiting message has no offset yet; it gets one at `deliver_at_ms`."""

    message_id: str
    queue: int
    offset: int | None
    duplicate: bool
    deliver_at_ms: int | None = None


class BatchPlaced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place of a batch. `count` messages from `offset` on were appended for it, by this command or, when
    `duplicate`, by an earlier one.

    When some of the batch's explicit message ids were known already, `messages` gives the place of each message. If all
    were known, nothing was appended: `count` is 0, `offset` is that of the batch's first message and `duplicate` is
    true.

    A waiting batch has no offset, but `deliver_at_ms`; `count` of its messages will get an offset at that time.
    """

    topic: str
    queue: int
    offset: int | None
    count: int
    duplicate: bool
    messages: tuple[MessagePlaced, ...] | None = None
    deliver_at_ms: int | None = None


class Produce(CommandBase, frozen=True, tag=3):
    """Append batches to queues of one topic: all of them or none."""

    batches: tuple[BatchHeader, ...]
    client_id: str = ""
    """The sender, by its own word; nothing depends on it."""


class Produced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The places of the batches, in the order of the command's batches."""

    results: tuple[BatchPlaced, ...]


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The place where a batch became visible: `count` messages from `offset` on. A batch that waits for `deliver_at_ms`
    has no offset.
    """

    topic: str
    queue: int
    offset: int | None
    count: int
    deliver_at_ms: int | None = None


class FireTimers(CommandBase, frozen=True, tag=14):
    """Make messages visible whose timers are due by the clock of this entry, the longest due first: at most `limit`
    timers.
    """

    limit: int


class Fired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The places of the batches that became visible, by due time; `dropped` counts messages of topics that are gone."""

    positions: tuple[Position, ...]
    dropped: int


class CancelScheduled(CommandBase, frozen=True, tag=15):
    """Cancel a scheduled message that is not due yet."""

    topic: str
    message_id: str


class Cancelled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Confirms that the message will not be delivered."""

    topic: str
    message_id: str
