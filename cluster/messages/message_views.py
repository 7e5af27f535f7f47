"""What is answered about messages that were looked up, and about what happened to them."""

from msgspec import UNSET, UnsetType

from cluster.http.responses import MessageView, Response
from store.state.message_search import MessageState, TraceEventName


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
