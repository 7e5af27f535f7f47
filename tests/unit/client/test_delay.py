"""Delayed messages in the SDK: the requests to the broker, and the results for the caller."""

import asyncio
from typing import Any

import msgspec
import pytest
import typer

from cluster.limits import DELAY_LEVELS_S as BROKER_LEVELS_S
from cluster.limits import DELAY_MAX_MS
from keelmq.cli.times import parse_duration, parse_time
from keelmq.errors import Corrupt, InvalidRequest, NoLeader
from keelmq.limits import DELAY_LEVELS_S, DELAY_MS_MAX
from keelmq.message import Message, MessagePlace, Receipt, SendResult
from keelmq.producing.producer import Producer
from keelmq.transactions.decision import Decision, Position, Transaction
from keelmq.transactions.transaction import TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Request,
    Script,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
    problem,
)

DUE_MS = 1_900_000_000_000


def waits(request: Request) -> HttpResponse:
    """Answer as a broker that schedules every message for DUE_MS."""
    results = [
        {
            "batch_id": batch["batch_id"],
            "queue": 3,
            "deliver_at_ms": DUE_MS,
            "count": len(msgspec.msgpack.decode(batch["block"])),
            "duplicate": False,
        }
        for batch in request.msgpack()["batches"]
    ]
    return msgpack_answer({"results": results, "receipt": RECEIPT})


def producer(script: Script, **options: Any) -> tuple[Producer, ScriptedTransport]:
    transport = ScriptedTransport(script)
    return Producer(connection=Connection(SERVERS, transport=transport), compress=False, **options), transport


def test_broker_and_sdk_have_the_same_levels_and_limit() -> None:
    assert DELAY_LEVELS_S == BROKER_LEVELS_S
    assert DELAY_MS_MAX == DELAY_MAX_MS


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({"delay_level": 1}, {"delay_ms": 1_000}),
        ({"delay_level": 18}, {"delay_ms": 7_200_000}),
        ({"delay_ms": 0}, {"delay_ms": 0}),
        ({"delay_ms": DELAY_MS_MAX}, {"delay_ms": DELAY_MS_MAX}),
        ({"deliver_at_ms": DUE_MS}, {"deliver_at_ms": DUE_MS}),
        ({}, {}),
    ],
)
async def test_what_is_asked_reaches_the_broker(asked: dict[str, int], sent: dict[str, int]) -> None:
    sender, transport = producer(waits)
    async with sender:
        result = await sender.send("t", b"x", **asked)  # type: ignore[arg-type]
        batch = await sender.send_batch("t", [b"x", b"y"], **asked)  # type: ignore[arg-type]
        same = await sender.send_batch("t", [b"x", Message(body=b"y", **asked)])  # type: ignore[arg-type]
        sender.send_oneway("t", b"x", **asked)  # type: ignore[arg-type]
    for request in transport.requests:
        (asked_batch,) = request.msgpack()["batches"]
        assert {name: asked_batch[name] for name in ("delay_ms", "deliver_at_ms") if name in asked_batch} == sent
    assert len(transport.requests) == 4
    assert (result.queue, result.offset, result.deliver_at_ms) == (3, None, DUE_MS)
    assert (batch.offset, batch.deliver_at_ms, batch.count, same.offset) == (None, DUE_MS, 2, None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay_level": 0},
        {"delay_level": 19},
        {"delay_level": True},
        {"delay_ms": -1},
        {"delay_ms": DELAY_MS_MAX + 1},
        {"deliver_at_ms": -1},
        {"deliver_at_ms": 1 << 63},
        {"delay_ms": 1, "delay_level": 1},
        {"delay_ms": 1, "deliver_at_ms": DUE_MS},
    ],
)
async def test_a_wrong_delay_is_refused_before_anything_is_sent(wrong: dict[str, int]) -> None:
    sender, transport = producer(waits)
    message = Message(topic="t", body=b"x", **wrong)  # type: ignore[arg-type]
    async with sender:
        with pytest.raises(InvalidRequest):
            await sender.send("t", b"x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            sender.send_oneway("t", b"x", **wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest):
            await sender.send_batch("t", [message])
    assert not transport.requests


async def test_a_batch_has_one_time() -> None:
    sender, transport = producer(waits)
    async with sender:
        for messages in (
            [Message(body=b"x", delay_ms=1), Message(body=b"y", delay_ms=2)],
            [Message(body=b"x", delay_ms=1_000), Message(body=b"y", deliver_at_ms=DUE_MS)],
        ):
            with pytest.raises(InvalidRequest, match="different delays"):
                await sender.send_batch("t", messages)
        with pytest.raises(InvalidRequest, match="different delays"):
            await sender.send_batch("t", [Message(body=b"x", delay_ms=1)], delay_ms=2)
        assert not transport.requests
        await sender.send_batch("t", [Message(body=b"x", delay_ms=1_000), Message(body=b"y", delay_level=1), b"z"])
    assert len(transport.requests) == 1


async def test_messages_with_different_delays_do_not_share_a_batch() -> None:
    sender, transport = producer(waits, max_in_flight=1)
    async with sender:
        await asyncio.gather(*(sender.send("t", b"x", delay_ms=delay_ms) for delay_ms in (1, 1, 2, 2, 2)))
    sent = [batch for request in transport.requests for batch in request.msgpack()["batches"]]
    assert [(each["delay_ms"], len(msgspec.msgpack.decode(each["block"]))) for each in sent] == [(1, 2), (2, 3)]


async def test_a_batch_whose_ids_were_known_says_where_each_message_is() -> None:
    def known(request: Request) -> HttpResponse:
        messages = [
            {"message_id": "a", "queue": 1, "deliver_at_ms": DUE_MS, "duplicate": True},
            {"message_id": "b", "queue": 2, "offset": 7, "duplicate": False},
        ]
        result = {"batch_id": request.msgpack()["batches"][0]["batch_id"], "queue": 2, "offset": 7, "count": 1}
        return msgpack_answer({"results": [{**result, "duplicate": False, "messages": messages}], "receipt": RECEIPT})

    sender, _ = producer(known)
    async with sender:
        first, second = await asyncio.gather(
            sender.send("t", b"x", message_id="a"), sender.send("t", b"y", message_id="b")
        )
        batch = await sender.send_batch("t", [Message(body=b"x", message_id="a"), Message(body=b"y", message_id="b")])
    receipt = msgspec.convert(RECEIPT, Receipt)
    assert first == SendResult("a", "t", 1, None, receipt, True, DUE_MS)
    assert second == SendResult("b", "t", 2, 7, receipt)
    assert batch.places == (MessagePlace("a", 1, None, True, DUE_MS), MessagePlace("b", 2, 7, False))


async def test_an_answer_without_a_place_is_corrupt() -> None:
    def nowhere(request: Request) -> HttpResponse:
        result = {"batch_id": request.msgpack()["batches"][0]["batch_id"], "queue": 0, "count": 1, "duplicate": False}
        return msgpack_answer({"results": [result], "receipt": RECEIPT})

    sender, _ = producer(nowhere)
    async with sender:
        with pytest.raises(Corrupt, match="deliver_at_ms"):
            await sender.send("t", b"x", delay_ms=1)


async def test_taking_back() -> None:
    answers = {"gone": problem(404, "not_scheduled"), "m:1.x": HttpResponse(204, {}, b"")}

    def delete(request: Request) -> HttpResponse:
        assert request.method == "DELETE"
        topic, message_id = request.target.removeprefix("/v1/topics/").split("/scheduled/")
        assert topic == "%25t"
        return answers[message_id.replace("%3A", ":")]

    sender, transport = producer(delete)
    async with sender:
        assert await sender.cancel("%t", "m:1.x")
        assert not await sender.cancel("%t", "gone")
        assert len(transport.requests) == 2
        for topic, message_id in (("", "m"), ("t", ""), ("t", "a/b"), ("t", "x" * 129)):
            with pytest.raises(InvalidRequest):
                await sender.cancel(topic, message_id)
    assert len(transport.requests) == 2


async def test_taking_back_is_repeated_until_it_is_known() -> None:
    tries = 0

    def fails_once(request: Request) -> HttpResponse:
        nonlocal tries
        tries += 1
        return problem(503, "unknown_outcome") if tries == 1 else HttpResponse(204, {}, b"")

    sender, _ = producer(fails_once)
    async with sender:
        assert await sender.cancel("t", "m")
    assert tries == 2


async def test_taking_back_without_a_leader_is_an_error() -> None:
    sender, _ = producer(lambda _: problem(503, "no_leader"), send_timeout_ms=50)
    async with sender:
        with pytest.raises(NoLeader):
            await sender.cancel("t", "m")


async def test_half_messages_are_grouped_by_their_time() -> None:
    halves: list[dict[str, Any]] = []

    async def broker(request: Request) -> HttpResponse:
        if request.target == "/v1/transactions":
            halves.append(request.msgpack())
            answer = {"transaction_id": halves[-1]["transaction_id"], "state": "prepared", "receipt": RECEIPT}
            return msgpack_answer(answer, 201)
        if request.target.startswith("/v1/producer-groups/"):
            await asyncio.Event().wait()  # nobody is to be asked
        positions = [
            {"topic": "t", "queue": 0, "deliver_at_ms": DUE_MS, "count": 2},
            {"topic": "t", "queue": 0, "offset": 4, "count": 1},
        ]
        return json_answer({"transaction_id": "x", "state": "committed", "positions": positions})

    async def check(_: Transaction) -> Decision:
        raise AssertionError("nobody asks")

    async def local(_: Transaction) -> None: ...

    connection = Connection(SERVERS, transport=ScriptedTransport(broker))
    async with TransactionProducer(SERVERS, group="g", check=check, connection=connection) as sender:
        messages = [
            Message(topic="t", body=b"1", delay_level=2),
            Message(topic="t", body=b"2"),
            Message(topic="t", body=b"3", delay_ms=5_000),
            Message(topic="t", body=b"4", deliver_at_ms=DUE_MS),
        ]
        result = await sender.execute(messages, local)
    batches = halves[0]["batches"]
    assert [batch.get("delay_ms") for batch in batches] == [5_000, None, None]
    assert [batch.get("deliver_at_ms") for batch in batches] == [None, None, DUE_MS]
    assert [len(msgspec.msgpack.decode(batch["block"])) for batch in batches] == [2, 1, 1]
    assert result.positions == (Position("t", 0, None, 2, DUE_MS), Position("t", 0, 4, 1))


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("1500", 1_500), ("1500ms", 1_500), ("90s", 90_000), ("15m", 900_000), ("15min", 900_000), ("2h", 7_200_000)],
)
def test_durations_of_the_command_line(text: str, expected_ms: int) -> None:
    assert parse_duration(text, "--delay") == expected_ms


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1900000000000", 1_900_000_000_000),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-01 01:00:00.25+01:00", 250),
        ("1970-01-02", 86_400_000),
    ],
)
def test_times_of_the_command_line(text: str, expected_ms: int) -> None:
    assert parse_time(text, "--at") == expected_ms


@pytest.mark.parametrize("text", ["", "s", "1.5s", "-1s", "1w", "1 s", "tomorrow", "²"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text, "--delay")
    with pytest.raises(typer.BadParameter):
        parse_time(text, "--at")
