"""Compression of whole batches in the SDK: when and how it compresses, and which answers of a broker it believes."""

import random
from typing import Any

import pytest
import zstandard
from crc32c import crc32c

from keelmq.blocks.batch import Block, decode_block, encode_messages
from keelmq.blocks.compression import COMPRESS_BYTES_MIN, SAVED_PARTS_MIN, compress, unpack
from keelmq.errors import Corrupt
from keelmq.limits import BLOCK_BYTES_MAX
from keelmq.message import Message
from keelmq.producing.producer import Producer
from keelmq.transactions.decision import Transaction
from keelmq.transactions.transaction import TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Appender,
    Request,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
)

ORDERS = [f'{{"order":{number},"state":"created"}}'.encode() * 4 for number in range(200)]


def noise(size_bytes: int) -> bytes:
    return random.Random(size_bytes).randbytes(size_bytes)


@pytest.mark.parametrize(
    ("block", "compressed"),
    [
        (bytes(COMPRESS_BYTES_MIN), True),
        (bytes(COMPRESS_BYTES_MIN - 1), False),
        (noise(100_000), False),
        (noise(70_000) + bytes(30_000), True),
        (noise(90_000) + bytes(10_000), False),
    ],
    ids=["large", "small", "noise", "partly-noise", "mostly-noise"],
)
def test_a_block_is_compressed_when_it_is_large_and_that_saves_an_eighth(block: bytes, compressed: bool) -> None:
    frame = compress(block)
    assert (frame is not None) == compressed
    if frame is not None:
        assert len(frame) <= len(block) * (1 - 1 / SAVED_PARTS_MIN)
        assert unpack(frame, len(block)) == block


def test_the_checksum_is_over_what_is_sent() -> None:
    plain, packed = encode_messages(ORDERS), encode_messages(ORDERS, compressed=True)
    assert (plain.encoding, plain.uncompressed_bytes) == ("none", None)
    assert (packed.encoding, packed.uncompressed_bytes) == ("zstd", len(plain.data))
    assert packed.crc32c == crc32c(packed.data)
    assert zstandard.decompress(packed.data) == plain.data
    assert [message.body for message in decode_block(packed.data, packed.crc32c, packed.uncompressed_bytes)] == ORDERS


def damaged(block: Block, **changes: Any) -> tuple[bytes, int, int | None]:
    data = changes.get("data", block.data)
    return data, changes.get("crc32c", crc32c(data)), changes.get("uncompressed_bytes", block.uncompressed_bytes)


BLOCK = encode_messages(ORDERS, compressed=True)
BOMB = zstandard.ZstdCompressor().compress(bytes(1 << 30))


@pytest.mark.parametrize(
    ("pulled", "code"),
    [
        (damaged(BLOCK, crc32c=BLOCK.crc32c ^ 1), "checksum_mismatch"),
        (damaged(BLOCK, data=BLOCK.data[:-1]), "invalid_block"),
        (damaged(BLOCK, data=BLOCK.data + b"x"), "invalid_block"),
        (damaged(BLOCK, data=b""), "invalid_block"),
        (damaged(BLOCK, data=encode_messages(ORDERS).data), "invalid_block"),
        (damaged(BLOCK, uncompressed_bytes=None), "invalid_block"),
        (damaged(BLOCK, uncompressed_bytes=(BLOCK.uncompressed_bytes or 0) + 1), "invalid_block"),
        (damaged(BLOCK, data=BOMB, uncompressed_bytes=1 << 30), "invalid_block"),
        (damaged(BLOCK, data=BOMB, uncompressed_bytes=BLOCK_BYTES_MAX), "invalid_block"),
        (damaged(BLOCK, uncompressed_bytes=-1), "invalid_block"),
    ],
)
def test_a_pulled_block_that_is_not_what_it_says_is_corrupt(pulled: tuple[bytes, int, int | None], code: str) -> None:
    with pytest.raises(Corrupt) as caught:
        decode_block(*pulled)
    assert caught.value.code == code


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_producer_compresses_its_batches_unless_told_not_to(wanted: bool) -> None:
    transport = ScriptedTransport(Appender())
    async with Producer(connection=Connection(SERVERS, transport=transport), compress=wanted) as producer:
        await producer.send_batch("t", ORDERS, queue=0)
        await producer.send("t", b"small")
    large, small = (request.msgpack()["batches"][0] for request in transport.requests)
    assert not small.keys() & {"encoding", "uncompressed_bytes"}
    plain = encode_messages(ORDERS).data
    if not wanted:
        assert (large["block"], "encoding" in large) == (plain, False)
    else:
        assert (large["encoding"], large["uncompressed_bytes"]) == ("zstd", len(plain))


async def test_a_retry_repeats_the_same_frame() -> None:
    appender, lost = Appender(), [True]

    def script(request: Request) -> HttpResponse:
        answer = appender(request)
        if lost and lost.pop():
            raise ExchangeFailed("connection closed")
        return answer

    transport = ScriptedTransport(script)
    async with Producer(connection=Connection(SERVERS, transport=transport)) as producer:
        result = await producer.send_batch("t", ORDERS, queue=0)
    assert result.duplicate
    assert appender.stored[0] == ORDERS
    first, second = transport.requests
    assert first.body == second.body
    assert first.msgpack()["batches"][0]["encoding"] == "zstd"


@pytest.mark.parametrize(("transaction_id", "encoding"), [(None, "zstd"), ("own", None)])
async def test_a_half_transaction_that_may_be_repeated_elsewhere_is_not_compressed(
    transaction_id: str | None, encoding: str | None
) -> None:
    """A process with another version of zstd would make other bytes of it, which is an idempotency conflict."""

    def script(request: Request) -> HttpResponse:
        if request.target == "/v1/transactions":
            answer = {"transaction_id": request.msgpack()["transaction_id"], "state": "prepared", "receipt": RECEIPT}
            return msgpack_answer(answer, 201)
        if request.method == "GET":
            return json_answer({"checks": []})
        return json_answer({"transaction_id": request.target.split("/")[3], "state": "committed"})

    async def nothing(transaction: Transaction) -> None: ...

    transport = ScriptedTransport(script)
    producer = TransactionProducer(SERVERS, "g", check=never, connection=Connection(SERVERS, transport=transport))
    await producer.start()
    await producer.execute([Message(topic="t", body=body) for body in ORDERS], nothing, transaction_id=transaction_id)
    await producer.close()
    (half,) = (request for request in transport.requests if request.target == "/v1/transactions")
    assert half.msgpack()["batches"][0].get("encoding") == encoding


async def never(transaction: Transaction) -> Any:
    raise AssertionError("no check was expected")
