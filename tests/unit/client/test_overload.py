"""More messages are offered than can be stored in time: the tests check which are sent with which budget, and the
errors that callers get.

The time is virtual. The broker is at the end of a long way. It stores one request after the other at its own pace, also
requests that nobody waits for any more.
"""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest

from keelmq import wire
from keelmq.blocks.compression import unpack
from keelmq.errors import KeelMQError, NoLeader, TopicNotFound, Unavailable, UnknownOutcome
from keelmq.producing.producer import Producer
from keelmq.transactions.decision_teller import DecisionTeller
from keelmq.transport.call_lane import CallLane
from keelmq.transport.connection import TIMEOUT_HEADER, Connection
from keelmq.transport.http1 import ConnectTimedOut, ExchangeFailed, HttpResponse
from keelmq.transport.retry import Deadline
from tests.unit.client.scripted import SERVERS, Appender, Request, ScriptedTransport, json_answer, problem
from tests.unit.client.test_call_lane import Broker
from tests.unit.client.virtual_time import run_in_virtual_time

BATCH = 20
BUDGET_MS = 1_000


class FarBroker:
    """A broker that is `one_way_s` away in each direction and takes `per_message_s` to store a message."""

    def __init__(self, one_way_s: float, per_message_s: float = 0.0) -> None:
        self.appender = Appender()
        self.one_way_s = one_way_s
        self.per_message_s = per_message_s
        self.free_at_s = 0.0
        self.under_way = self.most_under_way = 0
        self.batches: list[int] = []
        """Number of batches of each request."""
        self.least_left_s: list[float] = []
        """Seconds left of the budget of each request's oldest message when the request was sent."""
        self._storing: set[asyncio.Task[HttpResponse]] = set()

    async def __call__(self, request: Request) -> HttpResponse:
        sent = request.msgpack()["batches"]
        self.batches.append(len(sent))
        self.least_left_s.append(min(map(left_s, sent)))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        storing = asyncio.create_task(self._store(request))
        self._storing.add(storing)
        try:
            async with asyncio.timeout(request.timeout_s):
                return await asyncio.shield(storing)
        except TimeoutError:
            raise ExchangeFailed("no answer") from None
        finally:
            self.under_way -= 1

    async def _store(self, request: Request) -> HttpResponse:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self.one_way_s)
        count = sum(len(bodies(batch)) for batch in request.msgpack()["batches"])
        self.free_at_s = max(self.free_at_s, loop.time()) + count * self.per_message_s
        await asyncio.sleep(self.free_at_s - loop.time())
        answer = self.appender(request)
        await asyncio.sleep(self.one_way_s)
        return answer

    async def settled(self) -> int:
        """Return the number of messages that are stored when nothing is under way any more."""
        await asyncio.gather(*self._storing)
        return sum(map(len, self.appender.stored.values()))


def bodies(batch: dict[str, Any]) -> list[bytes]:
    block, size = batch["block"], batch.get("uncompressed_bytes")
    return [message[0] for message in msgspec.msgpack.decode(block if size is None else unpack(block, size))]


def left_s(batch: dict[str, Any]) -> float:
    born_s = float(bodies(batch)[0])
    return born_s + BUDGET_MS / 1000 - asyncio.get_running_loop().time()


class Told(Counter[str]):
    """Number of messages by the outcome told to their callers: `acknowledged`, `unknown`, or the code of an error."""


async def offer(broker: FarBroker, *, count: int, per_s: float, seconds: float, **options: Any) -> Told:
    """Send batches of `count`, or with 1 single messages, `per_s` times a second, whether they are answered or not."""
    loop, told = asyncio.get_running_loop(), Told()
    connection = Connection(SERVERS, transport=ScriptedTransport(broker), clock=loop.time)
    producer = Producer(connection=connection, send_timeout_ms=BUDGET_MS, clock=loop.time, compress=False, **options)

    async def one() -> None:
        body = repr(loop.time()).encode().ljust(100)
        try:
            if count == 1:
                await producer.send("t", body)
            else:
                await producer.send_batch("t", [body] * count)
        except KeelMQError as error:
            told["unknown" if error.outcome_unknown else error.code] += count
        else:
            told["acknowledged"] += count

    calls = []
    for _ in range(round(per_s * seconds)):
        calls.append(asyncio.create_task(one()))
        await asyncio.sleep(1 / per_s)
    await asyncio.gather(*calls)
    await producer.close()
    return told


def in_virtual_time(main: Coroutine[Any, Any, None]) -> None:
    run_in_virtual_time(main)


def test_batches_that_wait_share_a_request() -> None:
    async def main() -> None:
        broker = FarBroker(one_way_s=0.025)
        told = await offer(broker, count=BATCH, per_s=60, seconds=8)
        assert told == {"acknowledged": 60 * 8 * BATCH}
        assert max(broker.batches) > 1
        assert broker.most_under_way <= 2
        assert await broker.settled() == told["acknowledged"]

    in_virtual_time(main())


@pytest.mark.parametrize("count", [1, BATCH])
def test_twice_the_capacity_leaves_the_goodput_and_nothing_unknown(count: int) -> None:
    async def main() -> None:
        capacity, seconds = 1_000, 10
        broker = FarBroker(one_way_s=0.025, per_message_s=1 / capacity)
        told = await offer(broker, count=count, per_s=2 * capacity / count, seconds=seconds, max_batch_bytes=5_000)
        assert told["acknowledged"] >= 0.9 * capacity * seconds
        assert await broker.settled() == told["acknowledged"] + told["unknown"]
        assert told["unknown"] == 0
        assert told["overloaded"] > told["not_sent"], "most are refused before they wait in vain"
        assert set(told) <= {"acknowledged", "overloaded", "not_sent", "unknown"}
        assert sum(told.values()) == 2 * capacity * seconds
        assert min(broker.least_left_s) > 2 * broker.one_way_s, "nothing is sent with less than answers take"

    in_virtual_time(main())


def test_a_slow_spell_ends_no_sending() -> None:
    """Answers take longer than the budget for a while. Afterwards everything goes on."""

    async def main() -> None:
        broker = FarBroker(one_way_s=0.025)

        async def spell() -> None:
            await asyncio.sleep(2)
            broker.one_way_s = 2.0
            await asyncio.sleep(6)
            broker.one_way_s = 0.025

        slow = asyncio.create_task(spell())
        during = await offer(broker, count=BATCH, per_s=20, seconds=8)
        await slow
        assert during["unknown"] > 0
        after = await offer(broker, count=BATCH, per_s=20, seconds=2)
        assert after == {"acknowledged": 20 * 2 * BATCH}
        assert await broker.settled() <= sum((during[told] for told in ("acknowledged", "unknown")), after.total())

    in_virtual_time(main())


@pytest.mark.parametrize(("options", "most"), [({}, 16), ({"max_in_flight": 2}, 2), ({"max_in_flight": 5}, 5)])
def test_a_long_way_has_more_requests_under_way(options: dict[str, int], most: int) -> None:
    async def main() -> None:
        broker = FarBroker(one_way_s=0.1)
        told = await offer(broker, count=BATCH, per_s=100, seconds=20, max_batch_bytes=4_000, **options)
        assert broker.most_under_way == min(most, max(2, broker.most_under_way))
        assert broker.most_under_way > 2 or most == 2
        assert told["unknown"] == 0
        assert await broker.settled() == told["acknowledged"]

    in_virtual_time(main())


async def test_a_queue_keeps_the_order_of_the_calls_when_batches_share_requests() -> None:
    """Every first answer is lost. Batches that shared a request are repeated together, and nothing overtakes them."""
    appender, seen = Appender(), set[str]()

    def script(request: Request) -> HttpResponse:
        first = request.msgpack()["batches"][0]["batch_id"]
        answer = appender(request)
        if first not in seen:
            seen.add(first)
            raise ExchangeFailed("lost")
        return answer

    transport = ScriptedTransport(script)
    async with Producer(connection=Connection(SERVERS, transport=transport, rng=lambda: 0.0)) as producer:
        calls = [producer.send_batch("t", [f"{n}-{k}".encode() for k in range(3)], queue=1) for n in range(30)]
        results = await asyncio.gather(*calls)
    assert appender.stored[1] == [f"{n}-{k}".encode() for n in range(30) for k in range(3)]
    assert [result.offset for result in results] == [3 * n for n in range(30)]
    assert all(result.duplicate for result in results)
    assert len(transport.requests) < 10


async def test_one_that_is_refused_does_not_fail_who_shares_its_request() -> None:
    appender = Appender()

    def script(request: Request) -> HttpResponse:
        spoilt = any(b"spoilt" in bodies(batch) for batch in request.msgpack()["batches"])
        return problem(404, "topic_not_found") if spoilt else appender(request)

    transport = ScriptedTransport(script)
    async with Producer(connection=Connection(SERVERS, transport=transport)) as producer:
        sent = [b"0", b"1", b"spoilt", b"3", b"4"]
        results = await asyncio.gather(
            *(producer.send_batch("t", [body], queue=0) for body in sent), return_exceptions=True
        )
    assert [isinstance(result, TopicNotFound) for result in results] == [body == b"spoilt" for body in sent]
    assert appender.stored[0] == [b"0", b"1", b"3", b"4"]


def test_a_try_that_was_cut_short_leaves_the_node_alone() -> None:
    """A timeout of the client alone tells nothing about the leader: its connections stay, and so do the next calls."""

    async def main() -> None:
        transport = ScriptedTransport(lambda request: FarBroker(one_way_s=1.0)(request))
        loop = asyncio.get_running_loop()
        connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0, clock=loop.time)
        before = connection.current
        async with Producer(connection=connection, send_timeout_ms=100, clock=loop.time) as producer:
            with pytest.raises(UnknownOutcome):
                await producer.send("t", b"1.0")
        assert transport.forgotten == []
        assert connection.current == before

    in_virtual_time(main())


@pytest.mark.parametrize(("budget_ms", "kind"), [(100, Unavailable), (1_000, NoLeader)])
def test_no_time_to_connect_is_not_no_leader(budget_ms: int, kind: type[KeelMQError]) -> None:
    async def main() -> None:
        async def nobody(request: Request) -> HttpResponse:
            await asyncio.sleep(request.timeout_s)
            raise ConnectTimedOut("timed out")

        loop = asyncio.get_running_loop()
        connection = Connection(SERVERS, transport=ScriptedTransport(nobody), clock=loop.time)
        with pytest.raises(Unavailable, match="nothing was stored") as caught:
            await connection.call("POST", "/v1/x", deadline=Deadline(budget_ms, loop.time))
        assert type(caught.value) is kind
        assert not caught.value.outcome_unknown

    in_virtual_time(main())


async def test_a_redirect_that_came_too_late_to_be_followed_is_not_no_leader() -> None:
    connection = Connection(
        SERVERS, transport=ScriptedTransport(lambda request: HttpResponse(307, {"location": "http://n2:1/"}, b""))
    )
    with pytest.raises(Unavailable) as caught:
        await connection.call("POST", "/v1/x", deadline=Deadline(0))
    assert (type(caught.value), caught.value.code) == (Unavailable, "not_sent")


def test_writes_say_for_how_long_they_are_waited_for() -> None:
    async def main() -> None:
        broker = FarBroker(one_way_s=0.05)
        loop = asyncio.get_running_loop()
        transport = ScriptedTransport(broker)
        connection = Connection(SERVERS, transport=transport, clock=loop.time)
        async with Producer(connection=connection, send_timeout_ms=BUDGET_MS, retries=0, clock=loop.time) as producer:
            await producer.send("t", b"1.0")
            await producer.send("t", b"1.0")
        told = [told_ms(request) for request in transport.requests]
        assert told == [1_000, 900], "the second time without the way, which is known then"
        transport.script = lambda request: json_answer({})
        await connection.call("GET", "/v1/topics/t")
        assert TIMEOUT_HEADER not in transport.requests[-1].headers

    in_virtual_time(main())


def told_ms(request: Request) -> int:
    (line,) = (line for line in request.headers.splitlines() if line.startswith(TIMEOUT_HEADER))
    return int(line.partition(": ")[2])


def test_decisions_are_not_sent_with_less_time_than_answers_take() -> None:
    """Decisions are answered after 0.6 s. Two are under way; those behind them have 0.4 s of their 1 s left then."""

    async def main() -> None:
        broker, loop = Broker(), asyncio.get_running_loop()

        async def slow(request: Request) -> HttpResponse:
            answer = await broker(request)
            await asyncio.sleep(0.6)
            return answer

        transport = ScriptedTransport(slow)
        connection = Connection(SERVERS, transport=transport, clock=loop.time)
        lane = CallLane[wire.DecisionOfOne, wire.DecisionResponse](
            connection,
            "/v1/transactions/decisions",
            DecisionTeller(connection, "shop", "client"),
            tries=None,
            count_max=256,
            size_max=256,
        )

        async def tell(number: int) -> str:
            try:
                decision = wire.DecisionOfOne(str(number), "commit", "producer", "shop", "client")
                await lane.call(decision, 1, Deadline(BUDGET_MS, loop.time))
            except KeelMQError as error:
                return error.code
            return "told"

        assert await tell(0) == "told"
        calls = []
        for number in range(1, 6):
            calls.append(asyncio.create_task(tell(number)))
            await asyncio.sleep(0.001)
        assert await asyncio.gather(*calls) == ["told", "told", "not_sent", "not_sent", "not_sent"]
        assert len(transport.requests) == 3

    in_virtual_time(main())
