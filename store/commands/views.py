"""What queries return: frozen values that hold no reference to the index."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from store.commands.groups import AssignedQueue, TopicFilter
from store.commands.messages import BlockEncoding, Position
from store.commands.transactions import TransactionState
from store.limits import RETRY_DELAYS_MS, RETRY_MAX_ATTEMPTS


class QueueRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Offsets min_offset <= o < max_offset can be read."""

    queue: int
    min_offset: int
    max_offset: int


class ScheduledMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message that waits for its time."""

    message_id: str
    queue: int
    deliver_at_ms: int
    scheduled_at_ms: int
    transaction_id: str | None


class ScheduledPage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`next` continues the listing; None when it is complete."""

    messages: tuple[ScheduledMessage, ...]
    next: str | None


class Attempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One time that a message was given back: the `attempt`-th, by which member, and why."""

    attempt: int
    at_ms: int
    reason: str
    member_id: str
    client_id: str


class Redelivery(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Makes a row that of a single message, which a group is given again: `only` is its ordinal in a block of
    `block_count` messages. `topic`, `queue` and `offset` are where it was first."""

    only: int
    block_count: int
    topic: str
    queue: int
    offset: int
    attempt: int
    """How many times it was given back before, since it was produced or replayed."""
    history: tuple[Attempt, ...]
    """The last ones, the youngest at the end."""


class MemberView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    member_id: str
    client_id: str
    session_timeout_ms: int
    joined_at_ms: int
    assignment: tuple[AssignedQueue, ...]


class Membership(msgspec.Struct, frozen=True):
    """What one member of a group has."""

    generation: int
    assignment: tuple[AssignedQueue, ...]
    session_timeout_ms: int


class GroupView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    generation: int
    topics: tuple[str, ...]
    members: tuple[MemberView, ...]
    filters: tuple[TopicFilter, ...] = ()
    """By topic; those without one are read as a whole."""
    retry_max_attempts: int = RETRY_MAX_ATTEMPTS
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS


class GroupOffset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`offset` is the next one to read; `lag` is how many messages are behind it, or handed out to pop consumers and
    not acknowledged: those are `held`. Everything before `processed` is processed."""

    topic: str
    queue: int
    offset: int
    max_offset: int
    lag: int
    held: int = 0
    processed: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One visible batch of a queue: `count` messages, `base_offset` and following.

    `block_length` bytes of the payload of the commit log record at `position`, from `block_offset` on, are its message
    block; the ordinals in `skip` are not delivered (their ids were known already) and take no offset.
    """

    base_offset: int
    position: int
    block_offset: int
    block_length: int
    count: int
    crc32c: int
    batch_id: str
    stored_at_ms: int
    raft_index: int
    transaction_id: str | None
    skip: tuple[int, ...]
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None
    """What a compressed block unpacks to; None when it is not compressed."""
    redelivery: Redelivery | None = None
    """Of a row that holds a single message of its block; `skip` is empty then."""
    inline: bytes | None = None
    """The block itself, of a message that the broker made: then it is in no log record."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def block_bytes(self) -> int:
        """What the block takes in the memory of whoever reads it."""
        return self.block_length if self.uncompressed_bytes is None else self.uncompressed_bytes

    @property
    def unpacked_bytes(self) -> int:
        """What the row's messages take in the memory of whoever reads them; an average if it is one of several."""
        return self.block_bytes if self.redelivery is None else -(-self.block_bytes // self.redelivery.block_count)

    def ordinals(self) -> Sequence[int]:
        """Which messages of the block are the row's, in the order of their offsets."""
        if self.redelivery is not None:
            return (self.redelivery.only,)
        if not self.skip:
            return range(self.count)
        skip = frozenset(self.skip)
        return [ordinal for ordinal in range(self.count + len(skip)) if ordinal not in skip]


class HalfBatchView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    topic: str
    queue: int
    count: int
    batch_id: str
    crc32c: int
    position: int
    block_offset: int
    block_length: int
    encoding: BlockEncoding = "none"
    uncompressed_bytes: int | None = None


class TransactionView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    transaction_id: str
    state: TransactionState
    producer_group: str
    client_id: str
    prepared_at_ms: int
    prepared_index: int
    decided_at_ms: int | None
    check_times: int
    next_check_at_ms: int | None
    batches: tuple[HalfBatchView, ...]
    positions: tuple[Position, ...]


TimelineEventName = Literal["prepared", "check", "answer", "committed", "rolled_back", "discarded", "resumed"]


class TimelineEvent(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    at_ms: int
    event: TimelineEventName
    raft_index: int
    client_id: str | None = None
    via: str | None = None
    answer: str | None = None
    source: str | None = None
    operator: str | None = None
    reason: str | None = None
    forced: bool = False


class TransactionPage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`next` continues the listing; None when it is complete."""

    transactions: tuple[TransactionView, ...]
    next: str | None


class DueCheck(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    transaction_id: str
    producer_group: str
    client_id: str
    check_times: int
    next_check_at_ms: int
    prepared_at_ms: int
