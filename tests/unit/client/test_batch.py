"""Blocks decode to the messages that were encoded; limits hold, and damage is noticed."""

import subprocess
import sys

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from keelmq.blocks.batch import (
    BatchIds,
    decode_block,
    encode_entries,
    encode_messages,
    entry_bytes_max,
    entry_of,
    key_bytes_min,
    received_messages,
    size_in_request,
)
from keelmq.errors import Corrupt, InvalidRequest, LimitExceeded
from keelmq.limits import BATCH_MESSAGES_MAX, BODY_BYTES_MAX, REQUEST_KEYS_MAX, REQUEST_PROPERTIES_MAX
from keelmq.message import Message
from tests.patience import PATIENCE_S

texts = st.text(max_size=20)
messages = st.builds(
    Message,
    body=st.binary(min_size=1, max_size=200),
    tag=st.none() | texts,
    keys=st.lists(texts, max_size=4).map(tuple),
    properties=st.dictionaries(texts, texts, max_size=4),
    sharding_key=st.none() | texts,
    message_id=st.none() | st.from_regex(r"[A-Za-z0-9_.:-]{1,128}", fullmatch=True),
    born_at_ms=st.integers(0, 1 << 53),
)


@given(st.lists(messages, min_size=1, max_size=10))
def test_messages_survive_a_block(sent: list[Message]) -> None:
    block = encode_messages(sent)
    assert block.count == len(sent)
    for before, after in zip(sent, decode_block(block.data, block.crc32c), strict=True):
        assert after.body == before.body
        # "" and None say the same of a tag or key: nothing.
        assert (after.tag or None) == (before.tag or None)
        assert tuple(after.keys) == tuple(before.keys)
        assert after.properties == before.properties
        assert (after.sharding_key or None) == (before.sharding_key or None)
        assert (after.message_id, after.born_at_ms) == (before.message_id, before.born_at_ms)


@given(messages)
def test_the_size_estimate_is_an_upper_bound(message: Message) -> None:
    entry = entry_of(message)
    assert len(encode_entries([entry]).data) <= entry_bytes_max(entry)


@pytest.mark.parametrize("request_bytes", [1, 10_000, 1 << 20, 8 << 20])
def test_what_fits_a_request_by_its_size_is_within_its_limit_of_keys(request_bytes: int) -> None:
    for message in (Message(body=b"x", keys=["k"] * 32), Message(body=b"x", message_id="m", keys=["k"])):
        size = entry_bytes_max(entry_of(message), key_bytes_min(request_bytes))
        keys = len(message.keys) + (message.message_id is not None)
        assert request_bytes // size * keys <= REQUEST_KEYS_MAX


def test_keys_and_explicit_ids_of_a_batch_are_counted_together() -> None:
    message = Message(body=b"x", keys=["k"], message_id="m")
    assert encode_messages([message] * (REQUEST_KEYS_MAX // 2)).keys == REQUEST_KEYS_MAX
    with pytest.raises(LimitExceeded, match="batch_too_large"):
        encode_messages([message] * (REQUEST_KEYS_MAX // 2) + [Message(body=b"x", message_id="m")])


@pytest.mark.parametrize("request_bytes", [10_000, 1 << 20, 8 << 20])
@pytest.mark.parametrize("compressed", [False, True])
def test_blocks_that_fit_a_request_are_within_its_limits_of_keys_and_properties(
    request_bytes: int, compressed: bool
) -> None:
    message = Message(body=b"x", properties={f"{number}": "" for number in range(100)})
    block = encode_messages([message] * 20, compressed=compressed)
    assert request_bytes // size_in_request(block, request_bytes) * 2_000 <= REQUEST_PROPERTIES_MAX
    block = encode_messages([Message(body=b"x", keys=["k"])] * 20, compressed=compressed)
    assert request_bytes // size_in_request(block, request_bytes) * 20 <= REQUEST_KEYS_MAX


def test_plain_bodies_are_arrays_of_one_element() -> None:
    block = encode_messages([b"a", b"bc"])
    assert msgspec.msgpack.decode(block.data) == [[b"a"], [b"bc"]]
    assert block.crc32c == crc32c(block.data)


def test_bodies_and_messages_may_be_mixed() -> None:
    block = encode_messages([b"a", Message(body=b"b", tag="t")])
    assert msgspec.msgpack.decode(block.data) == [[b"a"], [b"b", "t"]]


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=5), st.data())
def test_any_changed_bit_is_noticed(bodies: list[bytes], data: st.DataObject) -> None:
    block = encode_messages(bodies)
    bit = data.draw(st.integers(0, len(block.data) * 8 - 1))
    damaged = bytearray(block.data)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Corrupt):
        decode_block(bytes(damaged), block.crc32c)


@pytest.mark.parametrize(
    "content", [b"", b"\x90\x90", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([["x"]])]
)
def test_a_right_checksum_over_nonsense_is_corrupt_too(content: bytes) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_block(content, crc32c(content))
    assert caught.value.code == "invalid_block"


@pytest.mark.parametrize(
    ("bodies", "code"),
    [
        ([], "invalid_request"),
        ([b"a", b""], "empty_body"),
        ([b"a", b"x" * (BODY_BYTES_MAX + 1)], "message_too_large"),
        ([b"x" * BODY_BYTES_MAX, b"x" * BODY_BYTES_MAX], "batch_too_large"),
        ([b"x"] * (BATCH_MESSAGES_MAX + 1), "batch_too_large"),
        (["text"], "invalid_request"),
        ([b"a", bytearray(b"b")], "invalid_request"),
    ],
)
def test_what_a_batch_refuses(bodies: list[bytes], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_messages(bodies)
    assert caught.value.code == code


def test_the_largest_things_are_accepted() -> None:
    assert encode_messages([b"x" * BODY_BYTES_MAX]).count == 1
    assert encode_messages([b"x"] * BATCH_MESSAGES_MAX).count == BATCH_MESSAGES_MAX


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Message(body=b"x", tag="é" * 128), "invalid_request"),
        (Message(body=b"x", sharding_key="x" * 256), "invalid_request"),
        (Message(body=b"x", keys=["k"] * 33), "invalid_request"),
        (Message(body=b"x", keys=["k" * 256]), "invalid_request"),
        (Message(body=b"x", keys="abc"), "invalid_request"),
        (Message(body=b"x", message_id="with space"), "invalid_request"),
        (Message(body=b"x", message_id="x" * 129), "invalid_request"),
        (Message(body=b"x", message_id="line\n"), "invalid_request"),
        (Message(body=b"x", properties={"a": "x" * 32_767}), "too_many_properties"),
        (Message(body=b"x", properties={"a": 1}), "invalid_request"),  # type: ignore[dict-item]
    ],
)
def test_what_a_message_refuses(message: Message, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_messages([message])
    assert caught.value.code == code


def test_offsets_and_ids_with_ordinals_left_out() -> None:
    """Ordinal 1 was known before: it has no offset; the reader starts in the middle of the batch."""
    block = decode_block(*_data([b"a", b"b", Message(body=b"c", message_id="own"), b"d"]))
    received = list(
        received_messages(
            block,
            topic="t",
            queue=3,
            batch_id="B",
            base_offset=10,
            skip=[1],
            from_offset=11,
            stored_at_ms=5,
            transaction_id="tx",
        )
    )
    assert [(m.offset, m.message_id, m.body) for m in received] == [(11, "own", b"c"), (12, "B-3", b"d")]
    assert {(m.topic, m.queue, m.stored_at_ms, m.transaction_id) for m in received} == {("t", 3, 5, "tx")}


def _data(content: list[bytes | Message]) -> tuple[bytes, int]:
    block = encode_messages(content)
    return block.data, block.crc32c


def test_batch_ids_are_unique_and_allowed() -> None:
    first, second = BatchIds(), BatchIds()
    ids = [source.next_id() for source in (first, second) for _ in range(1_000)]
    assert len(set(ids)) == 2_000
    assert all(len(each) <= 64 and each.replace("-", "").isalnum() for each in ids)


FORKS = """
import os
from keelmq.blocks.batch import BatchIds
ids = BatchIds()
child = os.fork()
os.write(1, f"{ids.next_id()} {ids.next_id()} ".encode())
if child:
    os.waitpid(child, 0)
"""


def test_a_process_that_was_forked_goes_on_with_ids_of_its_own() -> None:
    """A producer may be made before a server forks its workers, each of which uses it in its own event loop."""
    told = subprocess.run([sys.executable, "-c", FORKS], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
    ids = told.stdout.split()
    assert len(ids) == len(set(ids)) == 4


def test_limit_errors_are_usage_errors() -> None:
    with pytest.raises(LimitExceeded) as caught:
        encode_messages([b""])
    assert not caught.value.retryable
    assert caught.value.status == 0
