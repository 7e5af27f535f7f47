"""Messages as applications see them, and what the broker says about them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_NO_PROPERTIES: Mapping[str, str] = {}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send. Limits are those of docs/http-api.md and are checked before anything leaves the process.

    `topic` is needed where a call does not name one (transactions). `message_id` makes the message idempotent: the
    broker appends it once however often it is sent. `queue` fixes the queue; `sharding_key` chooses it by hash, so
    messages with the same key stay in order.

    With one of `delay_level` (1 to 18), `delay_ms` and `deliver_at_ms` it becomes visible later, up to 40 days ahead;
    in a transaction, level and delay count from the commit. Messages of one batch have the same time.
    """

    body: bytes
    topic: str | None = None
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = _NO_PROPERTIES
    sharding_key: str | None = None
    queue: int | None = None
    message_id: str | None = None
    born_at_ms: int = 0
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None


class Origin(msgspec.Struct, frozen=True):
    """Where a message that was given back was first."""

    topic: str
    queue: int
    offset: int


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as a consumer or a check handler gets it. `offset` is its place in (topic, queue).

    One that its group gave back comes from `%RETRY%<group>`: `attempt` says how often it was given back since it was
    sent or replayed, `origin` where it was first. Its id stays the same.
    """

    topic: str
    queue: int
    offset: int
    message_id: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    properties: Mapping[str, str] = _NO_PROPERTIES
    sharding_key: str | None = None
    born_at_ms: int = 0
    stored_at_ms: int = 0
    transaction_id: str | None = None
    attempt: int = 0
    origin: Origin | None = None


class Receipt(msgspec.Struct, frozen=True):
    """Proof of durability: the Raft entry of the write, and the nodes that had it fsynced when it was answered."""

    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


class SendResult(msgspec.Struct, frozen=True):
    """Where one message is stored. `duplicate`: it was already there, this send appended nothing.

    A message that waits for its time has `deliver_at_ms`, and no offset yet. `Producer.cancel` takes it back.
    """

    message_id: str
    topic: str
    queue: int
    offset: int | None
    receipt: Receipt
    duplicate: bool = False
    deliver_at_ms: int | None = None


class MessagePlace(msgspec.Struct, frozen=True):
    """Where one message of a batch with known message ids is stored; without an offset it waits for its time."""

    message_id: str
    queue: int
    offset: int | None
    duplicate: bool
    deliver_at_ms: int | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """Where an atomic batch is stored: `count` messages at `offset`, `offset + 1`, … of one queue.

    When some of its explicit message ids were known already, `places` says for every message where it is. A batch that
    waits for its time has `deliver_at_ms`, and no offset yet.
    """

    batch_id: str
    topic: str
    queue: int
    offset: int | None
    count: int
    receipt: Receipt
    duplicate: bool = False
    places: Sequence[MessagePlace] = ()
    deliver_at_ms: int | None = None

    def message_id(self, ordinal: int) -> str:
        """The id of message `ordinal` (from 0) that was sent without one of its own."""
        return f"{self.batch_id}-{ordinal}"


def to_builtins(value: Any) -> Any:
    """`value` (any struct of the SDK) as plain dicts, lists and strings for `json.dumps`; bytes become base64."""
    return msgspec.to_builtins(value)
