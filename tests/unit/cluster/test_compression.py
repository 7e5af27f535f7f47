"""Compressed blocks at the broker are stored as they came and opened where somebody has to look inside; bombs are
refused.
"""

import tracemalloc
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from cluster.limits import BLOCK_BYTES_MAX
from cluster.messages import compression
from cluster.messages.compression import unpack
from tests.unit.cluster.conftest import Answer, Node

MSGPACK = "application/msgpack"
BODIES = [f"order {number} ".encode() * 20 for number in range(100)]
PLAIN = msgspec.msgpack.encode([[body, "a" if ordinal % 2 else "b"] for ordinal, body in enumerate(BODIES)])
PACKED = zstandard.ZstdCompressor(level=1).compress(PLAIN)
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + len(PLAIN).to_bytes(4, "little") + PLAIN
pack = msgspec.msgpack.encode


def frame(content: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(content)


def unsized(content: bytes) -> bytes:
    """Return a frame that does not say how much it unpacks to."""
    return frame(content, write_content_size=False)


@cache
def bomb(*, is_sized: bool) -> bytes:
    """Return a frame of 1 GiB. A test makes it, not the module, which every worker imports."""
    return frame(bytes(1 << 30), write_content_size=is_sized)


def sized_bomb() -> bytes:
    return bomb(is_sized=True)


def batch(block: bytes = PACKED, uncompressed_bytes: int | None = len(PLAIN), **fields: Any) -> dict[str, Any]:
    made = {"batch_id": "b1", "crc32c": crc32c(block), "block": block, "encoding": "zstd", **fields}
    return made if uncompressed_bytes is None else {**made, "uncompressed_bytes": uncompressed_bytes}


async def send(node: Node, path: str, payload: Any) -> Answer:
    async with node.session.post(path, data=pack(payload), headers={"Content-Type": MSGPACK}) as response:
        body = await response.read()
        decode = msgspec.msgpack.decode if response.content_type == MSGPACK else msgspec.json.decode
        return Answer(response.status, decode(body), response.headers)


async def pull(node: Node, query: str = "offset=0&max_messages=10000") -> Any:
    path = f"/v1/topics/t/queues/0/messages?{query}"
    async with node.session.get(path, headers={"Accept": MSGPACK}) as response:
        assert response.status == 200
        return msgspec.msgpack.decode(await response.read())


@pytest.fixture
async def topic(node: Node) -> Node:
    assert (await node.call("PUT", "/v1/topics/t", {"queues": 1})).status == 201
    return node


async def test_a_compressed_block_is_stored_and_handed_on_as_it_came(topic: Node) -> None:
    sent = await send(topic, "/v1/topics/t/messages", {"batches": [batch()]})
    assert sent.status == 200
    assert sent.body["results"][0]["count"] == len(BODIES)
    (pulled,) = (await pull(topic))["batches"]
    assert (pulled["block"], pulled["crc32c"]) == (PACKED, crc32c(PACKED))
    assert (pulled["encoding"], pulled["uncompressed_bytes"]) == ("zstd", len(PLAIN))
    (row,) = topic.core.state.rows("t", 0, 0, 10, 1 << 20)
    assert (row.block_length, row.unpacked_bytes) == (len(PACKED), len(PLAIN))


async def test_a_block_that_is_not_compressed_says_nothing_of_it(topic: Node) -> None:
    plain = {"batch_id": "b1", "crc32c": crc32c(PLAIN), "block": PLAIN}
    assert (await send(topic, "/v1/topics/t/messages", {"batches": [plain]})).status == 200
    (pulled,) = (await pull(topic))["batches"]
    assert pulled["block"] == PLAIN
    assert not pulled.keys() & {"encoding", "uncompressed_bytes"}


async def test_json_consumers_and_filters_see_the_messages(topic: Node) -> None:
    assert (await send(topic, "/v1/topics/t/messages", {"batches": [batch()]})).status == 200
    path = "/v1/topics/t/queues/0/messages?offset=0&max_messages=1000"
    everything = (await topic.call("GET", path)).body["messages"]
    assert [message["body"].encode() for message in everything] == BODIES
    tagged = (await topic.call("GET", path + "&tags=a")).body["messages"]
    assert [message["offset"] for message in tagged] == list(range(1, 100, 2))


async def test_the_messages_of_a_compressed_half_are_shown_to_its_producers(topic: Node) -> None:
    half = {"transaction_id": "x", "producer_group": "g", "batches": [batch(topic="t")], "check_after_ms": 0}
    assert (await send(topic, "/v1/transactions", half)).status == 201

    async def checks() -> Any:
        return (await topic.call("GET", "/v1/producer-groups/g/checks?wait_ms=1000")).body["checks"]

    (check,) = await topic.wait(checks)
    assert [message["body"].encode() for message in check["messages"]] == BODIES
    assert (await topic.call("POST", "/v1/transactions/x/commit")).status == 200
    (pulled,) = (await pull(topic))["batches"]
    assert (pulled["block"], pulled["encoding"], pulled["transaction_id"]) == (PACKED, "zstd", "x")


async def test_the_size_of_a_pull_is_counted_unpacked(topic: Node) -> None:
    """Otherwise 16 MiB of frames could become gigabytes in a consumer."""
    for number in range(3):
        assert (await send(topic, "/v1/topics/t/messages", {"batches": [batch(batch_id=f"b{number}")]})).status == 200
    assert len((await pull(topic, f"offset=0&max_messages=10000&max_bytes={2 * len(PLAIN)}"))["batches"]) == 2


@pytest.mark.parametrize(
    ("block", "declared", "code"),
    [
        (PACKED, len(PLAIN) - 1, "invalid_compression"),
        (PACKED, len(PLAIN) + 1, "invalid_compression"),
        (PACKED[:-1], len(PLAIN), "invalid_compression"),
        (PACKED + b"x", len(PLAIN), "invalid_compression"),
        (PACKED + PACKED, len(PLAIN), "invalid_compression"),
        (unsized(PLAIN), len(PLAIN), "invalid_compression"),
        (SKIPPABLE, len(PLAIN), "invalid_compression"),
        (PLAIN, len(PLAIN), "invalid_compression"),
        (b"", 1, "invalid_compression"),
        (frame(bytes(BLOCK_BYTES_MAX + 1)), BLOCK_BYTES_MAX + 1, "batch_too_large"),
        (sized_bomb, 1 << 30, "request_too_large"),
        (sized_bomb, len(PLAIN), "invalid_compression"),
        (frame(b"\xc1" * 100), 100, "invalid_request"),
        (frame(pack([[b""]])), len(pack([[b""]])), "empty_body"),
        (frame(pack([[b"x"]] * 10_001)), len(pack([[b"x"]] * 10_001)), "batch_too_large"),
        (PACKED, None, "invalid_request"),
        (PACKED, 0, "invalid_request"),
    ],
)
async def test_a_compressed_block_that_is_not_what_it_says_is_refused(
    topic: Node, block: bytes | Callable[[], bytes], declared: int | None, code: str
) -> None:
    block = block() if callable(block) else block
    for path, payload in (
        ("/v1/topics/t/messages", {"batches": [batch(block, declared)]}),
        ("/v1/transactions", {"producer_group": "g", "batches": [batch(block, declared, topic="t")]}),
    ):
        answer = await send(topic, path, payload)
        assert (answer.body["code"], answer.status) == (code, 413 if code.endswith("too_large") else 400)
    assert (await pull(topic))["max_offset"] == 0


@pytest.mark.parametrize("fields", [{"encoding": "gzip"}, {"encoding": "none"}, {"encoding": None}])
async def test_encodings_that_are_refused(topic: Node, fields: dict[str, Any]) -> None:
    answer = await send(topic, "/v1/topics/t/messages", {"batches": [batch(**fields)]})
    assert (answer.status, answer.body["code"]) == (400, "invalid_request")


async def test_many_small_bombs_are_refused_together(topic: Node) -> None:
    """Each unpacks within the limit of a block, and all together to 800 MiB."""
    block = frame(pack([[bytes(4 << 20)], [bytes((4 << 20) - 100)]]))
    size = zstandard.frame_content_size(block)
    batches = [batch(block, size, batch_id=f"b{number}") for number in range(100)]
    answer = await send(topic, "/v1/topics/t/messages", {"batches": batches})
    assert (answer.status, answer.body["code"]) == (413, "request_too_large")
    assert (await send(topic, "/v1/topics/t/messages", {"batches": batches[:1]})).status == 200


@pytest.mark.parametrize("is_sized", [True, False])
def test_a_bomb_takes_no_memory(is_sized: bool) -> None:
    block = bomb(is_sized=is_sized)
    assert len(block) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="does not declare"):
            unpack(block, 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("window_log", [20, 23, 24, 31])
def test_a_frame_cannot_ask_for_a_window_beyond_a_block(window_log: int) -> None:
    """A whole frame needs none; one that is cut short would get it before the end is missed."""
    content = bytes(300)
    header = b"\x28\xb5\x2f\xfd" + bytes([0x40, (window_log - 10) << 3]) + (len(content) - 256).to_bytes(2, "little")
    whole = header + (1 | len(content) << 3).to_bytes(3, "little") + content
    assert zstandard.get_frame_parameters(whole).window_size == 1 << window_log
    assert unpack(whole, len(content)) == content
    with pytest.raises(ValueError, match="zstd"):
        unpack(whole[:-1], len(content))
    assert compression._unpacker.memory_size() < 2 * BLOCK_BYTES_MAX


@given(st.binary(max_size=200) | st.binary(max_size=50).map(frame), st.integers(1, 1000))
def test_no_bytes_make_unpacking_fail_otherwise(content: bytes, declared: int) -> None:
    try:
        unpacked = unpack(content, declared)
    except ValueError:
        return
    assert len(unpacked) == declared
    assert zstandard.decompress(content) == unpacked
