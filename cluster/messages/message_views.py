"""Responses that show messages and their traces."""

from typing import Literal

from msgspec import UNSET, UnsetType

from cluster.http.responses import Response
from store.commands.views import Redelivery
from store.state.message_search import MessageState, TraceEventName


class OriginView(Response, kw_only=True, frozen=True):
    """The original place of a message that was given back."""

    topic: str
    queue: int
    offset: int


class AttemptView(Response, kw_only=True, frozen=True):
    """One occasion on which a message was given back."""

    attempt: int
    at_ms: int
    reason: str
    member_id: str
    client_id: str


class MessageView(Response, kw_only=True, frozen=True):
    """A message in JSON. `offset` is absent while its transaction is undecided, `transaction_id` when it has no
    transaction. `attempt` and `origin` are present when a group gave the message back, `history` for a dead letter."""

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
    """A page of messages. `next` is the cursor of the next page; null when the list is complete."""

    messages: list[MessageView]
    next: str | None


class FoundMessageView(MessageView, kw_only=True, frozen=True):
    """A message that was looked up by its id. For a message that is not visible, `stored_at_ms` is the time at which it
    was accepted."""

    state: MessageState
    batch_id: str
    raft_index: int
    deliver_at_ms: int | UnsetType = UNSET


class FoundMessagesView(Response, kw_only=True, frozen=True):
    messages: list[FoundMessageView]


class TraceEventView(Response, kw_only=True, frozen=True):
    """One event of a message, and the log entry (`term`, `raft_index`) that caused it."""

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
    principal: str | UnsetType = UNSET


class TraceView(Response, kw_only=True, frozen=True):
    """The history of a message. `groups_left_out` is true when the caller may not describe all consumer groups: what
    others did with the message was left out, whether they did anything or not.
    """

    topic: str
    queue: int
    offset: int | UnsetType = UNSET
    batch_id: str
    state: MessageState
    groups_left_out: bool
    events: list[TraceEventView]


class TracesView(Response, kw_only=True, frozen=True):
    message_id: str
    traces: list[TraceView]
