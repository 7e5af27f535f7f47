"""Rows as messages: the format `keelmq` of `df.write` and `df.writeStream`.

Each message gets an id of its own that follows from the query, the batch, the task, and the content of its row. A batch
that Spark runs again after a failure sends the same ids, and the broker stores each of them once, as long as they come
within its dedupe window. Rows that a task gets in another order have the same ids; rows that another task gets have
others, so that nothing is ever lost.

With `onceBy` = `batch` it is the batches of a task that have such ids, which is less work. Their rows have to come in
the same order then.
"""

import asyncio
import uuid
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, chain, repeat
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from keelmq import Connection, Message, Producer
from keelmq.blocks.batch import MESSAGE_OVERHEAD_BYTES
from keelmq.errors import IdempotencyConflict
from keelmq.limits import BLOCK_BYTES_MAX, REQUEST_KEYS_MAX, REQUEST_PROPERTIES_MAX
from keelmq.transport.credentials import TokenFile
from keelmq_spark.options_of_sink import BATCH, SinkOptions

IN_FLIGHT: Final = 8
"""Number of batches of a task that are under way at a time."""
BATCH_BYTES: Final = BLOCK_BYTES_MAX // 8
"""Size of the messages in bytes at which a batch is closed."""
_LENGTH_BYTES: Final = 5
"""Bytes that the length of a text takes in a block at most."""

_TEXT: Final = (StringType(),)
_BYTES: Final = (BinaryType(), StringType())
_NUMBERS: Final = (IntegerType(), LongType())
COLUMNS: Final[dict[str, Sequence[DataType]]] = {
    "value": _BYTES,
    "topic": _TEXT,
    "key": _BYTES,
    "partition": _NUMBERS,
    "message_id": _TEXT,
    "tag": _TEXT,
    "keys": (ArrayType(StringType()), ArrayType(StringType(), containsNull=False), StringType()),
    "properties": (MapType(StringType(), StringType()), MapType(StringType(), StringType(), valueContainsNull=False)),
    "delay_ms": _NUMBERS,
    "causation_id": _TEXT,
    "causation_topic": _TEXT,
}
"""Columns of a frame that is written, and their types. Only `value` is required."""
Batch = Sequence[bytes] | Sequence[Message]
"""Messages that are sent together: bodies alone, or with other parts."""
_NO_VALUE: Final = "a row without a value: a message has a body of at least one byte"
_BATCH: Final = "streaming.sql.batchId"
_QUERY: Final = "sql.streaming.queryId"

_encode: Final = msgspec.msgpack.Encoder().encode


class Row(NamedTuple):
    value: bytes | str | None
    topic: str | None = None
    key: bytes | str | None = None
    partition: int | None = None
    message_id: str | None = None
    tag: str | None = None
    keys: Sequence[str] | str | None = None
    properties: Sequence[tuple[str, str]] | None = None
    delay_ms: int | None = None
    causation_id: str | None = None
    causation_topic: str | None = None


class Place(NamedTuple):
    """Topic, queue and delay, which the messages of a batch have in common."""

    topic: str
    partition: int | None
    delay_ms: int | None


@dataclass
class Written(WriterCommitMessage):
    messages: int


def require_columns(schema: StructType, options: SinkOptions) -> None:
    """Raise ValueError for a frame that cannot be written."""
    for field in schema.fields:
        if field.name not in COLUMNS:
            raise ValueError(f"column {field.name}: the columns of messages are {', '.join(COLUMNS)}")
        if field.dataType not in COLUMNS[field.name]:
            types = " or ".join(each.simpleString() for each in COLUMNS[field.name])
            raise ValueError(f"column {field.name} is {field.dataType.simpleString()}, not {types}")
    names = schema.fieldNames()
    if "value" not in names:
        raise ValueError("column value: it has the bodies of the messages")
    if options.once_by == BATCH and "key" in names:
        raise ValueError("onceBy: rows with the column key go to many queues, so they need the value row")
    if "topic" not in names and options.topic is None:
        raise ValueError("topic: name it in an option, or in a column of this name")


class KeelMQWriter(DataSourceArrowWriter):
    """Writes a frame. Every message is durable when the write ends; after an error, some of them may be."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        require_columns(schema, options)
        self._options = options
        self._write_id = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[Any]) -> Written:
        return Written(send_rows(self._options, f"{self._write_id}/{_task().partitionId()}", iterator))


class KeelMQStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query. Every message of a batch is durable when Spark notes that the batch is done."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        require_columns(schema, options)
        if options.write_id is not None:
            raise ValueError("writeId: a stream has the id of its checkpoint")
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        task = _task()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if not query or not batch:
            raise RuntimeError("the task does not know its query and batch: keelmq writes micro-batches only")
        return Written(send_rows(self._options, f"{query}/{batch}/{task.partitionId()}", iterator))


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("rows are written in tasks of Spark only")
    return task


def send_rows(options: SinkOptions, scope: str, batches: Iterable[Any]) -> int:
    """Send the rows of Arrow batches, and return their number; all are durable then. `scope` names what the ids of the
    rows are unique in. Raises ValueError for a row that is no message, and the errors of `Producer.send_batch`.
    """
    return asyncio.run(_send(options, scope, batches_of(options, scope, batches)))


async def _send(options: SinkOptions, scope: str, batches: Iterable[tuple[Place, Batch]]) -> int:
    token = None if options.token_file is None else TokenFile(options.token_file)
    connection = Connection(options.servers, tls=options.tls, token=token)
    try:
        async with Producer(
            connection=connection, group=options.group, send_timeout_ms=options.send_timeout_ms
        ) as producer:
            ids = BatchIds(scope) if options.once_by == BATCH else None
            return await _send_with(producer, batches, ids)
    finally:
        connection.close()


async def _send_with(producer: Producer, batches: Iterable[tuple[Place, Batch]], ids: "BatchIds | None" = None) -> int:
    sent = 0
    under_way: deque[asyncio.Task[Any]] = deque()
    try:
        for place, batch in batches:
            batch_id = ids.next_id(place, batch) if ids is not None else None
            under_way.append(asyncio.create_task(_send_batch(producer, place, batch, batch_id)))
            sent += len(batch)
            if len(under_way) >= IN_FLIGHT:
                await under_way.popleft()
            else:
                await asyncio.sleep(0)
        while under_way:
            await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
    return sent


def _send_batch(producer: Producer, place: Place, batch: Batch, batch_id: str | None) -> Coroutine[Any, Any, Any]:
    if batch_id is not None:
        return _send_once(producer, place, batch, batch_id)
    keyed = [message for message in batch if isinstance(message, Message) and message.sharding_key is not None]
    if not keyed:
        return producer.send_batch(place.topic, batch, queue=place.partition, delay_ms=place.delay_ms)
    return _send_each(producer, place, keyed)


async def _send_once(producer: Producer, place: Place, batch: Batch, batch_id: str) -> None:
    """Send a batch, unless the broker has one with its id: that has the same rows, and only the times at which its
    messages were made differ. A request with several batches is refused as a whole, so the others are sent again.
    """
    while True:
        try:
            await producer.send_batch(
                place.topic, batch, queue=place.partition, batch_id=batch_id, delay_ms=place.delay_ms
            )
        except IdempotencyConflict as error:
            if error.extra.get("batch_id") == batch_id:
                return
            if "batch_id" not in error.extra:
                raise
        else:
            return


async def _send_each(producer: Producer, place: Place, batch: Sequence[Message]) -> None:
    """Send messages with sharding keys, which the producer gathers by queue."""
    await asyncio.gather(
        *(
            producer.send(
                place.topic,
                message.body,
                tag=message.tag,
                keys=message.keys,
                properties=message.properties,
                sharding_key=message.sharding_key,
                queue=place.partition,
                message_id=message.message_id,
                delay_ms=place.delay_ms,
            )
            for message in batch
        )
    )


def batches_of(options: SinkOptions, scope: str, batches: Iterable[Any]) -> Iterator[tuple[Place, Batch]]:
    """Yield the batches of messages that the rows of Arrow batches become."""
    rows = iter(batches)
    first = next(rows, None)
    if first is None:
        return
    rows = chain([first], rows)
    if options.once_by == BATCH and options.topic is not None and first.schema.names == ["value"]:
        place = Place(options.topic, None, None)
        yield from ((place, bodies) for bodies in _bodies(rows, options.batch_messages))
    else:
        yield from batched(messages_of(options, scope, rows), options.batch_messages)


def _bodies(batches: Iterable[Any], batch_messages: int) -> Iterator[list[bytes]]:
    """Yield the bodies of rows that have nothing else, by batch, with no work for each of them in Python."""
    waiting: list[bytes] = []
    for batch in batches:
        bodies = batch.column(0).cast(pa.binary()).to_pylist()
        if None in bodies or b"" in bodies:
            raise ValueError(_NO_VALUE)
        waiting += bodies
        begin = 0
        while (end := _end_of_batch(waiting, begin, batch_messages)) is not None:
            yield waiting[begin:end]
            begin = end
        del waiting[:begin]
    if waiting:
        yield waiting


def _end_of_batch(bodies: Sequence[bytes], begin: int, batch_messages: int) -> int | None:
    """Return the end of the batch that begins at `begin`; None when more bodies belong to it."""
    sizes = [len(body) + MESSAGE_OVERHEAD_BYTES for body in bodies[begin : begin + batch_messages]]
    if sum(sizes) >= BATCH_BYTES:
        return begin + bisect_left(list(accumulate(sizes)), BATCH_BYTES) + 1
    return begin + batch_messages if len(sizes) == batch_messages else None


class _Gathered:
    """Messages of a batch that is not complete, and what counts against its limits."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._size = self._names = self._properties = 0

    def add(self, message: Message) -> None:
        self.messages.append(message)
        self._size += _bytes_max(message)
        self._names += len(message.keys) + (message.message_id is not None)
        self._properties += len(message.properties)

    def is_full(self, batch_messages: int) -> bool:
        return (
            len(self.messages) >= batch_messages
            or self._size >= BATCH_BYTES
            or self._names >= REQUEST_KEYS_MAX // 2
            or self._properties >= REQUEST_PROPERTIES_MAX // 2
        )


def batched(
    messages: Iterable[tuple[Place, Message]], batch_messages: int
) -> Iterator[tuple[Place, Sequence[Message]]]:
    """Yield batches of messages of one place, in their order, all with a sharding key or all without one."""
    gathered: dict[tuple[Place, bool], _Gathered] = {}
    for place, message in messages:
        of = (place, message.sharding_key is None)
        batch = gathered.get(of)
        if batch is None:
            batch = gathered[of] = _Gathered()
        batch.add(message)
        if batch.is_full(batch_messages):
            yield place, gathered.pop(of).messages
    for (place, _), rest in gathered.items():
        yield place, rest.messages


def _bytes_max(message: Message) -> int:
    """Return an upper bound of the bytes of a message in a block, exact but for its lengths where texts are ASCII."""
    size = len(message.body) + MESSAGE_OVERHEAD_BYTES
    for text in (message.tag, message.sharding_key, message.message_id, *message.keys):
        if text:
            size += _text_bytes_max(text)
    if message.properties:
        size += sum(_text_bytes_max(name) + _text_bytes_max(value) for name, value in message.properties.items())
    return size


def _text_bytes_max(text: str) -> int:
    return _LENGTH_BYTES + (len(text) if text.isascii() else 4 * len(text))


class BatchIds:
    """Makes ids that follow from the scope and the content of a batch. Equal batches of a task are told apart by their
    number.
    """

    def __init__(self, scope: str) -> None:
        self._prefix = _digest(scope.encode(), 8)
        self._seen: Counter[str] = Counter()

    def next_id(self, place: Place, batch: Batch) -> str:
        rows = [
            each if isinstance(each, bytes) else (each.body, each.message_id, each.tag, each.keys, each.properties)
            for each in batch
        ]
        digest = _digest(_encode((place, rows)), 16)
        self._seen[digest] += 1
        return f"{self._prefix}-{digest}-{self._seen[digest]}"


def _digest(content: bytes, size: int) -> str:
    return blake2b(content, digest_size=size).hexdigest()


def messages_of(options: SinkOptions, scope: str, batches: Iterable[Any]) -> Iterator[tuple[Place, Message]]:
    """Yield the messages of Arrow batches, and where they go. Equal rows of a task are told apart by their number."""
    prefix = _digest(scope.encode(), 8)
    seen: Counter[bytes] = Counter()
    place = Place("", None, None)
    for batch in batches:
        names = batch.schema.names
        columns = [batch[name].to_pylist() if name in names else repeat(None, batch.num_rows) for name in Row._fields]
        for row in map(Row, *columns):
            message_id = row.message_id
            if message_id is None and options.once_by != BATCH:
                digest = blake2b(_encode(row), digest_size=12).digest()
                seen[digest] += 1
                message_id = f"{prefix}-{digest.hex()}-{seen[digest]}"
            topic = row.topic or options.topic
            if topic is None:
                raise ValueError("a row without a topic, and no option topic")
            if place != (topic, row.partition, row.delay_ms):
                place = Place(topic, row.partition, row.delay_ms)
            yield place, _message(row, message_id)


def _message(row: Row, message_id: str | None) -> Message:
    if not row.value:
        raise ValueError(_NO_VALUE)
    has_cause = row.causation_id is not None or row.causation_topic is not None
    return Message(
        body=row.value.encode() if isinstance(row.value, str) else row.value,
        sharding_key=row.key.decode() if isinstance(row.key, bytes) else row.key,
        message_id=message_id,
        tag=row.tag,
        keys=[row.keys] if isinstance(row.keys, str) else row.keys or (),
        properties=_properties(row) if row.properties or has_cause else {},
    )


def _properties(row: Row) -> dict[str, str]:
    causes = {"causation_id": row.causation_id, "causation_topic": row.causation_topic}
    properties = {**dict(row.properties or ()), **causes}
    return {name: value for name, value in properties.items() if value is not None}
