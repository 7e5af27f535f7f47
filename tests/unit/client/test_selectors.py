"""Queue selectors: round robin, by hash, random, and the application's own."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from keelmq.errors import InvalidRequest, TopicNotFound, UnknownOutcome
from keelmq.message import Message
from keelmq.producing.producer import Producer
from keelmq.producing.queue_selectors import RoundRobin, Selector, by_hash, chosen_queue, random_queue
from keelmq.producing.routing import queue_for_key
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.unit.client.scripted import SERVERS, Appender, Request, Script, ScriptedTransport, problem

MESSAGE = Message(topic="t", body=b"x")


def producer(script: Script, **options: Any) -> Producer:
    return Producer(connection=Connection(SERVERS, transport=ScriptedTransport(script)), **options)


def test_round_robin_goes_from_queue_to_queue_in_each_topic() -> None:
    selector = RoundRobin()
    other = Message(topic="u", body=b"x")
    assert [selector(MESSAGE, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert [selector(other, 2) for _ in range(2)] == [0, 1]
    assert [selector(MESSAGE, 4) for _ in range(3)] == [1, 2, 3]


def test_round_robin_passes_over_the_queue_that_last_failed_once() -> None:
    selector = RoundRobin()
    assert [selector(MESSAGE, 3) for _ in range(2)] == [0, 1]
    selector.failed("t", 0)
    selector.failed("t", 2)
    assert [selector(MESSAGE, 3) for _ in range(6)] == [0, 1, 2, 0, 1, 2]
    selector.failed("t", 0)
    selector.failed("other", 1)
    assert [selector(MESSAGE, 3) for _ in range(2)] == [1, 2]
    selector.failed("t", 0)
    assert [selector(MESSAGE, 1) for _ in range(2)] == [0, 0]


async def test_a_round_robin_producer_avoids_the_queue_that_last_failed() -> None:
    appender = Appender(queues=3)
    broken = {1}

    def script(request: Request) -> HttpResponse:
        if request.method == "POST" and request.msgpack()["batches"][0].get("queue") in broken:
            return problem(503, "unknown_outcome")
        return appender(request)

    selector = RoundRobin()
    async with producer(script, retries=0) as sender:
        assert (await sender.send("t", b"0", selector=selector)).queue == 0
        with pytest.raises(UnknownOutcome):
            await sender.send("t", b"1", selector=selector)
        broken.clear()
        queues = [(await sender.send("t", b"x", selector=selector)).queue for _ in range(6)]
    assert queues == [2, 0, 2, 0, 1, 2]


async def test_an_error_of_the_caller_is_not_the_queues_fault() -> None:
    selector = RoundRobin()
    async with producer(lambda r: Appender(2)(r) if r.method == "GET" else problem(404, "topic_not_found")) as sender:
        with pytest.raises(TopicNotFound):
            await sender.send("t", b"x", selector=selector)
    assert [selector(MESSAGE, 2) for _ in range(2)] == [1, 0]


async def test_by_hash_goes_where_a_sharding_key_of_that_value_goes() -> None:
    selector = by_hash(lambda message: message.properties["account"])
    async with producer(Appender(queues=16)) as sender:
        for account in ("a", "b", "账户", "account-7"):
            by_selector = await sender.send("t", b"x", properties={"account": account}, selector=selector)
            by_key = await sender.send("t", b"x", sharding_key=account)
            assert by_selector.queue == by_key.queue == queue_for_key(account, 16)


def test_random_queues_reach_all_and_nothing_else() -> None:
    numbers = iter([0.0, 0.249, 0.25, 0.999999])
    selector = random_queue(lambda: next(numbers))
    assert [selector(MESSAGE, 4) for _ in range(4)] == [0, 0, 1, 3]
    counted = Counter(random_queue()(MESSAGE, 4) for _ in range(4_000))
    assert set(counted) == {0, 1, 2, 3}
    assert min(counted.values()) > 500


async def test_a_function_of_the_applications_is_given_the_message_and_the_number_of_queues() -> None:
    seen: list[tuple[Message, int]] = []

    def choose(message: Message, queues: int) -> int:
        seen.append((message, queues))
        return int(message.keys[0]) % queues

    appender = Appender(queues=5)
    async with producer(appender) as sender:
        results = await asyncio.gather(
            *(sender.send("t", b"%d" % n, tag="x", keys=[str(n)], sharding_key="k", selector=choose) for n in range(10))
        )
        batch = await sender.send_batch("t", [Message(body=b"a", keys=["7"]), b"b"], selector=choose)
        sender.send_oneway("t", b"one way", keys=["3"], selector=choose)
    assert [result.queue for result in results] == [n % 5 for n in range(10)]
    assert batch.queue == 2
    assert appender.stored[3] == [b"3", b"8", b"one way"]
    assert {queues for _, queues in seen} == {5}
    assert (seen[0][0].topic, seen[0][0].tag, seen[0][0].body) == ("t", "x", b"0")


async def test_an_explicit_queue_wins_over_a_selector() -> None:
    async with producer(Appender()) as sender:
        assert (await sender.send("t", b"x", queue=3, selector=lambda message, queues: 0)).queue == 3
        assert (await sender.send_batch("t", [b"x"], queue=2, selector=lambda message, queues: 0)).queue == 2


def broken(message: Message, queues: int) -> int:
    raise KeyError("account")


@pytest.mark.parametrize(
    ("selector", "error"),
    [
        (lambda message, queues: -1, InvalidRequest),
        (lambda message, queues: queues, InvalidRequest),
        (lambda message, queues: 0.0, InvalidRequest),
        (lambda message, queues: True, InvalidRequest),
        (lambda message, queues: None, InvalidRequest),
        (broken, KeyError),
    ],
)
async def test_a_selector_that_fails_fails_its_own_send_alone(selector: Selector, error: type[Exception]) -> None:
    """The selector may fail before the number of queues is known, and after."""
    appender = Appender()
    async with producer(appender) as sender:
        results = await asyncio.gather(
            sender.send("t", b"bad", selector=selector),
            sender.send("t", b"good", selector=lambda message, queues: 1),
            return_exceptions=True,
        )
        assert isinstance(results[0], error)
        assert not isinstance(results[1], BaseException)
        with pytest.raises(error):
            await sender.send("t", b"bad", selector=selector)
        with pytest.raises(error):
            await sender.send_batch("t", [b"bad"], selector=selector)
    assert appender.stored == {0: [], 1: [b"good"], 2: [], 3: []}
    with pytest.raises(error):
        chosen_queue(selector, MESSAGE, 4)


async def test_the_span_of_a_batch_whose_selector_fails_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(message: Message, queues: int) -> int:
        raise ValueError("bug")

    sends: list[asyncio.Future[Any]] = []
    monkeypatch.setattr("keelmq.producing.producer.end_with", lambda span, future: sends.append(future))
    sender = producer(Appender())
    async with sender:
        await sender.send_batch("t", [b"x"], sharding_key="k")  # the number of queues is known from now on
        with pytest.raises(ValueError, match="bug"):
            await sender.send_batch("t", [b"x"], selector=fails)
    assert [send.done() for send in sends] == [True, True]
