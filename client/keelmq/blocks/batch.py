"""Message blocks: the form of a batch on the wire, on disk and in a consumer (docs/http-api.md).

A block is opaque to the broker and keeps its CRC32C from the producer to the consumer.
"""

import itertools
import os
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from crc32c import crc32c

from keelmq.blocks.compression import compress, unpack
from keelmq.errors import Corrupt, LimitExceeded
from keelmq.limits import (
    BATCH_MESSAGES_MAX,
    BLOCK_BYTES_MAX,
    REQUEST_KEYS_MAX,
    REQUEST_PROPERTIES_MAX,
    check_attributes,
    check_bodies,
    check_body,
    check_key_count,
)
from keelmq.message import Message, Origin, ReceivedMessage
from keelmq.wire import BlockEncoding

# Bytes that a message takes in a block besides its texts and its body: array, lengths, timestamp.
MESSAGE_OVERHEAD_BYTES: Final = 48
KEYS_FIELD: Final = 2
PROPERTIES_FIELD: Final = 3
MESSAGE_ID_FIELD: Final = 5
"""Positions in a block entry."""

Entry = tuple[Any, ...]
"""A message as encoded into a block: the array of the contract without trailing default values. An entry of
the log is something else: it holds whole blocks.
"""


class BlockMessage(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A message as decoded from a block."""

    body: bytes
    tag: str | None = None
    keys: list[str] = []
    properties: dict[str, str] = {}
    sharding_key: str | None = None
    message_id: str | None = None
    born_at_ms: int = 0


class Block(msgspec.Struct, frozen=True):
    """An encoded block with the CRC32C of `data`, which is the block as sent (compressed or not).

    `uncompressed_bytes` is the size of the content of a compressed block, None when the block is not compressed. `keys`
    counts keys and explicit ids, `properties` the properties of all messages.
    """

    data: bytes
    crc32c: int
    count: int
    uncompressed_bytes: int | None = None
    keys: int = 0
    properties: int = 0

    @property
    def unpacked_bytes(self) -> int:
        return len(self.data) if self.uncompressed_bytes is None else self.uncompressed_bytes

    @property
    def encoding(self) -> BlockEncoding:
        return "none" if self.uncompressed_bytes is None else "zstd"


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[BlockMessage]).decode


class BatchIds:
    """Generates batch ids that are unique over all processes: 96 random bits per generator and process, then a counter.

    A process that was forked does not go on with the ids of its parent: what it sends would count as a repetition.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._prefix = secrets.token_hex(12)
        self._counter = itertools.count()

    def next_id(self) -> str:
        if os.getpid() != self._process_id:
            self._begin()
        return f"{self._prefix}-{next(self._counter):x}"


def entry_of(message: Message) -> Entry:
    """Validate `message` and return its block entry. Raises InvalidRequest with the contract's code."""
    check_body(message.body)
    check_attributes(message.tag, message.keys, message.properties, message.sharding_key, message.message_id)
    return make_entry(
        message.body,
        message.tag,
        message.keys,
        message.properties,
        message.sharding_key,
        message.message_id,
        message.born_at_ms,
    )


def make_entry(
    body: bytes,
    tag: str | None,
    keys: Sequence[str],
    properties: Mapping[str, str] | None,
    sharding_key: str | None,
    message_id: str | None,
    born_at_ms: int,
) -> Entry:
    entry = (body, tag, tuple(keys), dict(properties or {}), sharding_key, message_id, born_at_ms)
    length = len(entry)
    while length > 1 and not entry[length - 1]:
        length -= 1
    return entry[:length]


def key_bytes_min(request_bytes_max: int) -> int:
    """Return the minimum number of bytes that a key or an explicit id counts as: a request within its byte limit is
    then within its limit of keys too.
    """
    return request_bytes_max // REQUEST_KEYS_MAX + 1


def entry_bytes_max(entry: Entry, key_bytes: int = 1) -> int:
    """Return an upper bound of the bytes that `entry` adds to a block, in which each key and explicit id counts as at
    least `key_bytes`; cheap to compute for most entries.
    """
    size = len(entry[0]) + MESSAGE_OVERHEAD_BYTES
    if len(entry) > MESSAGE_ID_FIELD and entry[MESSAGE_ID_FIELD] is not None:
        size += key_bytes
    for field in entry[1:]:
        if type(field) is str:
            size += 4 * len(field)
        elif type(field) is tuple:
            size += sum(max(4 * len(key) + 5, key_bytes) for key in field)
        elif type(field) is dict:
            size += sum(4 * (len(name) + len(value)) + 10 for name, value in field.items())
    return size


def size_in_request(block: Block, request_bytes_max: int) -> int:
    """Return the number of bytes that a block counts as: a request within its byte limit is then within its limits of
    keys and properties too.
    """
    property_bytes = request_bytes_max // REQUEST_PROPERTIES_MAX + 1
    return max(len(block.data), block.keys * key_bytes_min(request_bytes_max), block.properties * property_bytes)


def encode_entries(entries: Sequence[Entry], *, compressed: bool = False) -> Block:
    """Encode `entries` as a block; with `compressed`, as a zstd frame where that saves enough (compression.py).

    Raises LimitExceeded: `invalid_request` without entries; `batch_too_large` beyond 8 MiB before compression, 10,000
    messages or 6,400 keys and explicit ids.
    """
    if not entries:
        raise LimitExceeded("invalid_request", "a batch needs at least one message")
    if len(entries) > BATCH_MESSAGES_MAX:
        raise LimitExceeded("batch_too_large", f"{len(entries)} messages in a batch, {BATCH_MESSAGES_MAX} are allowed")
    keys = properties = 0
    if max(map(len, entries)) > KEYS_FIELD:  # plain entries end before their keys
        keys = sum([len(entry[KEYS_FIELD]) for entry in entries if len(entry) > KEYS_FIELD])
        keys += sum([entry[MESSAGE_ID_FIELD] is not None for entry in entries if len(entry) > MESSAGE_ID_FIELD])
        check_key_count(keys)
        properties = sum([len(entry[PROPERTIES_FIELD]) for entry in entries if len(entry) > PROPERTIES_FIELD])
    data = _encode(entries)
    if len(data) > BLOCK_BYTES_MAX:
        raise LimitExceeded("batch_too_large", f"the batch has {len(data)} bytes, {BLOCK_BYTES_MAX} are allowed")
    frame = compress(data) if compressed else None
    if frame is None:
        return Block(data, crc32c(data), len(entries), keys=keys, properties=properties)
    return Block(frame, crc32c(frame), len(entries), len(data), keys, properties)


def encode_messages(messages: Sequence[bytes | Message], *, compressed: bool = False) -> Block:
    """Encode bodies or messages as a block. Plain bodies take a path without any Python code per message."""
    if set(map(type, messages)) == {bytes}:
        bodies = cast("Sequence[bytes]", messages)
        check_bodies(bodies)
        return encode_entries(list(zip(bodies, strict=False)), compressed=compressed)
    entries = [entry_of(m) if isinstance(m, Message) else _plain_entry(m) for m in messages]
    return encode_entries(entries, compressed=compressed)


def _plain_entry(body: bytes) -> Entry:
    check_body(body)
    return (body,)


def decode_block(data: bytes, checksum: int, uncompressed_bytes: int | None = None) -> list[BlockMessage]:
    """Decode the messages of a block, which is compressed if `uncompressed_bytes` is given.

    Raises Corrupt when `checksum` does not match or the content is not a block; nothing of the content may be used
    then.
    """
    if crc32c(data) != checksum:
        raise Corrupt("checksum_mismatch", f"a block of {len(data)} bytes does not match its CRC32C {checksum:#010x}")
    return decode_messages(data, uncompressed_bytes)


def decode_messages(data: bytes, uncompressed_bytes: int | None = None) -> list[BlockMessage]:
    """Decode the messages of a block whose checksum has been verified. Raises Corrupt when it is not a block."""
    if uncompressed_bytes is not None:
        data = unpack(data, uncompressed_bytes)
    try:
        return _decode(data)
    except (ValueError, RecursionError) as exc:  # invalid UTF-8, or endless nesting
        raise Corrupt("invalid_block", f"a block with a right checksum cannot be read: {exc}") from exc


def received_messages(
    block: Sequence[BlockMessage],
    *,
    topic: str,
    queue: int,
    batch_id: str,
    base_offset: int,
    skip: Collection[int],
    from_offset: int,
    stored_at_ms: int,
    transaction_id: str | None,
    filtered: Collection[int] = (),
    first_ordinal: int = 0,
    attempt: int = 0,
    origin: Origin | None = None,
) -> Iterator[ReceivedMessage]:
    """Yield the messages of a pulled batch from `from_offset` on.

    Ordinals in `skip` are duplicates without an offset; ordinals in `filtered` have an offset and were not selected.
    `first_ordinal` is not 0 only for a redelivered message, which comes without the rest of its batch."""
    left_out, unwanted = frozenset(skip), frozenset(filtered)
    offset = base_offset
    for ordinal, message in enumerate(block, first_ordinal):
        if ordinal in left_out:
            continue
        if offset >= from_offset and ordinal not in unwanted:
            yield ReceivedMessage(
                topic=topic,
                queue=queue,
                offset=offset,
                message_id=message.message_id or f"{batch_id}-{ordinal}",
                body=message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
                sharding_key=message.sharding_key,
                born_at_ms=message.born_at_ms,
                stored_at_ms=stored_at_ms,
                transaction_id=transaction_id,
                attempt=attempt,
                origin=origin,
            )
        offset += 1
