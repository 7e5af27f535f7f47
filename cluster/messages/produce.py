"""Handles produce requests: messages become blocks, blocks one command, and the command's outcome the answer."""

import itertools
from collections.abc import Sequence
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web
from crc32c import crc32c
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.http.app import json_response, media_type, msgpack_response, read_body
from cluster.http.json_bodies import parse_json_messages, too_many_messages
from cluster.http.requests import ClientId, Request, check_topic, parse_msgpack
from cluster.http.responses import Receipt, Response, or_unset, receipt_of
from cluster.http.routes import IDEMPOTENCY_KEY, JSON, MSGPACK, WRITE_ERRORS, Route
from cluster.limits import BATCHES_MAX, DELAY_LEVELS_S, ID_REGEX, REQUEST_MESSAGES_MAX
from cluster.messages.blocks import (
    BlockBatch,
    BlockMessage,
    Delay,
    JsonMessage,
    announced_messages,
    build_message,
    decode_pieces,
    encode_block,
    explicit_ids,
    unpacked_block,
)
from cluster.messages.request_attributes import RequestAttributes
from cluster.problems import Problem
from cluster.security.access import of_topic
from raft.proposals import Applied
from store.commands.messages import BatchHeader, BatchPlaced, Produce, Produced
from store.commands.topics import TopicInfo
from store.errors import QUEUE_NOT_FOUND, SYSTEM_TOPIC, TOPIC_NOT_FOUND, Refused


class JsonProduce(Request, kw_only=True, frozen=True):
    messages: Annotated[tuple[JsonMessage, ...], Meta(min_length=1, max_length=REQUEST_MESSAGES_MAX)]


class BlockProduce(Request, kw_only=True, frozen=True):
    batches: Annotated[tuple[BlockBatch, ...], Meta(min_length=1, max_length=BATCHES_MAX)]
    client_id: ClientId = ""


class ProducedMessage(Response, kw_only=True, frozen=True):
    """Outcome for one message. A delayed message has `deliver_at_ms` instead of an offset."""

    message_id: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    duplicate: bool


class ProduceView(Response, kw_only=True, frozen=True):
    results: list[ProducedMessage]
    receipt: Receipt


class BatchView(Response, kw_only=True, frozen=True):
    """Outcome for one batch. A delayed batch has `deliver_at_ms` instead of an offset."""

    batch_id: str
    queue: int
    offset: int | UnsetType = UNSET
    deliver_at_ms: int | UnsetType = UNSET
    count: int
    duplicate: bool
    messages: list[ProducedMessage] | UnsetType = UNSET


class BlockProduceView(Response, kw_only=True, frozen=True):
    results: list[BatchView]
    receipt: Receipt


_json_decoder: Final = msgspec.json.Decoder(JsonProduce)
_msgpack_decoder: Final = msgspec.msgpack.Decoder(BlockProduce)


class Batch(NamedTuple):
    """A checked block, as it is stored, and its header in the command."""

    header: BatchHeader
    block: bytes


class JsonBatch(NamedTuple):
    """A batch built from JSON messages. `ordinals` are their places in the request."""

    batch: Batch
    messages: list[BlockMessage]
    ordinals: list[int]


class Visible(NamedTuple):
    """The time at which messages become visible: a given time, a delay after they are accepted, or at once."""

    deliver_at_ms: int | None = None
    delay_ms: int | None = None


AT_ONCE: Final = Visible()


class QueueChooser:
    """Chooses queues for messages without one: by sharding key if they have it, otherwise round robin by request."""

    def __init__(self) -> None:
        self._requests = itertools.count()

    def next_request(self, key: str | None) -> int:
        """Return a number for one request. A repeated request with the same key gets the same number."""
        return next(self._requests) if key is None else crc32c(key.encode())

    @staticmethod
    def by_sharding_key(sharding_key: str, queues: int) -> int:
        return crc32c(sharding_key.encode()) % queues


def writable_topic(core: Core, name: str) -> TopicInfo:
    """Return the topic as this leader has applied it. Raises Refused when it does not exist or is a system topic, and
    Problem invalid_topic.
    """
    topic = core.state.topic(check_topic(name))
    if topic is None:
        raise Refused(TOPIC_NOT_FOUND, f"topic {name} does not exist: create it first", {"topic": name})
    if topic.system:
        raise Refused(SYSTEM_TOPIC, f"{name} is a system topic: it can be read, not written", {"topic": name})
    return topic


def require_queue(topic: TopicInfo, queue: int) -> int:
    if queue >= topic.queues:
        detail = f"topic {topic.topic} has the queues 0 to {topic.queues - 1}, not {queue}"
        raise Refused(QUEUE_NOT_FOUND, detail, {"topic": topic.topic, "queue": queue})
    return queue


def unpacked_blocks(core: Core, batches: Sequence[BlockBatch]) -> list[bytes]:
    """Return the blocks, unpacked if they are compressed. Raises Problem before any message is decoded.

    Checks, in this order: total uncompressed size, each CRC32C (of the bytes as sent), total message count.
    """
    limit = core.config.max_request_bytes
    if sum(batch.unpacked_bytes for batch in batches) > limit:
        raise Problem("request_too_large", f"the blocks unpack to more than {limit} bytes; send them in parts")
    for ordinal, batch in enumerate(batches):
        if crc32c(batch.block) != batch.crc32c:
            detail = f"batches[{ordinal}]: crc32c of the block is not {batch.crc32c}: damaged on the way; send it again"
            raise Problem("checksum_mismatch", detail)
    blocks = [unpacked_block(batch, f"batches[{ordinal}].block") for ordinal, batch in enumerate(batches)]
    if sum(map(announced_messages, blocks)) > REQUEST_MESSAGES_MAX:
        raise too_many_messages()
    return blocks


def visible(delay: Delay, where: str) -> Visible:
    """Return the time at which messages become visible. Raises Problem when the client gives more than one time."""
    level, delay_ms, deliver_at_ms = delay.delay_level, delay.delay_ms, delay.deliver_at_ms
    given = (level is not None) + (delay_ms is not None) + (deliver_at_ms is not None)
    if not given:
        return AT_ONCE
    if given > 1:
        raise Problem("invalid_request", f"{where}: give one of delay_level, delay_ms and deliver_at_ms")
    return Visible(deliver_at_ms, delay_ms if level is None else DELAY_LEVELS_S[level - 1] * 1000)


async def checked_batch(
    topic: TopicInfo, batch: BlockBatch, block: bytes, request_number: int, attributes: RequestAttributes, where: str
) -> Batch:
    """Return a client's batch after checking its layout and limits; `unpacked_blocks` has checked its checksum.

    `block` is the unpacked block; the batch is stored as it was sent. Raises Problem and Refused.
    """
    messages: list[BlockMessage] = []
    for piece in decode_pieces(block, f"{where}.block"):
        attributes.count(piece)
        messages.extend(piece)
        if attributes.pace.is_tired:
            await attributes.pace.rest()
    queue = request_number % topic.queues if batch.queue is None else require_queue(topic, batch.queue)
    header = BatchHeader(
        topic.topic,
        queue,
        len(messages),
        batch.batch_id,
        explicit_ids(messages),
        batch.crc32c,
        len(batch.block),
        batch.encoding,
        batch.uncompressed_bytes,
        *visible(batch, where),
        await attributes.hashes_of(messages),
    )
    return Batch(header, batch.block)


async def json_batches(
    topic: TopicInfo,
    messages: Sequence[tuple[int, JsonMessage]],
    batch_id: str,
    first: int,
    request_number: int,
    attributes: RequestAttributes,
) -> list[JsonBatch]:
    """Build one batch per queue and time from pairs of (place in the request, message), all of one topic.

    Batches are numbered from `first` on. Batch 0 has the given id, further ones a suffix that no client's id can have.
    """
    together: dict[tuple[int, Visible], tuple[list[BlockMessage], list[int]]] = {}
    for ordinal, message in messages:
        if message.queue is not None:
            queue = require_queue(topic, message.queue)
        elif message.sharding_key is not None:
            queue = QueueChooser.by_sharding_key(message.sharding_key, topic.queues)
        else:
            queue = request_number % topic.queues
        when = visible(message, f"messages[{ordinal}]")
        built, ordinals = together.setdefault((queue, when), ([], []))
        built.append(build_message(message, f"messages[{ordinal}]"))
        ordinals.append(ordinal)
        await attributes.pace.step()
    batches = []
    for number, ((queue, when), (built, ordinals)) in enumerate(together.items(), start=first):
        attributes.count(built)
        block = encode_block(built, "messages")
        name = batch_id if number == 0 else f"{batch_id}.{number}"
        header = BatchHeader(
            topic.topic,
            queue,
            len(built),
            name,
            explicit_ids(built),
            crc32c(block),
            len(block),
            deliver_at_ms=when.deliver_at_ms,
            delay_ms=when.delay_ms,
            keys=await attributes.hashes_of(built),
        )
        batches.append(JsonBatch(Batch(header, block), built, ordinals))
        await attributes.pace.step()
    return batches


class ProduceApi:
    """Handles POST /v1/topics/{topic}/messages."""

    def __init__(self, core: Core, chooser: QueueChooser) -> None:
        self._core = core
        self._chooser = chooser

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/topics/{topic}/messages",
                self.produce,
                "Append messages; the answer is sent when they are fsynced on a majority",
                {200: {JSON: ProduceView, MSGPACK: BlockProduceView}},
                body={JSON: JsonProduce, MSGPACK: BlockProduce},
                errors=(
                    "invalid_topic",
                    "topic_not_found",
                    "queue_not_found",
                    "system_topic",
                    "topic_type_mismatch",
                    "checksum_mismatch",
                    "invalid_compression",
                    "empty_body",
                    "too_many_properties",
                    "message_too_large",
                    "batch_too_large",
                    "idempotency_conflict",
                    "too_many_timers",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                takes_idempotency_key=True,
                access=of_topic("send"),
            )
        ]

    async def produce(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        topic = writable_topic(self._core, request.match_info["topic"])
        kind = media_type(request, (JSON, MSGPACK))
        body = await read_body(request, self._core)
        if kind == MSGPACK:
            return await self._produce_blocks(topic, parse_msgpack(_msgpack_decoder, body))
        return await self._produce_json(
            topic, parse_json_messages(_json_decoder, body), request.headers.get(IDEMPOTENCY_KEY)
        )

    async def _produce_blocks(self, topic: TopicInfo, request: BlockProduce) -> web.Response:
        batches = await self._checked_batches(topic, request.batches)
        applied = await self._propose(batches, request.client_id)
        produced: Produced = applied.result
        results, pace = list[BatchView](), Pace()
        for batch, placed in zip(batches, produced.results, strict=True):
            results.append(_batch_view(batch.header.batch_id, placed))
            await pace.step()
        return msgpack_response(BlockProduceView(results=results, receipt=receipt_of(applied)))

    async def _checked_batches(self, topic: TopicInfo, batches: Sequence[BlockBatch]) -> list[Batch]:
        blocks = unpacked_blocks(self._core, batches)
        number, attributes = self._chooser.next_request(None), RequestAttributes()
        return [
            await checked_batch(topic, batch, block, number, attributes, f"batches[{ordinal}]")
            for ordinal, (batch, block) in enumerate(zip(batches, blocks, strict=True))
        ]

    async def _produce_json(self, topic: TopicInfo, request: JsonProduce, key: str | None) -> web.Response:
        if key is not None and not ID_REGEX.fullmatch(key):
            raise Problem("invalid_request", f"{IDEMPOTENCY_KEY}: 1 to 64 characters of A-Z a-z 0-9 _ -")
        batch_id = self._core.new_id() if key is None else key
        number = self._chooser.next_request(key)
        messages = list(enumerate(request.messages))
        batches = await json_batches(topic, messages, batch_id, 0, number, RequestAttributes())
        applied = await self._propose([each.batch for each in batches])
        produced: Produced = applied.result
        results: dict[int, ProducedMessage] = {}
        pace = Pace()
        for batch, placed in zip(batches, produced.results, strict=True):
            results.update(zip(batch.ordinals, _message_views(batch, placed), strict=True))
            await pace.step()
        ordered = [results[ordinal] for ordinal in range(len(results))]
        return json_response(ProduceView(results=ordered, receipt=receipt_of(applied)))

    async def _propose(self, batches: list[Batch], client_id: str = "") -> Applied:
        command = Produce(tuple(batch.header for batch in batches), client_id)
        applied = await self._core.propose(command, [batch.block for batch in batches])
        metrics = self._core.metrics
        metrics.produced_messages.inc(sum(batch.header.count for batch in batches))
        metrics.produced_bytes.inc(sum(batch.header.length for batch in batches))
        return applied


def _batch_view(batch_id: str, placed: BatchPlaced) -> BatchView:
    view = BatchView(
        batch_id=batch_id,
        queue=placed.queue,
        offset=or_unset(placed.offset),
        deliver_at_ms=or_unset(placed.deliver_at_ms),
        count=placed.count,
        duplicate=placed.duplicate,
        messages=UNSET if placed.messages is None else _placed_views(placed),
    )
    return view


def _placed_views(placed: BatchPlaced) -> list[ProducedMessage]:
    return [
        ProducedMessage(
            message_id=each.message_id,
            queue=each.queue,
            offset=or_unset(each.offset),
            deliver_at_ms=or_unset(each.deliver_at_ms),
            duplicate=each.duplicate,
        )
        for each in placed.messages or ()
    ]


def _message_views(batch: JsonBatch, placed: BatchPlaced) -> list[ProducedMessage]:
    if placed.messages is not None:
        return _placed_views(placed)
    return [
        ProducedMessage(
            message_id=message.message_id or f"{batch.batch.header.batch_id}-{ordinal}",
            queue=placed.queue,
            offset=UNSET if placed.offset is None else placed.offset + ordinal,
            deliver_at_ms=or_unset(placed.deliver_at_ms),
            duplicate=placed.duplicate,
        )
        for ordinal, message in enumerate(batch.messages)
    ]
