"""Effects of committed entries on messages, as `GET /v1/log/events` delivers them (docs/http-api.md)."""

import struct
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from crc32c import crc32c

from keelmq.blocks.batch import BlockMessage, decode_messages
from keelmq.errors import Corrupt
from keelmq.limits import BATCH_MESSAGES_MAX
from keelmq.wire import (
    APPLIED_INDEX_HEADER,
    CLUSTER_UID_HEADER,
    NEXT_EVENT_HEADER,
    NEXT_INDEX_HEADER,
    SPAN_INDEX_HEADER,
)

_FRAME: Final = struct.Struct("<II")


class EventMessages(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The `count` messages of an event.

    They are the messages of a batch except the ordinals in `skip`; with `only`, the event is about that ordinal alone,
    and `block` contains just that message. `block` is None unless it was requested."""

    batch_id: str
    count: int
    message_ids: list[str | None] | None
    skip: list[int]
    only: int | None
    block_bytes: int
    uncompressed_bytes: int | None
    block: bytes | None

    def __post_init__(self) -> None:
        in_block = 1 if self.only is not None else self.count + len(self.skip)
        if not 1 <= self.count <= in_block <= BATCH_MESSAGES_MAX or (self.only is not None and self.count != 1):
            raise ValueError(f"{self.count} messages of a batch of {in_block}")
        if self.skip and (len(set(self.skip)) != len(self.skip) or not set(self.skip) <= set(range(in_block))):
            raise ValueError("skip: not different ordinals of the batch")
        if self.message_ids is not None and len(self.message_ids) != in_block:
            raise ValueError(f"{len(self.message_ids)} ids of {in_block} messages")

    def decode(self) -> list[BlockMessage]:
        """Return the messages in the order of their offsets. Raises Corrupt, or ValueError without a block."""
        if self.block is None:
            raise ValueError(f"the block of batch {self.batch_id} was not asked for")
        messages = decode_messages(self.block, self.uncompressed_bytes)
        if self.skip:
            skip = frozenset(self.skip)
            messages = [message for ordinal, message in enumerate(messages) if ordinal not in skip]
        if len(messages) != self.count:
            raise Corrupt("invalid_block", f"batch {self.batch_id} has {len(messages)} messages, not {self.count}")
        return messages

    def ids(self) -> list[str]:
        """Return the message ids in the order of their offsets."""
        explicit, batch_id = self.message_ids, self.batch_id
        if self.only is not None:
            return [explicit[0] if explicit and explicit[0] is not None else f"{batch_id}-{self.only}"]
        skip = frozenset(self.skip)
        ordinals = (ordinal for ordinal in range(self.count + len(skip)) if ordinal not in skip)
        if explicit is None:
            return [f"{batch_id}-{ordinal}" for ordinal in ordinals]
        return [explicit[ordinal] or f"{batch_id}-{ordinal}" for ordinal in ordinals]


class LogEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One event of messages or of a transaction. `offset` belongs to the first message; the others follow.

    A field is None if it is unknown or has no meaning for the type. `filter` of an ACK is the SQL92 expression that
    selected what the group read; `principal` is the authenticated principal whose request caused the event. Nodes
    before 0.3.0 tell neither."""

    type: str
    transaction_id: str | None
    topic: str | None
    queue: int | None
    offset: int | None
    offset_end: int | None
    group: str | None
    client_id: str | None
    attempt: int | None
    message_id: str | None
    messages: EventMessages | None
    filter: str | None = None
    principal: str | None = None

    @property
    def rows(self) -> int:
        """Number of messages of the event; 1 for an event without messages."""
        return 1 if self.messages is None else self.messages.count


class EntryEvents(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Events of one log entry, in order; `first_row` is the number of rows of the entry's events before them."""

    index: int
    term: int
    timestamp_ms: int
    first_row: int
    events: list[LogEvent]


class EventsPage(msgspec.Struct, frozen=True):
    """One page of events.

    Continue at `next_index` and `next_event`; the answering node has applied the log up to `applied_index`.
    `cluster_uid` is the unique id of the cluster whose log it is; empty when the node does not tell it. `span_index`
    follows the entries that fit the `span_bytes` of the request; None without."""

    data: bytes
    next_index: int
    next_event: int
    applied_index: int
    cluster_uid: str = ""
    span_index: int | None = None

    def entries(self) -> Iterator[EntryEvents]:
        """Iterate over the events by entry. Raises Corrupt."""
        return read_frames(self.data)


def page_of(data: bytes, headers: Mapping[str, str], from_index: int, from_event: int) -> EventsPage:
    """Return the page in an answer to the request for these events."""
    return EventsPage(
        data,
        int(headers.get(NEXT_INDEX_HEADER, from_index)),
        int(headers.get(NEXT_EVENT_HEADER, from_event)),
        int(headers.get(APPLIED_INDEX_HEADER, 0)),
        headers.get(CLUSTER_UID_HEADER, ""),
        None if (span := headers.get(SPAN_INDEX_HEADER)) is None else int(span),
    )


_decode = msgspec.msgpack.Decoder(EntryEvents).decode


def read_frames(data: bytes) -> Iterator[EntryEvents]:
    """Decode the frames in `data`, checked against their CRC32C. Raises Corrupt."""
    view = memoryview(data)
    begin = 0
    while begin < len(view):
        if len(view) - begin < _FRAME.size:
            raise Corrupt("invalid_log", f"{len(view) - begin} bytes are left at {begin}: no frame is so short")
        length, checksum = _FRAME.unpack_from(view, begin)
        body = view[begin + _FRAME.size : begin + _FRAME.size + length]
        if len(body) != length or crc32c(body) != checksum:
            raise Corrupt("checksum_mismatch", f"the frame at byte {begin} does not match its CRC32C")
        try:
            yield _decode(body)
        except (ValueError, RecursionError) as exc:
            raise Corrupt("invalid_log", f"the frame at byte {begin} cannot be read: {exc}") from exc
        begin += _FRAME.size + length
