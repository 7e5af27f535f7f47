"""Message blocks and requests: which are refused, with which code, and which content survives the way through."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.http.json_bodies import parse_json
from cluster.http.requests import check_group, check_queue, check_topic, parse_query
from cluster.limits import (
    BLOCK_BYTES_MAX,
    BLOCK_MESSAGES_MAX,
    BODY_BYTES_MAX,
    KEYS_MAX,
    PROPERTIES_BYTES_MAX,
    TAG_BYTES_MAX,
)
from cluster.messages.blocks import (
    BlockMessage,
    JsonMessage,
    body_text,
    build_message,
    encode_block,
    explicit_ids,
    read_block,
)
from cluster.messages.produce import JsonProduce
from cluster.messages.pull import OffsetQuery
from cluster.messages.pull_pages import PullQuery
from cluster.problems import Problem
from tests.unit.cluster.whole_blocks import decode_block

pack = msgspec.msgpack.encode
produce_decoder = msgspec.json.Decoder(JsonProduce)


def code_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(Problem) as caught:
        call(*arguments)
    return caught.value.code


@pytest.mark.parametrize(
    ("block", "code"),
    [
        (b"", "invalid_request"),
        (b"\xc1", "invalid_request"),
        (pack([]), "invalid_request"),
        (pack({"body": b"x"}), "invalid_request"),
        (pack([["text, not bytes"]]), "invalid_request"),
        (pack([[b""]]), "empty_body"),
        (pack([[b"x", None, [], {}, None, None, 0, "more"]]), "invalid_request"),
        (pack([[b"x"]]) + b"\x00", "invalid_request"),
        (pack([[b"x"]])[:-1], "invalid_request"),
        (pack([[b"x" * (BODY_BYTES_MAX + 1)]]), "message_too_large"),
        (pack([[b"x"]] * (BLOCK_MESSAGES_MAX + 1)), "batch_too_large"),
        (pack([[b"x" * BODY_BYTES_MAX]] * 2), "batch_too_large"),
        (pack([[b"x", "t" * (TAG_BYTES_MAX + 1)]]), "invalid_request"),
        (pack([[b"x", "ä" * TAG_BYTES_MAX]]), "invalid_request"),
        (pack([[b"x", None, ["k"] * (KEYS_MAX + 1)]]), "invalid_request"),
        (pack([[b"x", None, ["ä" * 200]]]), "invalid_request"),
        (pack([[b"x", None, [], {"p": "v" * PROPERTIES_BYTES_MAX}]]), "too_many_properties"),
        (pack([[b"x", None, [], {"p": 1}]]), "invalid_request"),
        (pack([[b"x", None, [], {}, "ä" * 200]]), "invalid_request"),
        (pack([[b"x", None, [], {}, None, "bad id"]]), "invalid_request"),
        (pack([[b"x", None, [], {}, None, "id\n"]]), "invalid_request"),
        (pack([[b"x", None, [], {}, None, "", 0]]), "invalid_request"),
        (pack([[b"x", None, [], {}, None, None, -1]]), "invalid_request"),
        (b"\x91" * 100_000, "invalid_request"),
    ],
)
def test_a_block_that_breaks_a_limit_is_refused(block: bytes, code: str) -> None:
    assert code_of(decode_block, block, "block") == code


def test_a_block_at_every_limit_is_taken() -> None:
    message = [
        b"x",
        "t" * TAG_BYTES_MAX,
        ["k" * 255] * KEYS_MAX,
        {"p": "v" * (PROPERTIES_BYTES_MAX - 1)},
        "s" * 255,
        "i" * 128,
        1,
    ]
    (decoded,) = decode_block(pack([message]), "block")
    assert decoded.properties["p"] == "v" * (PROPERTIES_BYTES_MAX - 1)
    assert len(decode_block(pack([[b"x"]] * BLOCK_MESSAGES_MAX), "block")) == BLOCK_MESSAGES_MAX
    assert len(decode_block(pack([[b"x" * BODY_BYTES_MAX]]), "block")) == 1


@given(st.binary(max_size=200))
def test_no_bytes_make_decoding_fail_otherwise_than_with_a_problem(block: bytes) -> None:
    outcome: object
    try:
        outcome = decode_block(block, "block")
    except Problem as problem:
        outcome = problem.kind.status in (400, 413)
    assert outcome


texts = st.text(max_size=40)
json_messages = st.builds(
    JsonMessage,
    body=st.text(min_size=1, max_size=40),
    tag=st.none() | texts,
    keys=st.lists(texts, max_size=3).map(tuple),
    properties=st.dictionaries(texts, texts, max_size=3),
    sharding_key=st.none() | texts,
    message_id=st.none() | st.from_regex(r"\A[A-Za-z0-9_.:-]{1,128}\Z"),
    born_at_ms=st.integers(0, 2**63 - 1),
)


@given(st.lists(json_messages, min_size=1, max_size=5))
def test_json_messages_survive_the_block(messages: list[JsonMessage]) -> None:
    block = encode_block([build_message(message, "message") for message in messages], "messages")
    decoded = decode_block(block, "block")
    assert encode_block(decoded, "block") == encode_block(read_block(block), "block") == block
    for message, found in zip(messages, decoded, strict=True):
        assert body_text(found.body) == (message.body, "utf8")
        assert (found.tag, found.keys, found.properties) == (message.tag, message.keys, message.properties)
        assert (found.sharding_key, found.message_id) == (message.sharding_key, message.message_id)
        assert found.born_at_ms == message.born_at_ms


def test_bodies_that_are_not_text_are_base64() -> None:
    message = JsonMessage(body=base64.b64encode(b"\xff\x00").decode(), encoding="base64")
    built = build_message(message, "message")
    assert built.body == b"\xff\x00"
    assert body_text(built.body) == (message.body, "base64")
    for body in ("?", "YQ", "YQ==\n", "ä"):
        assert code_of(build_message, JsonMessage(body=body, encoding="base64"), "message") == "invalid_request"


def test_json_messages_keep_the_limits_of_blocks() -> None:
    assert code_of(build_message, JsonMessage(body=""), "message") == "empty_body"
    assert code_of(build_message, JsonMessage(body="x" * (BODY_BYTES_MAX + 1)), "m") == "message_too_large"
    assert code_of(build_message, JsonMessage(body="ä" * (BODY_BYTES_MAX // 2 + 1)), "m") == "message_too_large"
    large = JsonMessage(body="x", properties={"p": "ä" * (PROPERTIES_BYTES_MAX // 2 + 1)})
    assert code_of(build_message, large, "message") == "too_many_properties"
    big = [BlockMessage(b"x" * BODY_BYTES_MAX)] * (BLOCK_BYTES_MAX // BODY_BYTES_MAX)
    assert code_of(encode_block, big, "messages") == "batch_too_large"
    assert code_of(encode_block, [BlockMessage(b"x")] * (BLOCK_MESSAGES_MAX + 1), "m") == "batch_too_large"


def test_explicit_ids_are_by_ordinal() -> None:
    assert explicit_ids([BlockMessage(b"x"), BlockMessage(b"y")]) is None
    assert explicit_ids([BlockMessage(b"x"), BlockMessage(b"y", message_id="m")]) == (None, "m")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "object"),
        (b'{"messages":[]}', "messages"),
        (b'{"messages":[{"body":1}]}', r"messages\[0\].body"),
        (b'{"messages":[{"body":"x","color":"red"}]}', "color"),
        (b'{"messages":[{"body":"x","queue":-1}]}', "queue"),
        (b'{"messages":[{"body":"x","queue":true}]}', "queue"),
        (b'{"messages":[{"body":"x","encoding":"hex"}]}', "encoding"),
        (b'{"messages":[{"body":"x","body":"y"}]}', "'body' appears twice"),
        (b'{"messages":[{"body":"x","properties":{"a":"1","a":"2"}}]}', "'a' appears twice"),
        (b'{"messages":[{"body":"\xff"}]}', "utf-8"),
        (b'{"messages":[{"body":"x"}]} tail', "trailing"),
        (b'{"messages":' + b"[" * 100_000, "."),
    ],
)
def test_json_is_taken_strictly(body: bytes, named: str) -> None:
    with pytest.raises(Problem, match=named) as caught:
        parse_json(produce_decoder, body)
    assert caught.value.code == "invalid_request"


@pytest.mark.parametrize(
    "query",
    [{}, {"offset": "-1"}, {"offset": "x"}, {"offset": "1", "wait_ms": "30001"}, {"offset": "1", "limit": "1"}],
)
def test_queries_are_taken_strictly(query: dict[str, str]) -> None:
    assert code_of(parse_query, PullQuery, query) == "invalid_request"


def test_queries_are_converted() -> None:
    assert parse_query(PullQuery, {"offset": "7", "tags": "A || B"}).offset == 7
    assert [parse_query(OffsetQuery, {"at": at}).at for at in ("earliest", "latest", "5")] == ["earliest", "latest", 5]
    assert code_of(parse_query, OffsetQuery, {"at": "-5"}) == "invalid_request"


def test_names() -> None:
    assert check_topic("%RETRY%g|1_-") == "%RETRY%g|1_-"
    assert check_group("g" * 255)
    for name in ("", "a b", "ä", "t" * 128, "a\n", "../x"):
        assert code_of(check_topic, name) == "invalid_topic"
    for name in ("", "a b", "g" * 256):
        assert code_of(check_group, name) == "invalid_group"
    assert check_queue("12") == 12
    for text in ("", "-1", "1.5", "x", "99999", "١"):
        assert code_of(check_queue, text) == "invalid_request"
