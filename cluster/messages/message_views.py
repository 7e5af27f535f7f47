"""What is answered about messages that were looked up, and about what happened to them."""

from typing import Literal

from msgspec import UNSET, UnsetType

from cluster.http.responses import Response
from store.commands.views import Redelivery
from store.state.message_search import MessageState, TraceEventName


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


def origin_view(redelivery: Redelivery | None) -> OriginView | UnsetType:
    if redelivery is None:
        return UNSET
    return OriginView(topic=redelivery.topic, queue=redelivery.queue, offset=redelivery.offset)


class MessageListView(Response, kw_only=True, frozen=True):
    """`next` continues the listing; None when it is complete."""

    messages: list[MessageView]
    next: str | None


class FoundMessageView(MessageView, kw_only=True, frozen=True):
    """A message that was looked up by its id. Unless it is visible, `stored_at_ms` is when it was accepted."""

    state: MessageState
    batch_id: str
    raft_index: int
    deliver_at_ms: int | UnsetType = UNSET


class FoundMessagesView(Response, kw_only=True, frozen=True):
    messages: list[FoundMessageView]


class TraceEventView(Response, kw_only=True, frozen=True):
    """One thing that happened to a message, and the log entry (`term`, `raft_index`) that did it."""

    at_ms: int
    event: TraceEventName
    term: int
    raft_index: int
    topic: str | UnsetType = UNSET
    queue: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    transaction_id: str | UnsetType = UNSET
    due_at_ms: int | UnsetType = UNSET
    group: str | UnsetType = UNSET
    member_id: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    committed_offset: int | UnsetType = UNSET
    first_commit: bool | UnsetType = UNSET
    attempt: int | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    via: str | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    operator: str | UnsetType = UNSET
    forced: bool | UnsetType = UNSET


class TraceView(Response, kw_only=True, frozen=True):
    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    batch_id: str
    state: MessageState
    events: list[TraceEventView]


class TracesView(Response, kw_only=True, frozen=True):
    message_id: str
    traces: list[TraceView]
