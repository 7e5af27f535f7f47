"""The cost of a block is bounded before it is decoded. It is decoded in pieces between which the loop goes on."""

from typing import Any

import msgspec
import pytest
import zstandard
from crc32c import crc32c

from cluster.budgets import pace
from cluster.limits import PROPERTIES_MAX, REQUEST_KEYS_MAX, REQUEST_PROPERTIES_MAX
from cluster.messages import blocks
from cluster.messages.blocks import decode_pieces, read_block, read_pieces
from cluster.messages.request_attributes import RequestAttributes
from cluster.problems import Problem
from tests.unit.cluster.conftest import Node
from tests.unit.cluster.whole_blocks import decode_block

pack = msgspec.msgpack.encode


def with_properties(messages: int, each: int) -> bytes:
    return pack([[b"x", None, [], {f"{number:x}": "" for number in range(each)}]] * messages)


def twofold(count: int) -> bytes:
    """Return a block of one message whose properties are all the same one."""
    return b"\x91\x94\xc4\x01x\xc0\x90\xdf" + count.to_bytes(4) + b"\xa1x\xa0" * count


async def send(node: Node, *sent: bytes, zstd: bool = False) -> tuple[int, str | None]:
    batches: list[dict[str, Any]] = []
    for ordinal, block in enumerate(sent):
        data = zstandard.ZstdCompressor().compress(block) if zstd else block
        more = {"encoding": "zstd", "uncompressed_bytes": len(block)} if zstd else {}
        batches.append({"queue": 0, "batch_id": f"b{ordinal}", "crc32c": crc32c(data), "block": data, **more})
    headers = {"Content-Type": "application/msgpack"}
    async with node.session.post("/v1/topics/t/messages", data=pack({"batches": batches}), headers=headers) as response:
        code = None if response.ok else (await response.json(content_type=None))["code"]
        return response.status, code


def test_properties_of_a_message_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_check_texts", None)  # nothing gets so far
    with pytest.raises(Problem, match=f"the limit is {PROPERTIES_MAX}") as caught:
        decode_block(twofold(2_000_000), "block")
    assert caught.value.code == "too_many_properties"


def test_what_was_stored_before_the_limit_can_be_read() -> None:
    (message,) = read_block(twofold(PROPERTIES_MAX + 1))
    assert message.properties == {"x": ""}


def test_a_long_block_is_decoded_in_pieces() -> None:
    block = pack([[b"x" * 100, None, [str(number)]] for number in range(10_000)])
    for pieces in (list(decode_pieces(block, "block")), list(read_pieces(block))):
        assert len(pieces) >= 10
        assert max(map(len, pieces)) <= blocks.PIECE_MESSAGES
        assert [message.keys for piece in pieces for message in piece] == [(str(number),) for number in range(10_000)]
    with pytest.raises(Problem, match=r"block\[9999\]: empty body"):
        decode_block(pack([*[[b"x" * 100]] * 9_999, [b""]]), "block")


async def test_no_more_than_the_piece_that_has_too_many_is_decoded() -> None:
    attributes, decoded = RequestAttributes(), 0

    def take() -> None:
        nonlocal decoded
        for piece in decode_pieces(with_properties(8_000, 200), "block"):
            decoded += len(piece)
            attributes.count(piece)

    with pytest.raises(Problem) as caught:
        take()
    assert caught.value.code == "too_many_properties"
    assert decoded * 200 < REQUEST_PROPERTIES_MAX + blocks.PIECE_BYTES


@pytest.mark.parametrize("zstd", [False, True])
async def test_the_properties_of_a_request_are_counted_together(node: Node, zstd: bool) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    half = with_properties(500, REQUEST_PROPERTIES_MAX // 1_000)
    assert await send(node, half, half, pack([[b"x"]]), zstd=zstd) == (200, None)
    assert await send(node, half, half, with_properties(1, 1), zstd=zstd) == (400, "too_many_properties")
    messages = [{"body": "x", "properties": {f"{name:x}": "" for name in range(1_001)}}] * 100
    body, headers = msgspec.json.encode({"messages": messages}), {"Content-Type": "application/json"}
    async with node.session.post("/v1/topics/t/messages", data=body, headers=headers) as response:
        assert (await response.json(content_type=None))["code"] == "too_many_properties"


async def test_the_keys_of_a_request_are_counted_together(node: Node) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    half = pack([[b"x", None, [f"{key}" for key in range(25)]]] * (REQUEST_KEYS_MAX // 50))
    assert await send(node, half, half) == (200, None)
    assert await send(node, half, half, pack([[b"x", None, ["k"]]])) == (413, "batch_too_large")


async def test_the_loop_goes_on_between_the_pieces_of_what_is_sent_and_of_what_is_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    rests = 0
    rest = pace.Pace.rest

    async def counting(each: pace.Pace) -> None:
        nonlocal rests
        rests += 1
        await rest(each)

    monkeypatch.setattr(pace, "SLICE_S", 0)
    monkeypatch.setattr(pace.Pace, "rest", counting)
    block = with_properties(5_000, 20)
    pieces = len(list(decode_pieces(block, "block")))
    assert await send(node, block) == (200, None)
    assert rests == pieces + 1 > 4, "one of them for the batch in the answer"
    rests = 0
    pulled = await node.call("GET", "/v1/topics/t/queues/0/messages?offset=4999")
    assert len(pulled.body["messages"]) == 1
    assert rests >= pieces
