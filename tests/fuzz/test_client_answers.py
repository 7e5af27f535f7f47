"""Fuzzes the SDK with answers of a server: the call ends with the answer, or a KeelMQError that an application can act
on.
"""

import asyncio
import contextlib
import socketserver
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import msgspec
import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from keelmq import Connection, Producer, wire
from keelmq.blocks.batch import decode_block, received_messages
from keelmq.consuming.group_session import pull
from keelmq.consuming.selection import EVERYTHING, Selection
from keelmq.errors import ERRORS_BY_CODE, Corrupt, KeelMQError, error_from_problem
from keelmq.log.log_events import read_frames
from keelmq.log.log_records import entry_header, read_records
from keelmq.message import Receipt
from keelmq.transport.http1 import Origin
from store.commands.entry import Proposal, encode_entry
from store.commands.topics import PutTopic
from store.log.record import KIND_ENTRY, encode_header
from tests.fuzz.budget import fuzz
from tests.fuzz.mutation import damaged, msgpack_like, plain_values

CALL_TIMEOUT_MS = 40
BLOCK = msgspec.msgpack.encode([[b"body"], [b"other", "tag", ["k"], {"a": "b"}, None, "id-1", 5]])
NESTED = b"\x91" * 5000 + b"\x00"
RECEIPT = Receipt(1, 2, 3, (1, 2))
HALF = wire.HalfResponse(transaction_id="t-1", state="prepared", receipt=RECEIPT)
DECIDED = wire.DecisionResponse(transaction_id="t-1", state="committed", positions=[wire.Position("orders", 0, 5)])
PROBLEM = {"type": "about:blank", "title": "t", "status": 404, "code": "topic_not_found", "detail": "d"}
ANSWERS: list[Any] = [
    wire.ProduceResponse([wire.ProducedBatch(batch_id="b-1", queue=0, offset=5, count=1)], RECEIPT),
    wire.ProduceResponse([wire.ProducedBatch(batch_id="b-1", queue=0, deliver_at_ms=9, count=1)], RECEIPT),
    HALF,
    DECIDED,
    wire.HalvesResponse([HALF, wire.HalfResponse(transaction_id="t-2", problem=PROBLEM)]),
    wire.DecisionsResponse([DECIDED, wire.DecisionResponse(transaction_id="t-2", problem=PROBLEM)]),
    wire.ChecksResponse([wire.Check("t-1", "g", 1, 2, [wire.CheckMessage("eA==", "base64")])]),
    wire.PullResponse([wire.PulledBatch(0, 2, "b-1", 1, crc32c(BLOCK), BLOCK)], 2, 2),
    wire.PullResponse([wire.PulledBatch(0, 2, "b-1", 1, crc32c(BLOCK), BLOCK, filtered=[1])], 5, 5),
    wire.Membership("m", 1, [wire.Assigned("orders", 0)], 30_000),
    wire.GroupOffsetsResponse([wire.GroupOffset("orders", 0, 5)]),
    wire.OffsetResponse(5),
    wire.TopicInfo(topic="orders", queues=4, type="any", retention_ms=1),
]


def encodings() -> st.SearchStrategy[tuple[bytes, str]]:
    packed = st.sampled_from(ANSWERS).map(msgspec.msgpack.encode).flatmap(msgpack_like)
    text = st.sampled_from(ANSWERS).map(msgspec.json.encode).flatmap(damaged)
    media = st.sampled_from((wire.MSGPACK, wire.JSON, "application/problem+json", "text/html", "", ";"))
    return st.tuples(packed | text | st.binary(max_size=60), media)


@fuzz(700)
@given(st.sampled_from(ANSWERS).map(type), encodings())
@example(wire.HalfResponse, (b"\x81\xa4more" + NESTED, wire.MSGPACK))
@example(wire.TopicInfo, (b'{"more":' + b"[" * 50_000, wire.JSON))
@example(wire.TopicInfo, (b'{"topic":"\xff"}', wire.JSON))
def test_an_answer_is_what_the_contract_says_or_corrupt(kind: type[Any], answer: tuple[bytes, str]) -> None:
    try:
        value = wire.decode(kind, *answer)
    except Corrupt as error:
        assert error.code == "invalid_response"  # noqa: PT017 - both ends of the call are judged
        return
    assert isinstance(value, kind)


@fuzz(500)
@given(msgpack_like(BLOCK), st.booleans(), st.lists(st.integers(-2, 5), max_size=4), st.integers(0, 4))
@example(b"\x91\x92\xc4\x01x\xa1\xff", True, [], 0)
@example(b"\x91\x98\xc4\x01x\xc0\x90\x80\xc0\xc0\x00" + NESTED, True, [], 0)
def test_a_pulled_block_is_messages_or_corrupt(block: bytes, intact: bool, skip: list[int], from_offset: int) -> None:
    try:
        messages = decode_block(block, crc32c(block) ^ (not intact))
    except Corrupt as error:
        assert error.code == ("invalid_block" if intact else "checksum_mismatch")  # noqa: PT017
        return
    received = list(
        received_messages(
            messages,
            topic="orders",
            queue=0,
            batch_id="b-1",
            base_offset=0,
            skip=skip,
            from_offset=from_offset,
            stored_at_ms=1,
            transaction_id=None,
        )
    )
    assert len(received) == max(0, len(messages) - len({n for n in skip if 0 <= n < len(messages)}) - from_offset)


ENTRY = encode_entry(1, [Proposal(PutTopic("orders", 4))])
RECORDS = b"".join(
    encode_header(KIND_ENTRY, len(ENTRY), crc32c(ENTRY), index, 1, 0, 0) + ENTRY for index in range(1, 4)
)


def forged_record(payload: bytes) -> bytes:
    return encode_header(KIND_ENTRY, len(payload), crc32c(payload), 1, 1, 0, 0) + payload


@fuzz(500)
@given(damaged(RECORDS) | st.binary(max_size=100) | msgpack_like(ENTRY).map(forged_record))
@example(forged_record(b"\x0b\x00\x00\x00\x92\x01\x91\x92\xa1\xff" + NESTED))
@example(forged_record(b"\xff\xff\x00\x00\x92\x01\x91" + NESTED))
@example(forged_record(b"\x04\x00\x00\x00\x92\x01\x91\x90"))
@example(forged_record(b"\x05\x00\x00\x00\x92\x01\x91\x91\x90"))
def test_log_records_are_read_or_corrupt(data: bytes) -> None:
    try:
        for record in read_records(data):
            header = entry_header(record)
            assert header is None or all(name for name in header.command_names)
    except Corrupt as error:
        assert error.code in ("invalid_log", "checksum_mismatch")  # noqa: PT017


OF_BATCH = ["b0", 2, [None, "x", "y"], [1], None, 9, None, msgspec.msgpack.encode([[b"1"], [b"2"], [b"3"]])]
EVENT = ["PUBLISH", None, "orders", 0, 7, None, "g", "c", None, None, OF_BATCH]
FRAME = msgspec.msgpack.encode([5, 1, 1_000, 0, [EVENT, ["ACK", None, "orders", 0, 3, 9, "g", "c", None, None, None]]])


def framed(body: bytes) -> bytes:
    return struct.pack("<II", len(body), crc32c(body)) + body


@fuzz(500)
@given(damaged(framed(FRAME)) | st.binary(max_size=100) | msgpack_like(FRAME).map(framed) | damaged(FRAME).map(framed))
@example(framed(msgspec.msgpack.encode([5, 1, 1_000, 0, [[*EVENT[:-1], [*OF_BATCH[:1], 1 << 40, *OF_BATCH[2:]]]]])))
@example(framed(FRAME[:4] + NESTED))
def test_events_of_the_log_are_read_or_corrupt(data: bytes) -> None:
    try:
        for entry in read_frames(data):
            for event in entry.events:
                of = event.messages
                if of is not None and of.block is not None:
                    assert len(of.ids()) == event.rows == len(of.decode())
    except Corrupt as error:
        assert error.code in ("invalid_log", "checksum_mismatch", "invalid_block")  # noqa: PT017


@fuzz(100)
@given(
    st.integers(300, 599),
    st.dictionaries(
        st.sampled_from(("code", "detail", "title", "status", "state")) | st.text(max_size=5), plain_values()
    ),
)
def test_every_problem_is_an_error_of_the_sdk(status: int, problem: dict[str, Any]) -> None:
    error = error_from_problem(status, problem)
    assert isinstance(error, KeelMQError)
    assert str(error)
    assert isinstance(error.retryable, bool)
    for name in ("state", "decided_at_ms", "generation", "max_offset"):
        getattr(error, name, None)


@fuzz(300)
@given(
    st.text(max_size=30) | st.sampled_from(("http://h:99999", "http://[::1", "http://a@b", "https://é", "http://h:-1"))
)
def test_a_location_is_an_origin_or_a_value_error(url: str) -> None:
    try:
        origin = Origin.parse(url)
    except ValueError:
        return
    assert origin.host
    assert 0 <= origin.port < 1 << 16


# --- over a real connection ------------------------------------------------------------------------------------------


def http(status: str, headers: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + body


def raw_answers() -> st.SearchStrategy[bytes]:
    def whole(drawn: tuple[str, str, bytes]) -> bytes:
        status, media, body = drawn
        return http(status, f"Content-Type: {media}\r\nContent-Length: {len(body)}\r\n", body)

    statuses = st.sampled_from(("200 OK", "204 No Content", "307 Temporary Redirect", "409 Conflict", "500 X", "503 X"))
    media = st.sampled_from((wire.MSGPACK, wire.JSON, "application/problem+json", "text/html"))
    codes = st.sampled_from([*ERRORS_BY_CODE, "brand_new"]).map(lambda code: msgspec.json.encode({"code": code}))
    bodies = st.sampled_from(ANSWERS).map(msgspec.msgpack.encode) | codes | st.binary(max_size=40)
    right = st.tuples(statuses, media, bodies).map(whole)
    headers = (
        "Transfer-Encoding: chunked\r\n",
        "Location: http://127.0.0.1:1/\r\n",
        "Location: x\r\n",
        "Retry-After: 9\r\n",
    )
    odd = st.tuples(statuses, st.lists(st.sampled_from(headers), max_size=2), st.binary(max_size=40)).map(
        lambda drawn: http(drawn[0], "".join(drawn[1]), drawn[2])
    )
    return right | right.flatmap(damaged) | odd | st.binary(max_size=80)


class Server(socketserver.ThreadingTCPServer):
    """Answers each request with the next of `answers`, whatever the request was, and hangs up."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.answers: deque[bytes] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        received = b""
        with contextlib.suppress(OSError, IndexError):
            while b"\r\n\r\n" not in received and (part := self.request.recv(4096)):
                received += part
            self.request.sendall(cast(Server, self.server).answers.popleft())


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


async def ask(url: str) -> None:
    connection = Connection(url, call_timeout_ms=CALL_TIMEOUT_MS)
    try:
        await connection.call_for(wire.TopicInfo, "GET", "/v1/topics/orders")
    finally:
        connection.close()


async def send(url: str) -> None:
    async with Producer(url, send_timeout_ms=CALL_TIMEOUT_MS) as producer:
        await producer.send("orders", b"body", sharding_key="k")


async def fetch(url: str) -> None:
    connection = Connection(url, call_timeout_ms=CALL_TIMEOUT_MS)
    try:
        # A consumer keeps asking for seconds; the test needs only the first milliseconds.
        async with asyncio.timeout(CALL_TIMEOUT_MS / 1000):
            for selection in (EVERYTHING, Selection(tags="A")):
                await pull(
                    connection, ("orders", 0), 0, max_messages=10, max_bytes=1000, wait_ms=0, selection=selection
                )
    except TimeoutError:
        pass
    finally:
        connection.close()


@fuzz(60)
@given(call=st.sampled_from((ask, send, fetch)), answers=st.lists(raw_answers(), min_size=1, max_size=3))
@example(call=ask, answers=[http("101 Switching Protocols", "Upgrade: x\r\nConnection: Upgrade\r\n", b"")])
@example(call=ask, answers=[http("503 X", "Content-Type: application/problem+json\r\n", b"[" * 50_000)])
def test_a_call_ends_with_an_answer_or_an_error_of_the_sdk(
    server: Server, call: Callable[[str], Awaitable[None]], answers: list[bytes]
) -> None:
    async def run() -> list[dict[str, Any]]:
        failures: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        with contextlib.suppress(KeelMQError):
            await call(server.url)
        return failures

    server.answers = deque(answers)
    assert asyncio.run(run()) == []
