"""Message blocks: validates blocks of clients, builds blocks from JSON messages, and decodes blocks for JSON consumers.

A block is opaque to the log; the limits checked here before it is proposed are never checked again. The layout is in
docs/http-api.md. Structs decode at C speed; only messages that carry more than a body are checked one by one.
"""

import base64
import binascii
import itertools
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from cluster.http.requests import Id, Natural, Queue, Request
from cluster.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    BODY_BYTES_MAX,
    DELAY_LEVELS_S,
    DELAY_MAX_MS,
    INT64_MAX,
    KEY_BYTES_MAX,
    KEYS_MAX,
    MESSAGE_ID_PATTERN,
    PROPERTIES_BYTES_MAX,
    PROPERTIES_MAX,
    SHARDING_KEY_BYTES_MAX,
    TAG_BYTES_MAX,
)
from cluster.messages.compression import unpack
from cluster.problems import Problem
from store.commands.messages import BlockEncoding

Crc32c = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Delay(Request, kw_only=True, frozen=True):
    """The time at which messages become visible. At most one of the fields is given."""

    delay_level: Annotated[int, Meta(ge=1, le=len(DELAY_LEVELS_S))] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)] | None = None
    deliver_at_ms: Natural | None = None


class JsonMessage(Delay, kw_only=True, frozen=True):
    body: str
    encoding: Literal["utf8", "base64"] = "utf8"
    message_id: Annotated[str, Meta(pattern=MESSAGE_ID_PATTERN)] | None = None
    keys: Annotated[tuple[Annotated[str, Meta(max_length=KEY_BYTES_MAX)], ...], Meta(max_length=KEYS_MAX)] = ()
    tag: Annotated[str, Meta(max_length=TAG_BYTES_MAX)] | None = None
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    queue: Queue | None = None
    sharding_key: Annotated[str, Meta(max_length=SHARDING_KEY_BYTES_MAX)] | None = None
    born_at_ms: Natural = 0


class BlockBatch(Delay, kw_only=True, frozen=True):
    queue: Queue | None = None
    batch_id: Id
    crc32c: Crc32c
    block: bytes
    encoding: BlockEncoding = "none"
    uncompressed_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None

    def __post_init__(self) -> None:
        if (self.encoding == "none") != (self.uncompressed_bytes is None):
            raise ValueError("`uncompressed_bytes` must be given for a compressed block, and for no other")

    @property
    def unpacked_bytes(self) -> int:
        """Declared size of the unpacked block in bytes."""
        return len(self.block) if self.uncompressed_bytes is None else self.uncompressed_bytes


class BlockMessage(msgspec.Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """One message of a block. Decoding checks all limits except the limits on bytes of text."""

    body: Annotated[bytes, Meta(min_length=1, max_length=BODY_BYTES_MAX)]
    tag: Annotated[str, Meta(max_length=TAG_BYTES_MAX)] | None = None
    keys: Annotated[tuple[Annotated[str, Meta(max_length=KEY_BYTES_MAX)], ...], Meta(max_length=KEYS_MAX)] = ()
    properties: Annotated[dict[str, str], Meta(max_length=PROPERTIES_MAX)] = {}
    sharding_key: Annotated[str, Meta(max_length=SHARDING_KEY_BYTES_MAX)] | None = None
    message_id: Annotated[str, Meta(pattern=MESSAGE_ID_PATTERN)] | None = None
    born_at_ms: Annotated[int, Meta(ge=0, le=INT64_MAX)] = 0


class _LooseMessage(msgspec.Struct, array_like=True, gc=False):
    """A message decoded without limits, to find the limit that a refused block breaks."""

    body: bytes
    tag: msgspec.Raw = msgspec.Raw()
    keys: msgspec.Raw = msgspec.Raw()
    properties: msgspec.Raw = msgspec.Raw()


class _StoredMessage(BlockMessage, array_like=True, forbid_unknown_fields=True, gc=False):
    """A stored message, which may be older than the limit on the number of properties."""

    properties: dict[str, str] = msgspec.field(default_factory=dict)


_FIXARRAY: Final = 0x90
_FIXMAP: Final = 0x80
"""First bytes of short msgpack arrays and maps, without the lower half, which is the length."""
_ARRAYS: Final = (0xDC, 0xDD)
_LENGTH_BYTES: Final = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Number of bytes in the length of a longer array or map, by its first byte."""
_ARRAY_HEAD: Final = struct.Struct(">BI")
PIECE_BYTES: Final = 96 * 1024
PIECE_MESSAGES: Final = 1_000
"""Blocks are decoded in pieces of about PIECE_BYTES or PIECE_MESSAGES, so that other requests get their turn."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(list[BlockMessage])
_stored_decoder: Final = msgspec.msgpack.Decoder(list[_StoredMessage])
_splitter: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_loose_decoder: Final = msgspec.msgpack.Decoder(list[_LooseMessage])
# Decoding limits the characters; a text that is not plain ASCII has more bytes, which are counted here.
_TEXT_LIMITS: Final = (("tag", TAG_BYTES_MAX), ("sharding_key", SHARDING_KEY_BYTES_MAX))


def unpacked_block(batch: BlockBatch, where: str) -> bytes:
    """Return the unpacked block of a client's batch, as `decode_pieces` takes it.

    Raises Problem batch_too_large when the declared size is too large, and invalid_compression when the block does not
    unpack to the declared size.
    """
    if batch.uncompressed_bytes is None:
        return batch.block
    if batch.uncompressed_bytes > BLOCK_BYTES_MAX:
        raise _too_large(batch.uncompressed_bytes, where)
    try:
        return unpack(batch.block, batch.uncompressed_bytes)
    except ValueError as error:
        raise Problem("invalid_compression", f"{where}: {error}") from None


def decode_pieces(block: bytes, where: str) -> Iterator[Sequence[BlockMessage]]:
    """Decode a client's block and check every limit, some messages at a time, so that the caller can let other work run
    in between. Raises Problem, which names the message that breaks a limit.
    """
    if len(block) > BLOCK_BYTES_MAX:
        raise _too_large(len(block), where)
    announced = announced_messages(block)
    if announced > BLOCK_MESSAGES_MAX:
        raise _too_many(announced, where)
    first = 0
    for piece in _pieces(block, where):
        try:
            messages = _decoder.decode(piece)
        except (ValueError, RecursionError) as error:
            raise _why_refused(piece, where, first, error) from None
        for ordinal, message in enumerate(messages, first):
            if message.properties or message.tag is not None or message.keys or message.sharding_key is not None:
                _check_texts(message, f"{where}[{ordinal}]")
        first += len(messages)
        yield messages
    if not first:
        raise Problem("invalid_request", f"{where}: a block holds at least one message")


def _pieces(block: bytes, where: str = "block") -> Iterable[bytes]:
    """Split the block into blocks of about PIECE_BYTES or PIECE_MESSAGES each, without decoding the messages.

    Raises Problem invalid_request when it is not a msgpack array.
    """
    if len(block) <= PIECE_BYTES and announced_messages(block) <= PIECE_MESSAGES:
        return (block,)
    return _split(block, where)


def _split(block: bytes, where: str) -> Iterator[bytes]:
    try:
        packed = _splitter.decode(block)
    except (ValueError, RecursionError) as error:
        raise Problem("invalid_request", f"{where}: {error}") from None
    ends = list(itertools.accumulate(map(len, packed)))
    first = begin = 0
    while first < len(packed):
        last_by_number = min(first + PIECE_MESSAGES, len(packed))
        last = max(first + 1, bisect_right(ends, begin + PIECE_BYTES, first, last_by_number))
        yield _array_of(packed[first:last])
        first, begin = last, ends[last - 1]


def _array_of(packed: Sequence[msgspec.Raw]) -> bytes:
    return _ARRAY_HEAD.pack(0xDD, len(packed)) + b"".join(packed)


def announced_messages(block: bytes) -> int:
    """Return the declared number of messages without decoding any; 0 when the block does not begin like a block."""
    return announced_length(block) if block and (block[0] & 0xF0 == _FIXARRAY or block[0] in _ARRAYS) else 0


def announced_length(packed: bytes | msgspec.Raw) -> int:
    """Return the declared length of a msgpack array or map; 0 for any other value."""
    head = packed[:5] if type(packed) is bytes else bytes(memoryview(packed)[:5])
    if not head:
        return 0
    if head[0] & 0xF0 in (_FIXARRAY, _FIXMAP):
        return head[0] & 0x0F
    return int.from_bytes(head[1 : 1 + _LENGTH_BYTES.get(head[0], 0)])


def read_block(block: bytes, uncompressed_bytes: int | None = None) -> Sequence[BlockMessage]:
    """Decode a stored block, which was checked before it was stored. With `uncompressed_bytes` it is compressed."""
    return _stored_decoder.decode(block if uncompressed_bytes is None else unpack(block, uncompressed_bytes))


def read_pieces(block: bytes, uncompressed_bytes: int | None = None) -> Iterator[Sequence[BlockMessage]]:
    """Decode as `read_block` does, some messages at a time."""
    return map(
        _stored_decoder.decode, _pieces(block if uncompressed_bytes is None else unpack(block, uncompressed_bytes))
    )


def explicit_ids(messages: Sequence[BlockMessage]) -> tuple[str | None, ...] | None:
    """Return the message ids by ordinal for a batch header; None when every id is implicit."""
    ids = [message.message_id for message in messages]
    return tuple(ids) if any(ids) else None


def build_message(message: JsonMessage, where: str) -> BlockMessage:
    """Convert a JSON message to a message of a block, and check every limit. Raises Problem when one is broken."""
    if message.encoding == "base64":
        try:
            body = base64.b64decode(message.body, validate=True)
        except (binascii.Error, ValueError):
            raise Problem("invalid_request", f"{where}.body: not base64") from None
    else:
        body = message.body.encode()
    if not body:
        raise Problem("empty_body", f"{where}.body: empty; a message has at least one byte")
    if len(body) > BODY_BYTES_MAX:
        raise Problem("message_too_large", f"{where}.body: {len(body)} bytes, the limit is {BODY_BYTES_MAX}")
    built = BlockMessage(
        body,
        message.tag,
        message.keys,
        message.properties,
        message.sharding_key,
        message.message_id,
        message.born_at_ms,
    )
    _check_texts(built, where)
    return built


def encode_block(messages: Sequence[BlockMessage], where: str) -> bytes:
    """Encode messages, already checked one by one, as a block. Raises Problem batch_too_large when they are too many or
    too large together.
    """
    if len(messages) > BLOCK_MESSAGES_MAX:
        raise _too_many(len(messages), where)
    block = _encoder.encode(messages)
    if len(block) > BLOCK_BYTES_MAX:
        raise _too_large(len(block), where)
    return block


def body_text(body: bytes) -> tuple[str, Literal["utf8", "base64"]]:
    """Return the body as a JSON text, and its encoding: utf8 if the body is valid UTF-8, otherwise base64."""
    try:
        return body.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"


def _too_many(count: int, where: str) -> Problem:
    return Problem("batch_too_large", f"{where}: {count} messages, the limit is {BLOCK_MESSAGES_MAX}")


def _too_large(size_bytes: int, where: str) -> Problem:
    return Problem("batch_too_large", f"{where}: {size_bytes} bytes, the limit is {BLOCK_BYTES_MAX}")


def _byte_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_texts(message: BlockMessage, where: str) -> None:
    """Check the limits in bytes, as msgspec counts only characters. Raises Problem when one is broken."""
    for name, limit in _TEXT_LIMITS:
        text = getattr(message, name)
        if text is not None and _byte_length(text) > limit:
            raise Problem("invalid_request", f"{where}.{name}: more than {limit} bytes")
    for key in message.keys:
        if _byte_length(key) > KEY_BYTES_MAX:
            raise Problem("invalid_request", f"{where}.keys: a key of more than {KEY_BYTES_MAX} bytes")
    size = _byte_length("".join(message.properties)) + _byte_length("".join(message.properties.values()))
    if len(message.properties) > PROPERTIES_MAX:
        count = len(message.properties)
        raise Problem("too_many_properties", f"{where}.properties: {count} properties, the limit is {PROPERTIES_MAX}")
    if size > PROPERTIES_BYTES_MAX:
        raise Problem("too_many_properties", f"{where}.properties: {size} bytes, the limit is {PROPERTIES_BYTES_MAX}")


def _why_refused(piece: bytes, where: str, first: int, error: Exception) -> Problem:
    """Return the problem that names the documented limit which a refused block breaks; invalid_request when it is not
    a block. `first` is the ordinal of the piece's first message."""
    try:
        messages = _loose_decoder.decode(piece)
    except (ValueError, RecursionError):
        messages = []
    for ordinal, message in enumerate(messages, first):
        if not message.body:
            return Problem("empty_body", f"{where}[{ordinal}]: empty body; a message has at least one byte")
        if len(message.body) > BODY_BYTES_MAX:
            size = len(message.body)
            return Problem("message_too_large", f"{where}[{ordinal}]: {size} bytes, the limit is {BODY_BYTES_MAX}")
        count = announced_length(message.properties)
        if count > PROPERTIES_MAX:
            detail = f"{where}[{ordinal}].properties: {count} properties, the limit is {PROPERTIES_MAX}"
            return Problem("too_many_properties", detail)
    return Problem("invalid_request", f"{where}: {error}" + (f" (counted from message {first} on)" if first else ""))
