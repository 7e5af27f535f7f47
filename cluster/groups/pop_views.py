"""What pop consumers send and are answered, and the deletion of a group."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from cluster.http.requests import ClientId, Operator, Reason, Request, Tags, WaitMs
from cluster.http.responses import MessageView, Response
from cluster.limits import (
    GIVE_BACK_REASON_BYTES_MAX,
    POP_ACKS_MAX,
    POP_HANDLE_PATTERN,
    POP_INVISIBLE_MS_DEFAULT,
    POP_INVISIBLE_MS_MAX,
    POP_MESSAGES_MAX,
)
from store.commands.pop_results import AckOutcome, InvisibleOutcome

ReceiptHandle = Annotated[str, Meta(pattern=POP_HANDLE_PATTERN)]
InvisibleMs = Annotated[int, Meta(ge=0, le=POP_INVISIBLE_MS_MAX)]


class PopRequest(Request, kw_only=True, frozen=True):
    """`start` is where a group begins in queues that it has not read."""

    topic: str
    max_messages: Annotated[int, Meta(ge=1, le=POP_MESSAGES_MAX)] = POP_MESSAGES_MAX
    invisible_ms: Annotated[int, Meta(ge=1, le=POP_INVISIBLE_MS_MAX)] = POP_INVISIBLE_MS_DEFAULT
    wait_ms: WaitMs = 0
    tags: Tags | None = None
    filter: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    client_id: ClientId = ""


class PopAckRequest(Request, kw_only=True, frozen=True):
    receipt_handles: Annotated[tuple[ReceiptHandle, ...], Meta(min_length=1, max_length=POP_ACKS_MAX)]


class PopInvisibleRequest(Request, kw_only=True, frozen=True):
    """Without `invisible_ms` the message is given back and comes again by the group's back-off."""

    receipt_handle: ReceiptHandle
    invisible_ms: InvisibleMs | None = None
    reason: Annotated[str, Meta(max_length=GIVE_BACK_REASON_BYTES_MAX)] = ""


class DeleteGroupQuery(Request, kw_only=True, frozen=True):
    with_dead_letters: bool = False
    operator: Operator = ""
    reason: Reason = ""


class PoppedMessageView(MessageView, kw_only=True, frozen=True):
    """As in a pull; `attempt` is there for all, 0 for the first time."""

    receipt_handle: str


class PopView(Response, kw_only=True, frozen=True):
    """`invisible_until_ms` is when what is not acknowledged comes again; absent without messages."""

    messages: list[PoppedMessageView]
    invisible_until_ms: int | UnsetType = UNSET


class PopAckedView(Response, kw_only=True, frozen=True):
    receipt_handle: str
    outcome: AckOutcome


class PopAckView(Response, kw_only=True, frozen=True):
    results: list[PopAckedView]


class PopInvisibleView(Response, kw_only=True, frozen=True):
    """`due_at_ms` is when the message comes again; absent for one that does not."""

    receipt_handle: str
    outcome: InvisibleOutcome
    due_at_ms: int | UnsetType = UNSET
