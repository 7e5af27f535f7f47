"""Batching, order, time budgets and idempotent retries of the producer."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from keelmq.errors import (
    Closed,
    Corrupt,
    Forbidden,
    InvalidName,
    InvalidRequest,
    LimitExceeded,
    Overloaded,
    SendTimeout,
    TopicNotFound,
    Unavailable,
)
from keelmq.message import Message
from keelmq.producing.producer import Producer
from keelmq.producing.routing import queue_for_key
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Appender,
    Gate,
    Request,
    Script,
    ScriptedTransport,
    msgpack_answer,
    problem,
)


def producer(script: Script, **options: Any) -> tuple[Producer, ScriptedTransport]:
    transport = ScriptedTransport(script)
    return Producer(connection=Connection(SERVERS, transport=transport, rng=lambda: 0.0), **options), transport


def counts(transport: ScriptedTransport) -> list[int]:
    """Return the messages per batch, in the order of the requests."""
    appender = Appender()
    posts = [request.msgpack()["batches"] for request in transport.requests if request.method == "POST"]
    return [appender.append(batch)["count"] for batches in posts for batch in batches]


async def test_a_send_says_where_the_message_is() -> None:
    sender, transport = producer(Appender())
    async with sender:
        first = await sender.send("t", b"a")
        second = await sender.send("t", b"b", tag="x", keys=["k"], properties={"p": "v"}, message_id="own-1")
    assert (first.topic, first.queue, first.offset, first.duplicate) == ("t", 0, 0, False)
    assert (second.message_id, second.offset) == ("own-1", 1)
    batch = transport.requests[0].msgpack()["batches"][0]
    assert first.message_id == f"{batch['batch_id']}-0"
    assert (first.receipt.term, first.receipt.index, first.receipt.durable_on) == (1, 7, (1, 2))
    assert transport.requests[0].target == "/v1/topics/t/messages"
    assert "queue" not in batch


async def test_the_first_send_goes_at_once_and_the_others_collect() -> None:
    gate = Gate(Appender())
    sender, transport = producer(gate, max_in_flight=1)
    async with sender:
        sends = [asyncio.create_task(sender.send("t", b"0"))]
        await gate.wait(1)
        sends += [asyncio.create_task(sender.send("t", str(n).encode())) for n in range(1, 10)]
        await asyncio.sleep(0)
        assert len(transport.requests) == 1
        gate.release()
        await gate.wait(1)
        gate.release()
        results = await asyncio.gather(*sends)
    assert counts(transport) == [1, 9]
    assert [result.offset for result in results] == list(range(10))


async def test_sends_of_one_loop_iteration_go_together() -> None:
    sender, transport = producer(Appender())
    async with sender:
        await asyncio.gather(*(sender.send("t", b"x") for _ in range(64)))
    assert counts(transport) == [64]


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"max_batch_messages": 4}, [4, 4, 2]), ({"max_batch_bytes": 700}, [4, 4, 2])],
)
async def test_batches_are_bounded(options: dict[str, int], expected: list[int]) -> None:
    sender, transport = producer(Appender(), **options)
    async with sender:
        await asyncio.gather(*(sender.send("t", b"x" * 100) for _ in range(10)))
    assert counts(transport) == expected


async def test_requests_in_flight_are_bounded() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate, max_in_flight=2, max_batch_bytes=1)
    async with sender:
        sends = [asyncio.create_task(sender.send("t", b"x")) for _ in range(5)]
        for _ in range(5):
            await gate.wait(1)
            assert len(gate.held) <= 2
            gate.release()
        await asyncio.gather(*sends)


async def test_one_key_keeps_its_order_over_retries() -> None:
    """Every first try of a batch fails, and no batch of the key may overtake it."""
    appender = Appender(queues=8)
    seen: set[str] = set()

    def script(request: Request) -> HttpResponse:
        if request.method == "POST":
            batch_id = request.msgpack()["batches"][0]["batch_id"]
            if batch_id not in seen:
                seen.add(batch_id)
                return problem(503, "unknown_outcome")
        return appender(request)

    sender, _ = producer(script, max_batch_messages=3, max_in_flight=4)
    async with sender:
        await asyncio.gather(*(sender.send("t", str(n).encode(), sharding_key="account-7") for n in range(20)))
    queue = queue_for_key("account-7", 8)
    assert appender.stored[queue] == [str(n).encode() for n in range(20)]
    assert sum(map(len, appender.stored.values())) == 20


async def test_keys_go_where_the_rule_says() -> None:
    appender = Appender(queues=4)
    sender, transport = producer(appender)
    async with sender:
        for key in ("a", "b", "order-1", "账户"):
            result = await sender.send("t", b"x", sharding_key=key)
            assert result.queue == queue_for_key(key, 4)
    assert [request.method for request in transport.requests].count("GET") == 1
    assert queue_for_key("123456789", 1 << 32) == 0xE3069283  # the check value of CRC-32C


async def test_an_explicit_queue_wins_over_a_key() -> None:
    sender, transport = producer(Appender())
    async with sender:
        assert (await sender.send("t", b"x", queue=3, sharding_key="a")).queue == 3
    assert transport.requests[0].method == "POST"


async def test_a_lost_answer_is_resolved_by_the_same_batch_id() -> None:
    """The broker stored the batch and the answer got lost: the retry finds the batch, and nothing is stored twice."""
    appender = Appender()
    lose = [True]

    def script(request: Request) -> HttpResponse:
        answer = appender(request)
        if lose and lose.pop():
            raise ExchangeFailed("connection closed")
        return answer

    sender, transport = producer(script)
    async with sender:
        result = await sender.send("t", b"once")
    assert result.duplicate
    assert appender.stored[0] == [b"once"]
    assert transport.requests[0].body == transport.requests[1].body


async def test_retries_are_bounded() -> None:
    def script(request: Request) -> HttpResponse:
        raise ExchangeFailed("connection closed")

    sender, transport = producer(script, retries=1)
    async with sender:
        with pytest.raises(Exception, match="may or may not"):
            await sender.send("t", b"x")
    assert len(transport.requests) == 2


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


async def test_the_budget_ends_waits_whether_sent_or_not() -> None:
    """The message under way may be stored. The one that waits behind it certainly is not."""
    gate, clock = Gate(Appender()), ManualClock()
    sender, transport = producer(gate, max_in_flight=1, send_timeout_ms=100, clock=clock)
    under_way = asyncio.create_task(sender.send("t", b"a"))
    await gate.wait(1)
    waiting = asyncio.create_task(sender.send("t", b"b"))
    await asyncio.sleep(0)
    clock.now_s += 0.2
    with pytest.raises(SendTimeout):
        await under_way
    with pytest.raises(Unavailable) as caught:
        await waiting
    assert not caught.value.outcome_unknown
    gate.release()
    await sender.close()
    assert len(transport.requests) == 1


async def test_a_younger_message_keeps_its_own_budget() -> None:
    gate, clock = Gate(Appender()), ManualClock()
    sender, _ = producer(gate, max_in_flight=1, send_timeout_ms=2_000, clock=clock)
    blocker = asyncio.create_task(sender.send("t", b"0"))
    await gate.wait(1)
    old = asyncio.create_task(sender.send("t", b"1"))
    await asyncio.sleep(0)
    clock.now_s += 1.2
    young = asyncio.create_task(sender.send("t", b"2"))
    await asyncio.sleep(0)
    clock.now_s += 1.0
    with pytest.raises(SendTimeout):
        await blocker
    with pytest.raises(Unavailable):
        await old
    assert not young.done()
    gate.release()
    await gate.wait(1)
    gate.release()
    assert (await young).offset == 1
    await sender.close()


async def test_too_much_waiting_is_refused() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate, max_in_flight=1, max_pending_bytes=1_000)
    first = asyncio.create_task(sender.send("t", b"x" * 900))
    await gate.wait(1)
    with pytest.raises(Overloaded):
        await sender.send("t", b"x" * 900)
    with pytest.raises(Overloaded):
        sender.send_oneway("t", b"x" * 900)
    gate.release()
    await first
    again = asyncio.create_task(sender.send("t", b"x" * 900))
    await gate.wait(1)
    gate.release()
    await again
    await sender.close()


async def test_one_way_failures_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    sender, _ = producer(lambda request: problem(404, "topic_not_found"))
    sender.send_oneway("t", b"x")
    await sender.close()
    assert "one-way" in caplog.text


async def test_close_flushes_and_then_refuses() -> None:
    appender = Appender()
    sender, _ = producer(appender)
    sends = [asyncio.create_task(sender.send("t", str(n).encode(), sharding_key="k")) for n in range(3)]
    await asyncio.sleep(0)
    await sender.close()
    assert [result.offset for result in await asyncio.gather(*sends)] == [0, 1, 2]
    for call in (sender.send("t", b"x"), sender.send_batch("t", [b"x"])):
        with pytest.raises(Closed):
            await call
    await sender.close()


async def test_a_client_id_that_is_no_text_is_an_invalid_request() -> None:
    sender, _ = producer(Appender(), client_id="\udc80")
    with pytest.raises(InvalidRequest, match="not text"):
        await sender.send("t", b"x")
    await sender.close()


async def test_a_cancelled_close_fails_what_waits() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate, max_in_flight=1)
    first = asyncio.create_task(sender.send("t", b"a"))
    await gate.wait(1)
    second = asyncio.create_task(sender.send("t", b"b"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    for send, may_be_stored in ((first, True), (second, False)):
        with pytest.raises(Closed) as caught:
            await send
        assert caught.value.outcome_unknown is may_be_stored


async def test_cancelling_a_send_leaves_the_others_alone() -> None:
    gate = Gate(Appender())
    sender, _ = producer(gate)
    sends = [asyncio.create_task(sender.send("t", str(n).encode())) for n in range(3)]
    await gate.wait(1)
    sends[1].cancel()
    await asyncio.sleep(0)
    gate.release()
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(results[1], asyncio.CancelledError)
    assert [getattr(results[n], "offset", None) for n in (0, 2)] == [0, 2]
    await sender.close()


async def test_a_batch_is_one_request_and_one_result() -> None:
    appender = Appender()
    sender, transport = producer(appender)
    async with sender:
        result = await sender.send_batch("t", [b"a", b"b", b"c"], queue=2)
        assert (result.queue, result.offset, result.count) == (2, 0, 3)
        assert result.message_id(1) == f"{result.batch_id}-1"
        keyed = await sender.send_batch("t", [Message(body=b"d", sharding_key="k"), Message(body=b"e")])
        assert keyed.queue == queue_for_key("k", 4)
        named = await sender.send_batch("t", [b"f", b"g"], batch_id="tuesday-17")
        assert (named.batch_id, named.message_id(0)) == ("tuesday-17", "tuesday-17-0")
    assert counts(transport) == [3, 2, 2]


@pytest.mark.parametrize(
    "messages",
    [
        [Message(body=b"a", sharding_key="k"), Message(body=b"b", sharding_key="l")],
        [Message(body=b"a", queue=1), Message(body=b"b", queue=2)],
        [Message(body=b"a", topic="other")],
        ["text"],
        [],
        [b"a", None],
    ],
)
async def test_batches_that_are_refused(messages: list[Any]) -> None:
    sender, transport = producer(Appender())
    async with sender:
        with pytest.raises(InvalidRequest):
            await sender.send_batch("t", messages)
    assert transport.requests == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda p: p.send("bad name", b"x"), InvalidName),
        (lambda p: p.send("x" * 128, b"x"), InvalidName),
        (lambda p: p.send("", b"x"), InvalidName),
        (lambda p: p.send("RMQ_SYS_TRANS_HALF_TOPIC", b"x"), Forbidden),
        (lambda p: p.send("t", b""), LimitExceeded),
        (lambda p: p.send("t", "text"), InvalidRequest),
        (lambda p: p.send("t", b"x", queue=-1), InvalidRequest),
        (lambda p: p.send("t", b"x", queue=True), InvalidRequest),
        (lambda p: p.send("t", b"x", properties={"a": 1}), InvalidRequest),
        (lambda p: p.send_batch("t", [b"x"], sharding_key=7), InvalidRequest),
        (lambda p: p.send_batch("t", [b"x"], sharding_key="\ud800"), InvalidRequest),
        (lambda p: p.send_batch("t", [Message(body=b"x", queue=-1)]), InvalidRequest),
        (lambda p: p.send_batch("t", [b"x"], batch_id="a:b"), InvalidRequest),
        (lambda p: p.send_batch("t", [b"x"], batch_id=17), InvalidRequest),
    ],
)
async def test_bad_input_is_refused_before_anything_is_sent(
    call: Callable[[Producer], Any], error: type[Exception]
) -> None:
    sender, transport = producer(Appender())
    async with sender:
        with pytest.raises(error):
            await call(sender)
    assert transport.requests == []


async def test_known_message_ids_get_their_old_places() -> None:
    def script(request: Request) -> HttpResponse:
        (batch,) = request.msgpack()["batches"]
        result = {
            "batch_id": batch["batch_id"],
            "queue": 0,
            "offset": 8,
            "count": 1,
            "duplicate": False,
            "messages": [
                {"message_id": "old", "queue": 3, "offset": 1, "duplicate": True},
                {"message_id": "new", "queue": 0, "offset": 8, "duplicate": False},
            ],
        }
        return msgpack_answer({"results": [result], "receipt": RECEIPT})

    sender, _ = producer(script)
    async with sender:
        old, new = await asyncio.gather(
            sender.send("t", b"1", message_id="old"), sender.send("t", b"2", message_id="new")
        )
        batch = await sender.send_batch(
            "t", [Message(body=b"1", message_id="old"), Message(body=b"2", message_id="new")]
        )
    assert (old.queue, old.offset, old.duplicate) == (3, 1, True)
    assert (new.queue, new.offset, new.duplicate) == (0, 8, False)
    assert [(place.offset, place.duplicate) for place in batch.places] == [(1, True), (8, False)]


@pytest.mark.parametrize(
    "answer",
    [
        msgpack_answer({"results": [], "receipt": RECEIPT}),
        msgpack_answer({"results": [{"batch_id": "another", "queue": 0, "offset": 0, "count": 1}], "receipt": RECEIPT}),
        msgpack_answer([1, 2]),
        HttpResponse(200, {"content-type": "application/msgpack"}, b"\xc1"),
        HttpResponse(200, {"content-type": "text/html"}, b"<html>"),
        HttpResponse(200, {}, b""),
    ],
)
async def test_answers_that_break_the_contract(answer: HttpResponse) -> None:
    sender, _ = producer(lambda request: answer)
    async with sender:
        with pytest.raises(Corrupt):
            await sender.send("t", b"x")


async def test_a_missing_topic_fails_keyed_sends_too() -> None:
    sender, _ = producer(lambda request: problem(404, "topic_not_found"))
    async with sender:
        for key in (None, "k"):
            with pytest.raises(TopicNotFound):
                await sender.send("t", b"x", sharding_key=key)


@pytest.mark.parametrize(
    "options", [{"send_timeout_ms": 0}, {"retries": -1}, {"max_in_flight": 0}, {"max_batch_messages": 10_001}]
)
def test_options_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest):
        Producer(SERVERS, **options)  # type: ignore[arg-type]
