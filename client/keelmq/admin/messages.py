"""Answers about messages: found, listed, scheduled and dead ones."""

import msgspec

from keelmq.admin.view import View
from keelmq.message import Origin


class GiveBack(View, frozen=True, kw_only=True):
    """One occasion on which a consumer gave a message back."""

    attempt: int
    at_ms: int
    reason: str
    member_id: str = ""
    client_id: str = ""


class StoredMessage(View, frozen=True, kw_only=True):
    """A message in the broker. `body` is text, or base64 where `encoding` is `base64`.

    `offset` is None while the message is not visible. A message that its group gave back has an `attempt` of 1 or more
    and its original place as `origin`; a dead letter has a `history`, too.
    """

    message_id: str
    topic: str
    queue: int
    offset: int | None = None
    body: str
    encoding: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    sharding_key: str | None = None
    born_at_ms: int = 0
    stored_at_ms: int
    transaction_id: str | None = None
    attempt: int = 0
    origin: Origin | None = None
    history: tuple[GiveBack, ...] = ()


class FoundMessage(StoredMessage, frozen=True, kw_only=True):
    """A message that was looked up by its id, visible or not.

    `state` is `visible`, `scheduled`, `taken_back`, `prepared`, `rolled_back` or `discarded`. For a message that is not
    visible, `stored_at_ms` is the time at which it was accepted. `raft_index` is the log entry that stored it.
    """

    state: str
    batch_id: str
    raft_index: int
    deliver_at_ms: int | None = None


class MessagePage(View, frozen=True, kw_only=True):
    """One page of messages. `next` is the cursor of the following page; None when there is no more."""

    messages: tuple[StoredMessage, ...]
    next: str | None = None


class ScheduledMessage(View, frozen=True, kw_only=True):
    """A message that waits for its delivery time."""

    message_id: str
    queue: int
    deliver_at_ms: int
    scheduled_at_ms: int
    transaction_id: str | None = None


class ScheduledPage(View, frozen=True, kw_only=True):
    """One page of scheduled messages, the next one first. `next` is the cursor of the following page, or None."""

    messages: tuple[ScheduledMessage, ...]
    next: str | None = None


class DeadLetter(StoredMessage, frozen=True, kw_only=True):
    """A dead letter. `replayed_at_ms` is the time at which its group got it once more; None if it never did."""

    replayed_at_ms: int | None = None


class DeadLetterPage(View, frozen=True, kw_only=True):
    """Dead letters of a group. The following page begins at `next_offset`; there is none from `max_offset` on."""

    messages: tuple[DeadLetter, ...]
    next_offset: int
    max_offset: int


class ReplayedLetter(View, frozen=True, kw_only=True):
    """The replay of one dead letter. `duplicate` is true when an earlier call had replayed it already."""

    offset: int
    replayed_at_ms: int
    duplicate: bool = False


class ReplayResult(View, frozen=True, kw_only=True):
    """The replays of one call, in the order of the given offsets."""

    results: tuple[ReplayedLetter, ...]
