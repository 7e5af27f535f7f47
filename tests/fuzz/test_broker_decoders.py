"""Fuzzes the broker's decoders of client requests: input is accepted within every limit, or refused with a documented
code.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cluster.application  # noqa: F401 - imports every handler, and so every request
from cluster.groups.api import OffsetEntry, OffsetsRequest, ResetRequest
from cluster.groups.subscriptions import JoinRequest
from cluster.http import requests
from cluster.http.json_bodies import parse_json
from cluster.limits import (
    BLOCK_MESSAGES_MAX,
    BODY_BYTES_MAX,
    KEY_BYTES_MAX,
    KEYS_MAX,
    PROPERTIES_BYTES_MAX,
    TAG_BYTES_MAX,
)
from cluster.messages.blocks import (
    BlockBatch,
    BlockMessage,
    JsonMessage,
    build_message,
    encode_block,
    explicit_ids,
    read_block,
)
from cluster.messages.produce import BlockProduce, JsonProduce
from cluster.messages.topic_api import TopicSettings
from cluster.problems import KINDS, Problem
from cluster.transactions.half_batches import BlockHalf, BlockHalfBatch, JsonHalf, JsonHalfMessage
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, msgpack_like, plain_values
from tests.unit.cluster.whole_blocks import decode_block

BLOCK = msgspec.msgpack.encode(
    [
        [b"body"],
        [b"x" * 40, "tag", ["k1", "k2"], {"name": "value"}, "shard", "message-1", 1_700_000_000_000],
        [b"last", None, [], {}, None, "message-2"],
    ]
)
NESTED = b"\x91" * 5000 + b"\x00"


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


BODIES = sorted(subclasses(requests.Request), key=lambda kind: kind.__name__)
SAMPLES: list[Any] = [
    JsonProduce(messages=(JsonMessage(body="x", keys=("k",), properties={"a": "b"}, queue=1),)),
    BlockProduce(batches=(BlockBatch(queue=0, batch_id="b-1", crc32c=7, block=BLOCK),)),
    BlockHalf(producer_group="g", batches=(BlockHalfBatch(topic="t", batch_id="b-1", crc32c=7, block=BLOCK),)),
    JsonHalf(producer_group="g", messages=(JsonHalfMessage(topic="t", body="x"),)),
    OffsetsRequest(offsets=(OffsetEntry(topic="t", queue=0, offset=5),)),
    JoinRequest(topics=("a", "b"), tags={"a": "A || B"}, filters={"b": "x > 1"}),
    ResetRequest(topic="t", to="earliest"),
]


def code_of(error: Problem) -> str:
    """Return the code of a documented problem that a request can cause."""
    assert error.code in KINDS
    assert error.kind.status < 500
    assert error.detail
    return error.code


def texts(**options: Any) -> st.SearchStrategy[str]:
    return st.text(max_size=300, **options) | st.sampled_from(("é" * 200, "a" * 255, "a" * 256, "\n", ""))


def messages() -> st.SearchStrategy[list[Any]]:
    """Return a strategy of block entries around the limits."""
    bodies = st.binary(max_size=30)
    fields = st.tuples(
        bodies,
        st.none() | texts(),
        st.lists(texts(), max_size=4) | st.just(["k"] * (KEYS_MAX + 1)),
        st.dictionaries(texts(), texts(), max_size=3) | st.just({"p": "v" * (PROPERTIES_BYTES_MAX + 1)}),
        st.none() | texts(),
        st.none() | texts(),
        st.integers(-1, (1 << 64) - 1),
    )
    return st.tuples(fields, st.integers(0, 7)).map(lambda drawn: list(drawn[0][: drawn[1]]))


def blocks() -> st.SearchStrategy[bytes]:
    alike = st.lists(messages(), max_size=4).map(msgspec.msgpack.encode)
    many = st.just(msgspec.msgpack.encode([[b"x"]] * (BLOCK_MESSAGES_MAX + 1)))
    return msgpack_like(BLOCK) | alike | many


@fuzz(500)
@given(blocks())
@example(b"\x91\x98\xc4\x01x\xc0\x90\x80\xc0\xc0\x00" + NESTED)
@example(b"\x91\x92\xc4\x01x\xa1\xff")
@example(BLOCK)
@example(msgspec.msgpack.encode([[bytes(BODY_BYTES_MAX)]]))
@example(msgspec.msgpack.encode([[bytes(BODY_BYTES_MAX + 1)]]))
def test_a_block_is_taken_within_every_limit_or_refused(block: bytes) -> None:
    try:
        taken = decode_block(block, "batches[0].block")
    except Problem as error:
        code = code_of(error)
    else:
        code = ""
        assert 0 < len(taken) <= BLOCK_MESSAGES_MAX
        for message in taken:
            check_limits(message)
        assert encode_block(read_block(block), "again") == encode_block(taken, "again")
        assert len(explicit_ids(taken) or taken) == len(taken)
    assert code or block


def check_limits(message: BlockMessage) -> None:
    assert 0 < len(message.body) <= BODY_BYTES_MAX
    assert len((message.tag or "").encode()) <= TAG_BYTES_MAX
    assert len(message.keys) <= KEYS_MAX
    assert all(len(key.encode()) <= KEY_BYTES_MAX for key in message.keys)
    size = sum(len(name.encode()) + len(value.encode()) for name, value in message.properties.items())
    assert size <= PROPERTIES_BYTES_MAX


def json_bodies() -> st.SearchStrategy[bytes]:
    sample = st.sampled_from(SAMPLES).map(msgspec.json.encode)
    return st.one_of(
        sample.flatmap(damaged),
        plain_values().map(msgspec.json.encode),
        st.binary(max_size=100),
        st.text(max_size=50).map(lambda text: msgspec.json.encode({"messages": [{"body": text, "tag": text}]})),
    )


@fuzz(700)
@given(st.sampled_from(BODIES), json_bodies())
@example(JsonProduce, b'{"messages":[{"body":"\\ud800"}]}')
@example(JsonProduce, b'{"messages":[{"body":"x","properties":{"\\ud83d":"\\ude00"}}]}')
@example(TopicSettings, b'{"queues":1' + b"0" * 5000 + b"}")
@example(TopicSettings, b'{"more":' + b"[" * 50_000)
@example(TopicSettings, b'{"queues":1,"queues":2}')
def test_a_json_body_is_what_the_struct_describes_or_refused(kind: type[Any], body: bytes) -> None:
    try:
        decoded = parse_json(msgspec.json.Decoder(kind), body)
    except Problem as error:
        assert code_of(error) == "invalid_request"  # noqa: PT017 - both ends of the call are judged
        return
    # Accepted input can be encoded again, and means the same.
    assert msgspec.json.decode(msgspec.json.encode(decoded), type=kind) == decoded
    if isinstance(decoded, JsonProduce):
        build(decoded)


def build(request: JsonProduce) -> None:
    built = []
    for ordinal, message in enumerate(request.messages):
        try:
            built.append(build_message(message, f"messages[{ordinal}]"))
        except Problem as error:
            assert code_of(error)  # noqa: PT017
            return
        check_limits(built[-1])
    assert decode_block(encode_block(built, "messages"), "again") == built


@fuzz(500)
@given(st.sampled_from(BODIES), st.sampled_from(SAMPLES).map(msgspec.msgpack.encode).flatmap(msgpack_like))
@example(BlockProduce, b"\x81\xa4more" + NESTED)
@example(BlockProduce, b"\x81\xa2\xff\xfe\x01")
def test_a_msgpack_body_is_what_the_struct_describes_or_refused(kind: type[Any], body: bytes) -> None:
    try:
        decoded = requests.parse_msgpack(msgspec.msgpack.Decoder(kind), body)
    except Problem as error:
        assert code_of(error) == "invalid_request"  # noqa: PT017
        return
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(decoded), type=kind) == decoded


QUERIES = [kind for kind in BODIES if kind.__name__.endswith("Query")]
PARAMETERS = sorted({name for kind in QUERIES for name in kind.__struct_encode_fields__})


@fuzz(500)
@given(
    st.sampled_from(QUERIES),
    st.dictionaries(
        st.sampled_from(PARAMETERS) | st.text(max_size=8),
        st.sampled_from(("0", "-1", "1e3", "0x10", "true", "earliest", "", " 1", "١", str(1 << 63), "9" * 5000, "nan"))
        | st.text(max_size=12),
        max_size=4,
    ),
)
def test_a_query_is_what_the_struct_describes_or_refused(kind: type[Any], query: Mapping[str, str]) -> None:
    try:
        parsed = requests.parse_query(kind, query)
    except Problem as error:
        assert code_of(error) == "invalid_request"  # noqa: PT017
        return
    assert set(query) <= set(kind.__struct_encode_fields__)
    assert msgspec.convert(msgspec.to_builtins(parsed), kind) == parsed


@fuzz(300)
@given(st.text(max_size=300) | st.text("%|azAZ09_-", max_size=300) | st.sampled_from(("a\n", "٣", "-1", "", "00")))
def test_names_of_a_path_are_within_their_rules_or_refused(text: str) -> None:
    for check, code in (
        (requests.check_topic, "invalid_topic"),
        (requests.check_group, "invalid_group"),
        (requests.check_queue, "invalid_request"),
    ):
        try:
            checked = check(text)
        except Problem as error:
            assert error.code == code  # noqa: PT017
        else:
            assert str(checked) == (text if isinstance(checked, str) else str(int(text)))


def test_every_kind_of_request_is_fuzzed() -> None:
    assert len(BODIES) > 15
    assert len(QUERIES) > 5
    with pytest.raises(Problem):
        parse_json(msgspec.json.Decoder(JsonProduce), b"")
