"""Results of queries: frozen values that hold no reference to the index."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from store.commands.groups import AssignedQueue, GroupPause, TopicFilter
from store.commands.messages import BlockEncoding, Position
from store.commands.transactions import TransactionState
from store.limits import RETRY_DELAYS_MS, RETRY_MAX_ATTEMPTS


class QueueRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The readable offsets of a queue: min_offset <= o < max_offset."""

    queue: int
    min_offset: int
    max_offset: int


class ScheduledMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message that waits until `deliver_at_ms`."""

    message_id: str
    queue: int
    deliver_at_ms: int
    scheduled_at_ms: int
    transaction_id: str | None


class ScheduledPage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One page of a listing. `next` continues the listing; None when the listing is complete."""

    messages: tuple[ScheduledMessage, ...]
    next: str | None


class Attempt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One time that a message was given back: the `attempt`-th time, with the member and its reason."""

    attempt: int
    at_ms: int
    reason: str
    member_id: str
    client_id: str


class Redelivery(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Makes a row hold a single message that is redelivered to a group: `only` is its ordinal in a block of
    `block_count` messages. `topic`, `queue` and `offset` are the message's original place.
    """

    only: int
    block_count: int
    topic: str
    queue: int
    offset: int
    attempt: int
    """Number of times the message was given back before, since it was produced or replayed."""
    history: tuple[Attempt, ...]
    """The last attempts, the latest at the end."""


class MemberView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    member_id: str
    client_id: str
    session_timeout_ms: int
    joined_at_ms: int
    assignment: tuple[AssignedQueue, ...]


class Membership(msgspec.Struct, frozen=True):
    """The state of one member of a group."""

    generation: int
    assignment: tuple[AssignedQueue, ...]
    session_timeout_ms: int
    pause: GroupPause | None = None


class GroupView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    group: str
    generation: int
    topics: tuple[str, ...]
    members: tuple[MemberView, ...]
    filters: tuple[TopicFilter, ...] = ()
    """Filters by topic; a topic without a filter is read as a whole."""
    retry_max_attempts: int = RETRY_MAX_ATTEMPTS
    retry_delays_ms: tuple[int, ...] = RETRY_DELAYS_MS
    pause: GroupPause | None = None
    """Why the group is handed out nothing; None when it is not paused."""


class GroupOffset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A group's position in one queue. `offset` is the next offset to read; `lag` counts the messages from `offset` on
    plus `held`, the messages handed out to pop consumers and not acknowledged. Everything before `processed` is
    processed.
    """

    topic: str
    queue: int
    offset: int
    max_offset: int
    lag: int
    held: int = 0
    processed: int = 0


class Row(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One visible batch of a queue: `count` messages with the offsets from `base_offset` on.

    The message block is `block_length` bytes from `block_offset` on in the payload of the commit log record at
    `position`; the ordinals in `skip` are not delivered (their ids were known already) and take no offset.
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
    """Size in bytes of the unpacked block; None when the block is not compressed."""
    redelivery: Redelivery | None = None
    """Set for a row that holds a single message of its block; `skip` is empty then."""
    inline: bytes | None = None
    """The block itself, for a message that the broker made: such a block is in no log record."""

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.count

    @property
    def block_bytes(self) -> int:
        """Memory in bytes that the unpacked block takes in a reader."""
        return self.block_length if self.uncompressed_bytes is None else self.uncompressed_bytes

    @property
    def unpacked_bytes(self) -> int:
        """Memory in bytes that the row's messages take in a reader; the block's average for a redelivered message."""
        return self.block_bytes if self.redelivery is None else -(-self.block_bytes // self.redelivery.block_count)

    def ordinals(self) -> Sequence[int]:
        """Return the ordinals of the row's messages in the block, in the order of their offsets."""
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
    principal: str | None = None
    """The authenticated principal whose request it was; None without one."""


class TransactionPage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One page of a listing. `next` continues the listing; None when the listing is complete."""

    transactions: tuple[TransactionView, ...]
    next: str | None


class DueCheck(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    transaction_id: str
    producer_group: str
    client_id: str
    check_times: int
    next_check_at_ms: int
    prepared_at_ms: int
