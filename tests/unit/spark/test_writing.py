"""Rows that are written with the format `keelmq`: their messages, ids and batches, without broker and Spark."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, StructType

from keelmq import Message
from keelmq.blocks.batch import encode_messages
from keelmq.errors import IdempotencyConflict
from keelmq.limits import BLOCK_BYTES_MAX
from keelmq_spark import writing
from keelmq_spark.options_of_sink import SinkOptions
from keelmq_spark.writing import IN_FLIGHT, KeelMQStreamWriter, KeelMQWriter, batched, messages_of

SERVERS = {"servers": "http://127.0.0.1:7081"}
SCHEMA = StructType().add("value", "string")


def options(**given: str) -> SinkOptions:
    return SinkOptions.parse({**SERVERS, "topic": "orders", **given})


def rows(**columns: Sequence[Any]) -> Any:
    return pa.record_batch(columns)


def ids(scope: str, *batches: Any) -> list[str | None]:
    return [message.message_id for _, message in messages_of(options(), scope, batches)]


def test_a_row_has_all_parts_of_a_message() -> None:
    batch = pa.record_batch(
        {
            "value": [b"body"],
            "topic": ["bills"],
            "key": [b"customer-1"],
            "partition": [3],
            "message_id": ["bill-17"],
            "tag": ["paid"],
            "keys": [["k1", "k2"]],
            "properties": pa.array([[("a", "1"), ("none", None)]], pa.map_(pa.string(), pa.string())),
            "delay_ms": [500],
            "causation_id": ["order-17"],
            "causation_topic": ["orders"],
        }
    )
    ((place, message),) = messages_of(options(), "q/0/0", [batch])
    assert place == ("bills", 3, 500)
    assert message == Message(
        body=b"body",
        sharding_key="customer-1",
        message_id="bill-17",
        tag="paid",
        keys=["k1", "k2"],
        properties={"a": "1", "causation_id": "order-17", "causation_topic": "orders"},
    )


def test_a_text_is_a_body_and_one_key() -> None:
    ((place, message),) = messages_of(options(), "q/0/0", [rows(value=["ä"], keys=["k"], key=[None])])
    assert (place.topic, message.body, message.keys, message.sharding_key) == ("orders", "ä".encode(), ["k"], None)
    assert message.properties == {}


def test_ids_follow_from_the_task_and_the_row() -> None:
    once = ids("q/7/0", rows(value=["a", "b", "a"]))
    assert len(set(once)) == 3, "equal rows are messages of their own"
    assert ids("q/7/0", rows(value=["a"]), rows(value=["b", "a"])) == once, "however Arrow cuts them"
    assert sorted(map(str, ids("q/7/0", rows(value=["b", "a", "a"])))) == sorted(map(str, once)), "in any order"
    for other in ("q/8/0", "q/7/1", "r/7/0"):
        assert not set(ids(other, rows(value=["a", "b", "a"]))) & set(once)


def test_batches_have_one_place_and_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ["a", "b", "a", "a", "b"]
    messages = list(messages_of(options(), "s", [rows(value=list("12345"), topic=topics)]))
    found = [(place.topic, [each.body for each in batch]) for place, batch in batched(messages, 2)]
    assert found == [("a", [b"1", b"3"]), ("b", [b"2", b"5"]), ("a", [b"4"])]
    keyed = list(messages_of(options(), "s", [rows(value=["1", "2"], key=["k", None])]))
    assert [len(batch) for _, batch in batched(keyed, 10)] == [1, 1]
    monkeypatch.setattr(writing, "BATCH_BYTES", 200)
    large = list(messages_of(options(), "s", [rows(value=["x" * 6] * 5)]))
    assert [len(batch) for _, batch in batched(large, 100)] == [2, 2, 1]
    many_keys = list(messages_of(options(), "s", [rows(value=["x"] * 200, keys=[["k"] * 32] * 200)]))
    monkeypatch.setattr(writing, "BATCH_BYTES", 1_000_000)
    assert [len(batch) for _, batch in batched(many_keys, 1_000)] == [97, 97, 6]


def batches_of(batch: Any, batch_messages: int, **given: str) -> list[list[Message]]:
    return [list(each) for _, each in batched(messages_of(options(**given), "s", [batch]), batch_messages)]


def property_maps(of_row: Sequence[tuple[str, str]], count: int) -> Any:
    return pa.array([of_row] * count, pa.map_(pa.string(), pa.string()))


def test_a_batch_is_a_block_that_the_broker_takes_whatever_its_rows_have_besides_bodies() -> None:
    count = 1_000
    large = [(f"p{n}", "x" * 3_000) for n in range(3)]
    for batch in (
        rows(value=["x"] * count, properties=property_maps(large, count)),
        rows(value=["x"] * count, properties=property_maps([("p", "\N{GRINNING FACE}" * 8_000)], count)),
    ):
        found = batches_of(batch, count)
        assert sum(map(len, found)) == count
        for each in found:
            assert encode_messages(each).unpacked_bytes <= BLOCK_BYTES_MAX // 4
    tagged = rows(value=["x"] * 5_000, tag=["t" * 255] * 5_000, keys=[["k" * 255]] * 5_000)
    assert len(batches_of(tagged, 5_000, onceBy="batch")) == 3, "tags and keys count"


def test_a_batch_has_half_of_the_properties_of_a_request() -> None:
    many = rows(value=["x"] * 120, properties=property_maps([(f"{n}", "") for n in range(1_000)], 120))
    assert [len(each) for each in batches_of(many, 1_000)] == [50, 50, 20]


def test_rows_without_ids_count_no_ids() -> None:
    batch = rows(value=["x"] * 5_000)
    assert [len(each) for each in batches_of(batch, 5_000, onceBy="batch")] == [5_000]
    assert [len(each) for each in batches_of(batch, 5_000)] == [3_200, 1_800]


class ScriptedProducer:
    """Takes batches, and answers when it is told to."""

    def __init__(self) -> None:
        self.batches: list[Sequence[Message]] = []
        self.under_way = self.most = 0

    async def send_batch(self, topic: str, batch: Sequence[Message], **place: Any) -> None:
        self.batches.append(batch)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        if batch[0].body == b"refused":
            raise ValueError("refused")
        self.under_way -= 1


def test_few_batches_are_under_way_at_a_time_and_all_are_awaited() -> None:
    producer: Any = ScriptedProducer()
    messages = messages_of(options(), "s", [rows(value=[str(n) for n in range(100)])])
    assert asyncio.run(writing._send_with(producer, batched(messages, 1))) == 100
    assert [batch[0].body for batch in producer.batches] == [str(n).encode() for n in range(100)]
    assert (producer.under_way, producer.most <= IN_FLIGHT) == (0, True)
    refused = messages_of(options(), "s", [rows(value=["1", "refused", "3"])])
    with pytest.raises(ValueError, match="refused"):
        asyncio.run(writing._send_with(producer, batched(refused, 1)))


class BrokerOfBatches:
    """Knows batches by their ids, of several in a request, and refuses a request with one that it has."""

    def __init__(self, known: set[str]) -> None:
        self.known = known
        self.stored: list[bytes] = []
        self._request: list[tuple[str, Sequence[Message], asyncio.Future[None]]] = []

    async def send_batch(self, topic: str, batch: Sequence[Message], *, batch_id: str, **place: Any) -> None:
        if not self._request:
            asyncio.get_running_loop().call_soon(self._answer)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request.append((batch_id, batch, answer))
        await answer

    def _answer(self) -> None:
        request, self._request = self._request, []
        refused = next((batch_id for batch_id, _, _ in request if batch_id in self.known), None)
        for batch_id, batch, answer in request:
            if refused is not None:
                answer.set_exception(IdempotencyConflict("idempotency_conflict", "", extra={"batch_id": refused}))
            else:
                self.known.add(batch_id)
                self.stored += [message if isinstance(message, bytes) else message.body for message in batch]
                answer.set_result(None)


def send_by_batch(broker: Any, scope: str, values: Sequence[str]) -> int:
    batches = writing.batches_of(options(onceBy="batch", batchMessages="3"), scope, [rows(value=values)])
    return asyncio.run(writing._send_with(broker, batches, writing.BatchIds(scope)))


def test_batches_that_are_known_are_not_stored_again_and_those_sent_with_them_are() -> None:
    values = [str(n % 6) for n in range(30)]  # equal batches too
    broker = BrokerOfBatches(set())
    assert send_by_batch(broker, "q/0/1", values[:12]) == 12
    assert send_by_batch(broker, "q/0/1", values) == 30
    assert broker.stored == [value.encode() for value in values]
    assert send_by_batch(broker, "q/0/2", values[:3]) == 3
    assert len(broker.stored) == 33, "of another task"
    assert all(len(batch_id) <= 64 for batch_id in broker.known)


def test_rows_of_bodies_alone_become_the_batches_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(onceBy="batch", batchMessages="7")
    values = [("x" * (n * 37 % 90 + 1)).encode() for n in range(500)]
    for limit in (writing.BATCH_BYTES, 400, 49):
        monkeypatch.setattr(writing, "BATCH_BYTES", limit)
        messages = list(batched(messages_of(given, "s", [rows(value=values)]), 7))
        expected = [(place, [message.body for message in batch]) for place, batch in messages]
        for cuts in ([500], [1, 2, 6, 13, 14, 200, 500], list(range(1, 501))):
            parts = [values[a:b] for a, b in zip([0, *cuts], cuts, strict=False)]
            assert list(writing.batches_of(given, "s", [rows(value=part) for part in parts])) == expected
            texts = [rows(value=[value.decode() for value in part]) for part in parts]
            assert list(writing.batches_of(given, "s", texts)) == expected
    assert list(writing.batches_of(given, "s", [])) == []
    for nothing in (None, ""):
        with pytest.raises(ValueError, match="a row without a value"):
            list(writing.batches_of(given, "s", [rows(value=pa.array(["a", nothing], pa.string()))]))


def test_rows_have_no_ids_where_their_batch_has_one_unless_they_bring_them() -> None:
    given = options(onceBy="batch")
    messages = [message for _, message in messages_of(given, "s", [rows(value=["a", "b"], message_id=[None, "own"])])]
    assert [message.message_id for message in messages] == [None, "own"]
    with pytest.raises(ValueError, match="onceBy: rows with the column key"):
        KeelMQWriter(given, StructType().add("value", "string").add("key", "string"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"onceBy": "message"}, "onceBy: message is none of row, batch"),
        ({"servers": ""}, "servers: the URLs"),
        ({"subscribe": "orders"}, "unknown option subscribe: the options of keelmq for writing are servers"),
        ({"topic": "no topic"}, "topic 'no topic'"),
        ({"producerGroup": "a b"}, "group 'a b'"),
        ({"batchMessages": "0"}, "batchMessages: a number from 1 to 5000"),
    ],
)
def test_wrong_options_are_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SinkOptions.parse({**SERVERS, **given})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (StructType().add("body", "string"), "column body: the columns of messages are value"),
        (StructType().add("value", IntegerType()), "column value is int, not binary or string"),
        (StructType().add("topic", "string"), "column value: it has the bodies"),
        (StructType().add("value", "string").add("keys", ArrayType(IntegerType())), "column keys is array<int>"),
    ],
)
def test_wrong_columns_are_named_before_anything_is_written(schema: StructType, message: str) -> None:
    for writer in (KeelMQWriter, KeelMQStreamWriter):
        with pytest.raises(ValueError, match=message):
            writer(options(), schema)


def test_a_topic_and_a_body_have_to_be_somewhere() -> None:
    with pytest.raises(ValueError, match="topic: name it"):
        KeelMQWriter(SinkOptions.parse(SERVERS), SCHEMA)
    nowhere = messages_of(SinkOptions.parse(SERVERS), "s", [rows(value=["a"], topic=pa.array([None], pa.string()))])
    with pytest.raises(ValueError, match="a row without a topic"):
        next(nowhere)
    for nothing in (None, ""):
        with pytest.raises(ValueError, match="a row without a value"):
            next(messages_of(options(), "s", [rows(value=pa.array([nothing], pa.string()))]))


def test_a_write_id_is_for_writes_that_are_no_streams() -> None:
    with pytest.raises(ValueError, match="writeId: a stream has the id of its checkpoint"):
        KeelMQStreamWriter(options(writeId="monday"), SCHEMA)
    first, second = (KeelMQWriter(options(writeId="monday"), SCHEMA) for _ in range(2))
    assert first._write_id == second._write_id == "monday"
    assert KeelMQWriter(options(), SCHEMA)._write_id != KeelMQWriter(options(), SCHEMA)._write_id


def test_batches_have_the_ids_that_they_had() -> None:
    """A job that is repeated by another version sends nothing twice only if the ids of its batches are the same."""
    place, ids = writing.Place("t", None, None), writing.BatchIds("s")
    bodies = [ids.next_id(place, [b"a", b"b", b"c"]) for _ in range(2)]
    assert bodies == [f"e64984c3aacf6ede-29c1970dca857b69bf5346fa466f29c7-{number}" for number in (1, 2)]
    others = [Message(body=b"a", tag="x", keys=["k"], properties={"n": "1"})]
    assert ids.next_id(place, others) == "e64984c3aacf6ede-2c215f9f602d65d7093bb39c222931c6-1"
