"""The view `messages`: messages as consumers of a topic see them, in columns of Spark's Kafka source and RocketMQ."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from keelmq.log.log_events import EntryEvents, EventsPage, LogEvent

ROWS_PER_BATCH: Final = 16_384
BATCH_BYTES: Final = 16 * 1024 * 1024
"""Total size of the bodies in bytes at which a batch is closed after the current event."""

BORN_AT_MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999, up to which SQL and Python have timestamps. A producer may say anything, nanoseconds too."""

LOG_APPEND_TIME: Final = 1
"""Kafka's `timestampType` for times that the broker sets."""

_COLUMNS: Final = (
    ("key", BinaryType()),
    ("value", BinaryType()),
    ("topic", StringType()),
    ("partition", IntegerType()),
    ("offset", LongType()),
    ("timestamp", TimestampType()),
    ("timestampType", IntegerType()),
    ("message_id", StringType()),
    ("tag", StringType()),
    ("keys", ArrayType(StringType())),
    ("properties", MapType(StringType(), StringType())),
    ("born_timestamp", TimestampType()),
    ("store_timestamp", TimestampType()),
    ("transaction_id", StringType()),
    ("attempt", IntegerType()),
)
_NO_OFFSETS: Final[Mapping[tuple[str, int], int]] = {}
_HEADERS: Final = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def messages_schema(*, include_headers: bool) -> StructType:
    """Return the schema of the view.

    `key` is the sharding key; `timestamp` and `store_timestamp` are the time at which the message became visible.
    `headers`, if included, are the properties as Kafka's source shows them."""
    fields = [StructField(name, of_type) for name, of_type in _COLUMNS]
    return StructType([*fields, StructField("headers", _HEADERS)] if include_headers else fields)


def message_batches(
    pages: Iterable[EventsPage],
    is_wanted: Callable[[str], object],
    *,
    first_offsets: Mapping[tuple[str, int], int],
    last_offsets: Mapping[tuple[str, int], int] = _NO_OFFSETS,
    include_headers: bool,
) -> Iterator[Any]:
    """Yield `pyarrow.RecordBatch`es of the messages of wanted topics, from their queue's first offset on, and before
    its last one. Raises Corrupt.
    """
    schema = to_arrow_schema(messages_schema(include_headers=include_headers), timezone="UTC")
    building = _Building(schema, first_offsets, last_offsets, include_headers)
    for page in pages:
        for entry in page.entries():
            for event in entry.events:
                if event.type == "PUBLISH" and event.topic is not None and is_wanted(event.topic):
                    building.add(entry, event)
            if building.is_full:
                yield building.take()
    if building.rows:
        yield building.take()


class _Building:
    def __init__(
        self,
        schema: Any,
        first_offsets: Mapping[tuple[str, int], int],
        last_offsets: Mapping[tuple[str, int], int],
        include_headers: bool,
    ) -> None:
        self._schema = schema
        self._first_offsets = first_offsets
        self._last_offsets = last_offsets
        self._include_headers = include_headers
        self._clear()

    def _clear(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.rows) >= ROWS_PER_BATCH or self._bytes >= BATCH_BYTES

    def add(self, entry: EntryEvents, event: LogEvent) -> None:
        of, topic, queue, offset = event.messages, event.topic, event.queue, event.offset
        if of is None or topic is None or queue is None or offset is None:
            return  # the broker made this message itself, so no log record contains its block
        first = self._first_offsets.get((topic, queue), 0)
        end = self._last_offsets.get((topic, queue), offset + of.count)
        stored_us = entry.timestamp_ms * 1000
        for message_offset, (message_id, message) in enumerate(zip(of.ids(), of.decode(), strict=True), offset):
            if not first <= message_offset < end:
                continue
            key = message.sharding_key
            row: tuple[Any, ...] = (
                None if key is None else key.encode(),
                message.body,
                topic,
                queue,
                message_offset,
                stored_us,
                LOG_APPEND_TIME,
                message_id,
                message.tag,
                message.keys,
                tuple(message.properties.items()),
                message.born_at_ms * 1000 if 0 < message.born_at_ms <= BORN_AT_MS_MAX else None,
                stored_us,
                event.transaction_id,
                event.attempt,
            )
            if self._include_headers:
                headers = [{"key": name, "value": value.encode()} for name, value in message.properties.items()]
                row = (*row, headers)
            self.rows.append(row)
            self._bytes += len(message.body)

    def take(self) -> Any:
        columns = zip(*self.rows, strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
