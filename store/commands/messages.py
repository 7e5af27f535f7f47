"""Commands that bring messages, each with its result."""

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
    """By ordinal in the block; None where the id is implicit (`<batch_id>-<ordinal>`). None when all are implicit."""
    crc32c: int
    length: int
    encoding: BlockEncoding = "none"
    """How the block is compressed; `crc32c` and `length` are those of the block as it is stored."""
    uncompressed_bytes: int | None = None
    """What a compressed block unpacks to, exactly; None when it is not compressed."""
    deliver_at_ms: int | None = None
    """Visible at this time; at once when it is past. Not together with `delay_ms`."""
    delay_ms: int | None = None
    """Visible so long after the produce is applied; in a transaction, after its commit is."""
    keys: tuple[bytes, ...] | None = None
    """By ordinal in the block, the hashes (message_index.py) of the message's keys, one after the other. None when no
    message has a key, and of entries that were written before keys could be looked up."""

    @property
    def is_delayed(self) -> bool:
        return self.deliver_at_ms is not None or self.delay_ms is not None


class MessagePlaced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message that waits has no offset yet, but a time at which it gets one."""

    message_id: str
    queue: int
    offset: int | None
    duplicate: bool
    deliver_at_ms: int | None = None


class BatchPlaced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a batch is. `count` messages from `offset` on were appended for it, by this command or, when `duplicate`,
    by an earlier one.

    When some of its explicit message ids were known already, `messages` says where each message of the batch is. If all
    were known, nothing was appended: `count` is 0, `offset` is that of its first message and `duplicate` is true.

    A batch that waits for its time has no offset, but `deliver_at_ms`; `count` of its messages will get one then.
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
    """Who sent them, by its own word; nothing depends on it."""


class Produced(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """In the order of the command's batches."""

    results: tuple[BatchPlaced, ...]


class Position(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where a batch became visible: `count` messages from `offset` on. While it waits for its time, `deliver_at_ms`,
    it has no offset."""

    topic: str
    queue: int
    offset: int | None
    count: int
    deliver_at_ms: int | None = None


class FireTimers(CommandBase, frozen=True, tag=14):
    """Make what is due by the clock of this entry visible, the longest due first: at most `limit` timers."""

    limit: int


class Fired(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became visible, by due time; `dropped` messages were for topics that are gone."""

    positions: tuple[Position, ...]
    dropped: int


class CancelScheduled(CommandBase, frozen=True, tag=15):
    """Take back a message that is not due yet."""

    topic: str
    message_id: str


class Cancelled(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The message will not be delivered."""

    topic: str
    message_id: str
