"""Frames of the log become Arrow rows, the same as if every message were looked at on its own."""

import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from keelmq.blocks.batch import encode_messages
from keelmq.errors import Corrupt
from keelmq.log.log_events import EntryEvents, EventMessages, EventsPage, LogEvent, read_frames
from keelmq.message import Message
from keelmq_spark.views.decode import cause_of, event_batches, trace_id_of
from keelmq_spark.views.events import EVENTS_ARROW
from keelmq_spark.views.messages import message_batches

TRACE = "0af7651916cd43dd8448eb211c80319c"
OTHERS = '{"producer_group":"shop","region":"eu"}'
CAUSED = Message(
    body=b"caused",
    tag="t",
    keys=["k1", "k2"],
    properties={
        "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
        "causation_id": "b0-1",
        "region": "eu",
        "producer_group": "shop",
    },
)


def of(batch_id: str, *messages: bytes | Message, **more: Any) -> EventMessages:
    block = encode_messages(messages, compressed=more.pop("compressed", False))
    fields: dict[str, Any] = {
        "batch_id": batch_id,
        "count": len(messages) - len(more.get("skip", ())),
        "message_ids": None,
        "skip": [],
        "only": None,
        "block_bytes": len(block.data),
        "uncompressed_bytes": block.uncompressed_bytes,
        "block": block.data,
    }
    return EventMessages(**{**fields, **more})


def event(type: str, **more: Any) -> LogEvent:
    return LogEvent(**{**dict.fromkeys(LogEvent.__struct_fields__), "type": type, **more})


ENTRIES = [
    EntryEvents(
        5,
        2,
        1_700_000_000_123,
        0,
        [
            event("PUBLISH", topic="orders", queue=1, offset=7, messages=of("b0", b"a", b"bb", b"ccc")),
            event("ACK", topic="orders", queue=0, offset=3, offset_end=9, group="g", client_id="c", filter="a > 1"),
            event("PUBLISH", topic="orders", queue=0, offset=0, messages=of("b1", CAUSED, b"plain")),
        ],
    ),
    EntryEvents(
        6,
        2,
        1_700_000_000_200,
        4,
        [
            event("HALF", transaction_id="tx", topic="points", queue=0, group="bank", messages=of("b2", CAUSED)),
            event(
                "PUBLISH", topic="points", queue=0, offset=2,
                messages=of("b3", b"1", b"22", b"333", message_ids=[None, "x", "y"], skip=[1]),
            ),
            event(
                "RETRY", topic="orders", queue=1, offset=8, group="g", attempt=1,
                messages=of("b0", b"bb", only=1),
            ),
            event("PUBLISH", topic="%RETRY%g", queue=0, offset=0, attempt=1, message_id="op-0-0"),
        ],
    ),
    EntryEvents(
        9, 3, 1_700_000_000_300, 0,
        [event("PUBLISH", topic="orders", queue=1, offset=10, messages=of("b4", *[b"z" * 90] * 100, compressed=True))],
    ),
]  # fmt: skip


def frame(entry: EntryEvents) -> bytes:
    body = msgspec.msgpack.encode(entry)
    return struct.pack("<II", len(body), crc32c(body)) + body


def pages() -> Iterator[EventsPage]:
    yield EventsPage(b"".join(frame(entry) for entry in ENTRIES[:2]), 7, 0, 9)
    yield EventsPage(frame(ENTRIES[2]), 10, 0, 9)


def expected() -> Iterator[dict[str, Any]]:
    """Yield the expected rows, decoded one message after the other, the plain way."""
    for entry in ENTRIES:
        row = entry.first_row
        for each in entry.events:
            messages = each.messages
            ids = [each.message_id] if messages is None else messages.ids()
            decoded = [None] if messages is None else messages.decode()
            for place, (message_id, message) in enumerate(zip(ids, decoded, strict=True)):
                properties = {} if message is None else message.properties
                yield {
                    "event_id": f"0:{entry.index}:{row}",
                    "type": each.type,
                    "message_id": message_id,
                    "transaction_id": each.transaction_id,
                    "topic": each.topic,
                    "queue": each.queue,
                    "offset": None if each.offset is None else each.offset + place,
                    "offset_end": each.offset_end,
                    "group": each.group or properties.get("producer_group"),
                    "client": each.client_id,
                    "attempt": each.attempt,
                    "trace_id": TRACE if properties else None,
                    "causation_id": properties.get("causation_id"),
                    "key": None if message is None or not message.keys else " ".join(message.keys),
                    "raft_term": entry.term,
                    "raft_index": entry.index,
                    "bytes": None if message is None else len(message.body),
                    "tag": None if message is None else message.tag,
                    "properties": OTHERS if message is not None and message.properties else None,
                    "filter": each.filter,
                }
                row += 1


@pytest.mark.parametrize("rows_per_batch", [1, 5, 1_000])
def test_rows_are_those_of_the_messages(rows_per_batch: int) -> None:
    batches = list(event_batches(pages(), rows_per_batch=rows_per_batch))
    assert all(batch.schema.equals(EVENTS_ARROW) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [int(row.pop("ts").timestamp() * 1000) for row in rows] == [
        entry.timestamp_ms for entry in ENTRIES for each in entry.events for _ in range(each.rows)
    ]
    assert rows == list(expected())
    assert [row["message_id"] for row in rows[7:9]] == ["b3-0", "y"]


def test_rows_of_other_topics_are_left_out_and_the_others_keep_their_ids() -> None:
    wanted = [row for row in expected() if row["topic"] == "orders"]
    (batch,) = event_batches(pages(), "orders".__eq__)
    rows = batch.to_pylist()
    assert 0 < len(rows) < len(list(expected()))
    assert [row["event_id"] for row in rows] == [row["event_id"] for row in wanted]


def test_the_view_messages_shows_what_consumers_see() -> None:
    (batch,) = message_batches(pages(), "orders".__eq__, first_offsets={("orders", 1): 8}, include_headers=True)
    rows = batch.to_pylist()
    assert [(row["partition"], row["offset"], row["message_id"]) for row in rows[:4]] == [
        (1, 8, "b0-1"),
        (1, 9, "b0-2"),
        (0, 0, "b1-0"),
        (0, 1, "b1-1"),
    ]
    assert len(rows) == 104
    ends = {("orders", 1): 9, ("orders", 0): 1}
    (part,) = message_batches(
        pages(), "orders".__eq__, first_offsets={("orders", 1): 8}, last_offsets=ends, include_headers=True
    )
    beyond = {(queue, offset) for (_, queue), end in ends.items() for offset in range(end, 10_000)}
    assert part.to_pylist() == [row for row in rows if (row["partition"], row["offset"]) not in beyond]
    assert 0 < len(part) < len(rows)
    assert dict(rows[2]["properties"]) == CAUSED.properties
    assert {each["key"]: each["value"].decode() for each in rows[2]["headers"]} == CAUSED.properties


@pytest.mark.parametrize(
    ("born_at_ms", "year"),
    [(0, None), (1_700_000_000_000, 2023), (253_402_300_799_999, 9999), (253_402_300_800_000, None), (2**63 - 1, None)],
)
def test_a_time_that_no_timestamp_has_is_unknown(born_at_ms: int, year: int | None) -> None:
    message = Message(body=b"a", born_at_ms=born_at_ms)
    entry = EntryEvents(5, 2, 1, 0, [event("PUBLISH", topic="orders", queue=0, offset=0, messages=of("b", message))])
    page = EventsPage(frame(entry), 6, 0, 5)
    (batch,) = message_batches([page], "orders".__eq__, first_offsets={}, include_headers=False)
    (row,) = batch.to_pylist()
    assert (row["born_timestamp"] and row["born_timestamp"].year) == year


def test_damaged_frames_are_refused() -> None:
    data = bytearray(frame(ENTRIES[0]))
    data[-1] ^= 1
    with pytest.raises(Corrupt, match="CRC32C"):
        list(read_frames(bytes(data)))
    with pytest.raises(Corrupt, match="short"):
        list(read_frames(frame(ENTRIES[0]) + b"1234567"))


@pytest.mark.parametrize("value", [None, "", "00-abc", "x" * 55])
def test_what_is_no_traceparent_has_no_trace(value: str | None) -> None:
    assert trace_id_of(value) is None


@pytest.mark.parametrize(
    ("properties", "cause"),
    [
        ({}, None),
        ({"causation_topic": "orders"}, None),
        ({"causation_id": "a-0"}, "a-0"),
        ({"causation_id": "a-0", "causation_topic": "orders"}, "orders/a-0"),
        ({"causation_id": "a-0,b-0", "causation_topic": "orders"}, "orders/a-0,orders/b-0"),
        ({"causation_id": "a-0,b-0", "causation_topic": "t,u"}, "t/a-0,u/b-0"),
        ({"causation_id": "a-0,b-0,c-0", "causation_topic": "t,u"}, "a-0,b-0,c-0"),
    ],
)
def test_a_cause_is_named_with_its_topic(properties: dict[str, str], cause: str | None) -> None:
    assert cause_of(properties) == cause
