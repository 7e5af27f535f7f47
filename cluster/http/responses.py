"""What the broker answers: one struct per response, encoded as JSON or msgpack and described by /openapi.json."""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from raft.proposals import Applied
from store.commands.command import BlockEncoding, QueueOffset, TopicType
from store.commands.results import GiveBackOutcome, Redelivery, TimelineEventName, TransactionState

Role = Literal["leader", "follower", "candidate"]


class Response(msgspec.Struct, kw_only=True, frozen=True):
    """Base of everything that clients are answered. A field that is UNSET is left out."""


class Receipt(Response, kw_only=True, frozen=True):
    """Proof of a write: `durable_on` are the nodes known to have it fsynced when the answer left."""

    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


def receipt_of(applied: Applied) -> Receipt:
    return Receipt(
        term=applied.term, index=applied.index, timestamp_ms=applied.timestamp_ms, durable_on=applied.durable_on
    )


LogHolderKind = Literal["message", "retry", "dead_letter", "scheduled", "transaction", "peer"]


class LogHolderView(Response, kw_only=True, frozen=True):
    """What needs the log from the entry at `raft_index` on, `bytes` of it, since `since_ms`. `subject` is a topic,
    group, transaction id or node id, if it is known."""

    kind: LogHolderKind
    subject: str | None
    raft_index: int
    since_ms: int | None
    bytes: int


class QueueOffsetsView(Response, kw_only=True, frozen=True):
    queue: int
    min_offset: int
    max_offset: int
    first_stored_at_ms: int | UnsetType = UNSET
    last_stored_at_ms: int | UnsetType = UNSET


class TopicView(Response, kw_only=True, frozen=True):
    topic: str
    queues: int
    type: TopicType
    retention_ms: int
    system: bool
    created_at_ms: int
    queue_offsets: tuple[QueueOffsetsView, ...]


class TopicsView(Response, kw_only=True, frozen=True):
    topics: list[TopicView]
    next: str | None


class ProducedMessage(Response, kw_only=True, frozen=True):
    """A message that waits for its time has `deliver_at_ms` instead of an offset."""

    message_id: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    duplicate: bool


class ProduceView(Response, kw_only=True, frozen=True):
    results: list[ProducedMessage]
    receipt: Receipt


class BatchView(Response, kw_only=True, frozen=True):
    """A batch that waits for its time has `deliver_at_ms` instead of an offset."""

    batch_id: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    count: int
    duplicate: bool
    messages: list[ProducedMessage] | UnsetType = UNSET


class BlockProduceView(Response, kw_only=True, frozen=True):
    results: list[BatchView]
    receipt: Receipt


class ScheduledMessageView(Response, kw_only=True, frozen=True):
    """A message that waits for its time."""

    message_id: str
    queue: int
    deliver_at_ms: int
    scheduled_at_ms: int
    transaction_id: str | UnsetType = UNSET


class ScheduledView(Response, kw_only=True, frozen=True):
    messages: list[ScheduledMessageView]
    next: str | None


class PreparedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    duplicate: bool
    receipt: Receipt


class PositionView(Response, kw_only=True, frozen=True):
    """`deliver_at_ms` is given when the commit did not make the batch visible at once; without an `offset` it waits."""

    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    count: int


class DecidedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    positions: tuple[PositionView, ...] | UnsetType = UNSET


class ResumedView(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    next_check_at_ms: int


class HalfMessagesView(Response, kw_only=True, frozen=True):
    """One batch of a half transaction; `position` is that of its commit log record."""

    topic: str
    queue: int
    count: int
    batch_id: str
    position: int


class TimelineEventView(Response, kw_only=True, frozen=True):
    at_ms: int
    event: TimelineEventName
    raft_index: int
    client_id: str | UnsetType = UNSET
    via: str | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    operator: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    forced: bool | UnsetType = UNSET


class TransactionSummary(Response, kw_only=True, frozen=True):
    transaction_id: str
    state: TransactionState
    producer_group: str
    client_id: str
    prepared_at_ms: int
    decided_at_ms: int | None
    check_times: int
    next_check_at_ms: int | None
    messages: tuple[HalfMessagesView, ...]
    positions: tuple[PositionView, ...]


class TransactionDetail(TransactionSummary, kw_only=True, frozen=True):
    timeline: tuple[TimelineEventView, ...]


class TransactionsView(Response, kw_only=True, frozen=True):
    transactions: list[TransactionSummary]
    next: str | None


class OriginView(Response, kw_only=True, frozen=True):
    """Where a message that was given back was first."""

    topic: str
    queue: int
    offset: int


class AttemptView(Response, kw_only=True, frozen=True):
    """One time that a message was given back."""

    attempt: int
    at_ms: int
    reason: str
    member_id: str
    client_id: str


class MessageView(Response, kw_only=True, frozen=True):
    """A message as JSON shows it. `offset` is absent while its transaction is undecided, `transaction_id` without one;
    `attempt` and `origin` are there when a group gave it back, `history` when it is a dead letter."""

    message_id: str
    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    body: str
    encoding: Literal["utf8", "base64"]
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    sharding_key: str | None
    born_at_ms: int
    stored_at_ms: int
    transaction_id: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    origin: OriginView | UnsetType = UNSET
    history: tuple[AttemptView, ...] | UnsetType = UNSET


class DeadLetterView(MessageView, kw_only=True, frozen=True):
    """`replayed_at_ms` is when it was given to its group once more; absent if it never was."""

    replayed_at_ms: int | UnsetType = UNSET


class DeadLettersView(Response, kw_only=True, frozen=True):
    messages: list[DeadLetterView]
    next_offset: int
    max_offset: int


class PulledRange(Response, kw_only=True, frozen=True):
    next_offset: int
    max_offset: int
    min_offset: int


class PullView(PulledRange, kw_only=True, frozen=True):
    messages: list[MessageView]


class PulledBatch(Response, kw_only=True, frozen=True):
    """With `only`, `block` is cut: it holds that message of the batch alone, and `crc32c` is that of what is sent."""

    base_offset: int
    count: int
    batch_id: str
    stored_at_ms: int
    crc32c: int
    block: bytes
    transaction_id: str | None
    skip: tuple[int, ...]
    filtered: tuple[int, ...] | UnsetType = UNSET
    only: int | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    origin: OriginView | UnsetType = UNSET
    encoding: BlockEncoding | UnsetType = UNSET
    uncompressed_bytes: int | UnsetType = UNSET


class BlockPullView(PulledRange, kw_only=True, frozen=True):
    batches: list[PulledBatch]


class OffsetView(Response, kw_only=True, frozen=True):
    offset: int
    timestamp_ms: int | UnsetType = UNSET


class CheckView(Response, kw_only=True, frozen=True):
    """A question to a producer: is this transaction to be committed?"""

    transaction_id: str
    producer_group: str
    client_id: str
    check_times: int
    prepared_at_ms: int
    messages: list[MessageView]


class ChecksView(Response, kw_only=True, frozen=True):
    checks: list[CheckView]


class ProducerGroupView(Response, kw_only=True, frozen=True):
    producer_group: str
    check_url: str | None


class AssignedQueueView(Response, kw_only=True, frozen=True):
    topic: str
    queue: int


class MembershipView(Response, kw_only=True, frozen=True):
    """What a member is told when it joins and at every heartbeat."""

    member_id: str
    generation: int
    assignment: tuple[AssignedQueueView, ...]
    session_timeout_ms: int


class CommittedOffset(Response, kw_only=True, frozen=True):
    topic: str
    queue: int
    offset: int


class CommittedOffsetsView(Response, kw_only=True, frozen=True):
    offsets: list[CommittedOffset]


class GroupSettingsView(Response, kw_only=True, frozen=True):
    group: str
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]


class GivenBackView(Response, kw_only=True, frozen=True):
    """`due_at_ms` is when the group gets the message again; absent when it is a dead letter."""

    topic: str
    queue: int
    offset: int
    attempt: int
    outcome: GiveBackOutcome
    due_at_ms: int | UnsetType = UNSET


class GiveBackView(Response, kw_only=True, frozen=True):
    results: list[GivenBackView]
    generation: int


class ReplayedView(Response, kw_only=True, frozen=True):
    offset: int
    replayed_at_ms: int
    duplicate: bool


class ReplayView(Response, kw_only=True, frozen=True):
    results: list[ReplayedView]


class ResetView(Response, kw_only=True, frozen=True):
    offsets: list[CommittedOffset]
    generation: int


class HealthView(Response, kw_only=True, frozen=True):
    status: Literal["ok"]


class ProblemDocument(Response, kw_only=True, frozen=True):
    """An error as application/problem+json; further members depend on `code`."""

    type: str
    title: str
    status: int
    code: str
    detail: str


def or_unset(value: int | None) -> int | UnsetType:
    """None is left out of the answer."""
    return UNSET if value is None else value


def origin_view(redelivery: Redelivery | None) -> OriginView | UnsetType:
    if redelivery is None:
        return UNSET
    return OriginView(topic=redelivery.topic, queue=redelivery.queue, offset=redelivery.offset)


def json_body(response: Response) -> bytes:
    return _json_encoder.encode(response)


def msgpack_body(response: Response) -> bytes:
    return _msgpack_encoder.encode(response)


def committed_offsets(offsets: tuple[QueueOffset, ...]) -> list[CommittedOffset]:
    return [as_view(CommittedOffset, each) for each in offsets]


def as_view(kind: type[Any], value: Any) -> Any:
    """The response struct of a store value with the same field names."""
    return msgspec.convert(value, kind, from_attributes=True)


_json_encoder = msgspec.json.Encoder()
_msgpack_encoder = msgspec.msgpack.Encoder()
