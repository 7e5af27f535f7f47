"""Decodes events of the log to Arrow batches of the view `events`, on the executors.

Most columns have the same value for all messages of an event. Such values are stored once per event, as runs, and Arrow
spreads them. Python touches only values that differ between messages; for messages without keys and properties that is
only the length of the body.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from keelmq.blocks.batch import BlockMessage
from keelmq.log.log_events import EntryEvents, EventsPage, LogEvent
from keelmq_spark.views.events import EVENTS_ARROW

ROWS_PER_BATCH: Final = 16_384
"""Number of rows at which a batch is closed after the current event; one event has at most 10,000 messages."""

RAFT_GROUP: Final = "0"
_TRACEPARENT_LENGTH: Final = 55
_IN_COLUMNS: Final = frozenset({"traceparent", "tracestate", "causation_id", "causation_topic"})
"""Properties that the SDK writes for the lineage, which has them in columns: they differ with every message."""
_encode: Final = msgspec.json.Encoder(order="sorted").encode


def event_batches(
    pages: Iterable[EventsPage],
    is_wanted: Callable[[str], object] | None = None,
    *,
    rows_per_batch: int = ROWS_PER_BATCH,
) -> Iterator[Any]:
    """Yield `pyarrow.RecordBatch`es with the schema of the view, if `is_wanted` is given only of events that are about
    a wanted topic. Raises Corrupt.
    """
    building = _Building(is_wanted)
    for page in pages:
        for entry in page.entries():
            building.add(entry)
            if building.rows >= rows_per_batch:
                yield building.take()
    if building.rows:
        yield building.take()


class _Building:
    def __init__(self, is_wanted: Callable[[str], object] | None) -> None:
        self._is_wanted = is_wanted
        self._clear()

    def _clear(self) -> None:
        self.rows = 0
        self._runs: list[tuple[Any, ...]] = []
        self._ids: list[str | None] = []
        self._traces: list[str | None] = []
        self._causes: list[str | None] = []
        self._keys: list[str | None] = []
        self._groups: list[str | None] = []
        self._bytes: list[int | None] = []
        self._tags: list[str | None] = []
        self._properties: list[str | None] = []
        self._has_ids = self._has_groups = False

    def add(self, entry: EntryEvents) -> None:
        row = entry.first_row
        prefix = f"{RAFT_GROUP}:{entry.index}:"
        ts_us = entry.timestamp_ms * 1000
        is_wanted = self._is_wanted
        for event in entry.events:
            if is_wanted is not None and (event.topic is None or not is_wanted(event.topic)):
                row += event.rows
                continue
            begin = self.rows
            implicit = self._add_messages(event)
            self.rows += event.rows
            self._runs.append(
                (
                    self.rows,
                    prefix,
                    row - begin,
                    ts_us,
                    event.type,
                    implicit,
                    -begin,
                    event.transaction_id,
                    event.topic,
                    event.queue,
                    None if event.offset is None else event.offset - begin,
                    event.offset_end,
                    event.group,
                    event.client_id,
                    event.attempt,
                    entry.term,
                    entry.index,
                    event.filter,
                )
            )
            row += event.rows

    def _add_messages(self, event: LogEvent) -> str | None:
        """Add the per-message columns. Returns the prefix of the message ids if they are numbered, otherwise None."""
        of = event.messages
        if of is None:
            self._ids.append(event.message_id)
            self._has_ids = self._has_ids or event.message_id is not None
            self._bytes.append(None)
            self._add_nothing(1)
            return None
        messages = of.decode()
        self._bytes += [len(message.body) for message in messages]
        self._add_attributes(messages)
        if of.message_ids is None and not of.skip and of.only is None:
            self._ids += [None] * of.count
            return of.batch_id + "-"
        self._ids += of.ids()
        self._has_ids = True
        return None

    def _add_nothing(self, rows: int) -> None:
        nothing = [None] * rows
        self._traces += nothing
        self._causes += nothing
        self._keys += nothing
        self._groups += nothing
        self._tags += nothing
        self._properties += nothing

    def _add_attributes(self, messages: Sequence[BlockMessage]) -> None:
        keys = [message.keys for message in messages]
        if any(keys):
            self._keys += [" ".join(each) if each else None for each in keys]
        else:
            self._keys += [None] * len(messages)
        self._tags += [message.tag for message in messages]
        properties = [message.properties for message in messages]
        if not any(properties):
            nothing = [None] * len(messages)
            self._traces += nothing
            self._causes += nothing
            self._groups += nothing
            self._properties += nothing
            return
        self._traces += [trace_id_of(each.get("traceparent")) for each in properties]
        self._causes += [cause_of(each) for each in properties]
        self._groups += [each.get("producer_group") for each in properties]
        self._properties += [others_of(each) for each in properties]
        self._has_groups = True

    def take(self) -> Any:
        (
            ends, prefixes, rows, ts, types, implicit, ordinals, transactions, topics, queues, offsets, offset_ends,
            groups, clients, attempts, terms, indexes, filters,
        ) = zip(*self._runs, strict=True)  # fmt: skip
        run_ends = pa.array(ends, pa.int32())
        at = pa.arange(0, self.rows, 1)

        def spread(values: Sequence[Any], of_type: Any) -> Any:
            array = pa.array(values, of_type)
            if len(array) == self.rows:
                return array
            return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, array))

        def counted(values: Sequence[Any]) -> Any:
            return pc.add(spread(values, pa.int64()), at)

        def joined(begins: Sequence[Any], numbers: Sequence[Any]) -> Any:
            ends = counted(numbers).cast(pa.string())
            return pc.binary_join_element_wise(spread(begins, pa.string()), ends, "")

        message_ids = joined(implicit, ordinals)
        if self._has_ids:
            message_ids = pc.coalesce(pa.array(self._ids, pa.string()), message_ids)
        group = spread(groups, pa.string())
        if self._has_groups:
            group = pc.coalesce(group, pa.array(self._groups, pa.string()))
        columns = [
            joined(prefixes, rows),
            spread(ts, EVENTS_ARROW.field("ts").type),
            spread(types, pa.string()),
            message_ids,
            spread(transactions, pa.string()),
            spread(topics, pa.string()),
            spread(queues, pa.int32()),
            counted(offsets),
            spread(offset_ends, pa.int64()),
            group,
            spread(clients, pa.string()),
            spread(attempts, pa.int32()),
            pa.array(self._traces, pa.string()),
            pa.array(self._causes, pa.string()),
            pa.array(self._keys, pa.string()),
            spread(terms, pa.int64()),
            spread(indexes, pa.int64()),
            pa.array(self._bytes, pa.int64()),
            pa.array(self._tags, pa.string()),
            pa.array(self._properties, pa.string()),
            spread(filters, pa.string()),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=EVENTS_ARROW)


def others_of(properties: Mapping[str, str]) -> str | None:
    """Return the properties that no other column has as a JSON object, with sorted names; None when there are none."""
    others = {name: value for name, value in properties.items() if name not in _IN_COLUMNS}
    return _encode(others).decode() if others else None


def cause_of(properties: Mapping[str, str]) -> str | None:
    """Return the ids of `causation_id`, as topic/id if `causation_topic` names one topic for all or one per id."""
    causes = properties.get("causation_id")
    topics = properties.get("causation_topic")
    if not causes or not topics:
        return causes
    ids, named = causes.split(","), topics.split(",")
    if len(named) == 1:
        named *= len(ids)
    if len(named) != len(ids):
        return causes
    return ",".join(f"{topic}/{message_id}" for topic, message_id in zip(named, ids, strict=True))


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id of a W3C `traceparent`; None for None and for an invalid value."""
    if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH or traceparent[2] != "-" or traceparent[35] != "-":
        return None
    return traceparent[3:35]
