"""Messages as applications see them, and the broker's answers about them."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_NO_PROPERTIES: Mapping[str, str] = {}


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send. The limits of docs/http-api.md are checked before anything leaves the process.

    `topic` is required where a call does not name one (transactions). `message_id` makes the message idempotent: the
    broker appends it once, even if it is sent repeatedly. `queue` fixes the queue; `sharding_key` chooses the queue by
    hash, so messages with the same key stay in order.

    With one of `delay_level` (1 to 18), `delay_ms` and `deliver_at_ms` the message becomes visible later, up to 40 days
    ahead; in a transaction, level and delay count from the commit. All messages of a batch become visible at the same
    time.
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
    """The original place of a redelivered message."""

    topic: str
    queue: int
    offset: int


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as a consumer or a check handler receives it. `offset` is its place in (topic, queue).

    A message that its group gave back comes from `%RETRY%<group>`: `attempt` counts how often it was given back since
    it was sent or replayed, `origin` is its original place. Its id stays the same.
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
    """Proof of durability: the Raft entry of the write, and the nodes that had fsynced it when the broker answered."""

    term: int
    index: int
    timestamp_ms: int
    durable_on: tuple[int, ...]


class SendResult(msgspec.Struct, frozen=True):
    """The place of one stored message.

    `duplicate` means that the message was already stored and this send appended nothing. A message that waits for its
    delivery time has `deliver_at_ms` and no offset yet; `Producer.cancel` cancels it.
    """

    message_id: str
    topic: str
    queue: int
    offset: int | None
    receipt: Receipt
    duplicate: bool = False
    deliver_at_ms: int | None = None


class MessagePlace(msgspec.Struct, frozen=True):
    """The place of one stored message of a batch with known message ids; no offset means that it waits for its time."""

    message_id: str
    queue: int
    offset: int | None
    duplicate: bool
    deliver_at_ms: int | None = None


class BatchResult(msgspec.Struct, frozen=True):
    """The place of a stored atomic batch: `count` messages at `offset`, `offset + 1`, … of one queue.

    If some of its explicit message ids were already known, `places` holds the place of every message. A batch that
    waits for its delivery time has `deliver_at_ms` and no offset yet.
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
        """Return the id of message `ordinal` (from 0), if that message was sent without an id."""
        return f"{self.batch_id}-{ordinal}"


def to_builtins(value: Any) -> Any:
    """Convert `value` (any struct of the SDK) to dicts, lists and strings for `json.dumps`; bytes become base64."""
    return msgspec.to_builtins(value)
