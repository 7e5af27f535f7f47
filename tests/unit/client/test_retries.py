"""A send is tried three times within one budget of 3,000 ms; one-way messages are tried once."""

import asyncio
from typing import Any

import pytest

from keelmq.errors import SendTimeout, UnknownOutcome
from keelmq.producing.producer import Producer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from tests.unit.client.scripted import SERVERS, Appender, Request, Script, ScriptedTransport, problem
from tests.unit.client.test_connection import Clock
from tests.unit.client.test_connection import clock as clock

UNKNOWN = problem(503, "unknown_outcome")


def producer(clock: Clock, script: Script, **options: Any) -> tuple[Producer, ScriptedTransport]:
    transport = ScriptedTransport(script)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=clock)
    return Producer(connection=connection, clock=clock, **options), transport


def batch_ids(transport: ScriptedTransport) -> list[str]:
    return [request.msgpack()["batches"][0]["batch_id"] for request in transport.requests]


async def test_a_send_is_tried_three_times_with_one_id(clock: Clock) -> None:
    sender, transport = producer(clock, lambda request: UNKNOWN)
    async with sender:
        with pytest.raises(UnknownOutcome, match="all tries used up"):
            await sender.send("t", b"x")
        with pytest.raises(UnknownOutcome, match="all tries used up"):
            await sender.send_batch("t", [b"x", b"y"])
    assert len(transport.requests) == 6
    assert len({request.body for request in transport.requests[:3]}) == 1
    assert len(set(batch_ids(transport))) == 2


async def test_all_tries_share_3_000_ms_and_the_end_of_it_is_an_error_not_a_try(clock: Clock) -> None:
    """The node never answers: each try gets its share, and nothing is sent when the budget is over."""
    begun_s = clock.now_s

    def hang(request: Request) -> HttpResponse:
        clock.now_s += request.timeout_s
        raise ExchangeFailed("no answer")

    sender, transport = producer(clock, hang)
    async with sender:
        with pytest.raises(SendTimeout) as caught:
            await sender.send("t", b"x")
    assert caught.value.outcome_unknown
    assert [request.timeout_s for request in transport.requests] == pytest.approx([1.0, 1.0, 1.0])
    assert clock.now_s - begun_s == pytest.approx(3.0)


async def test_a_slow_refusal_leaves_less_for_the_next_try(clock: Clock) -> None:
    """2.9 s of the budget are gone with the first answer: the second try is the last, however many are left."""
    begun_s = clock.now_s

    def answer(request: Request) -> HttpResponse:
        clock.now_s += 2.9 if clock.now_s == begun_s else request.timeout_s
        if clock.now_s - begun_s > 2.95:
            raise ExchangeFailed("no answer")
        return UNKNOWN

    sender, transport = producer(clock, answer)
    async with sender:
        with pytest.raises(SendTimeout):
            await sender.send("t", b"x")
    assert len(transport.requests) == 2
    assert clock.now_s - begun_s == pytest.approx(3.0)


async def test_one_way_messages_are_tried_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    sender, transport = producer(clock, lambda request: UNKNOWN)
    async with sender:
        sender.send_oneway("t", b"x")
    assert len(transport.requests) == 1
    assert "one-way message" in caplog.text


async def test_one_way_messages_do_not_share_the_fate_of_others(clock: Clock) -> None:
    """One-way messages travel in batches of their own, in order all the same."""
    appender = Appender()
    failed: set[str] = set()

    def fail_first(request: Request) -> HttpResponse:
        batch_id = request.msgpack()["batches"][0]["batch_id"]
        if batch_id not in failed:
            failed.add(batch_id)
            return UNKNOWN
        return appender(request)

    sender, transport = producer(clock, fail_first)
    async with sender:
        kept = [asyncio.create_task(sender.send("t", b"%d" % n, queue=0)) for n in range(2)]
        await asyncio.sleep(0)
        for _ in range(3):
            sender.send_oneway("t", b"lost", queue=0)
        kept.append(asyncio.create_task(sender.send("t", b"2", queue=0)))
        await asyncio.gather(*kept)
    assert appender.stored[0] == [b"0", b"1", b"2"]
    assert len(transport.requests) == 5
