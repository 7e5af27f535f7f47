"""PopConsumer against a scripted broker: it takes, holds, acknowledges and gives back messages."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from keelmq import PopConsumer, ReceivedMessage, RetryLater
from keelmq.errors import Conflict, InvalidRequest, KeelMQError, QueueLost
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem


class PopBroker:
    """A broker that hands out the `ready` messages, and remembers their outcomes."""

    def __init__(self, *bodies: str) -> None:
        self.ready = list(bodies)
        self.asked: list[int] = []
        self.acked: list[str] = []
        self.changed: list[dict[str, Any]] = []
        self.expired: set[str] = set()
        self.changes = asyncio.Event()
        self.refuse: Callable[[str], HttpResponse | None] = lambda target: None

    async def __call__(self, request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": f"http://{request.node}:1"})
        refused = self.refuse(request.target)
        if refused is not None:
            return refused
        body = request.json()
        if request.target.endswith("/ack"):
            handles = body["receipt_handles"]
            self.acked += [handle for handle in handles if handle not in self.expired]
            self._notify()
            outcomes = ["handle_expired" if handle in self.expired else "acked" for handle in handles]
            pairs = zip(handles, outcomes, strict=True)
            return json_answer({"results": [{"receipt_handle": each, "outcome": how} for each, how in pairs]})
        if request.target.endswith("/invisible"):
            if body["receipt_handle"] in self.expired:
                return problem(409, "handle_expired")
            self.changed.append(body)
            self._notify()
            return json_answer({"receipt_handle": body["receipt_handle"], "outcome": "held", "due_at_ms": 1})
        self.asked.append(body["max_messages"])
        self._notify()
        while not self.ready:
            await asyncio.Event().wait()
        taken, self.ready = self.ready[: body["max_messages"]], self.ready[body["max_messages"] :]
        return json_answer({"messages": [shown(each) for each in taken]})

    def _notify(self) -> None:
        self.changes.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changes.clear()
                await self.changes.wait()


def shown(body: str) -> dict[str, Any]:
    return {
        "topic": "orders", "queue": 0, "offset": 1, "message_id": body, "body": body, "encoding": "utf8",
        "receipt_handle": f"h-{body}", "attempt": 2, "origin": {"topic": "orders", "queue": 0, "offset": 0},
    }  # fmt: skip


def consumer(broker: PopBroker, handler: Any, **options: Any) -> PopConsumer:
    connection = Connection(SERVERS, transport=ScriptedTransport(broker, answers_cluster=True), avoid_slow_nodes=False)
    return PopConsumer(handler, topic="orders", group="g", connection=connection, **options)


async def test_what_is_handled_is_acknowledged_and_no_more_is_taken_than_can_be_handled() -> None:
    broker, running, most, go_on = PopBroker(*"abcde"), Counter[str](), 0, asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        nonlocal most
        assert (message.attempt, message.origin is not None) == (2, True)
        running[message.message_id] += 1
        most = max(most, running.total())
        broker.changes.set()
        await go_on.wait()
        del running[message.message_id]

    async with consumer(broker, handler, concurrency=2):
        await broker.until(lambda: most == 2)
        assert broker.asked == [2]
        go_on.set()
        await broker.until(lambda: len(broker.acked) == 5)
    assert (sorted(broker.acked), most) == ([f"h-{each}" for each in "abcde"], 2)
    assert broker.changed == []


async def test_what_fails_is_given_back_as_the_handler_wishes() -> None:
    broker = PopBroker("fails", "later", "now", "works")

    async def handler(message: ReceivedMessage) -> None:
        match message.message_id:
            case "fails":
                raise ValueError("no stock")
            case "later":
                raise RetryLater(delay_ms=90_000)
            case "now":
                raise RetryLater(delay_ms=0, reason="again")

    async with consumer(broker, handler):
        await broker.until(lambda: len(broker.changed) == 3 and bool(broker.acked))
    assert sorted(broker.changed, key=lambda each: str(each["receipt_handle"])) == [
        {"receipt_handle": "h-fails", "reason": "ValueError: no stock"},
        {"receipt_handle": "h-later", "invisible_ms": 90_000},
        {"receipt_handle": "h-now", "invisible_ms": 0, "reason": "again"},
    ]
    assert broker.acked == ["h-works"]


async def test_a_message_is_held_on_to_while_its_handler_runs() -> None:
    broker, ends = PopBroker("long"), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await ends.wait()

    async with consumer(broker, handler, invisible_ms=1_000):
        await broker.until(lambda: len(broker.changed) == 2)
        ends.set()
        await broker.until(lambda: bool(broker.acked))
    assert broker.changed[0] == {"receipt_handle": "h-long", "invisible_ms": 1_000}


async def test_a_handler_that_lost_its_message_is_fenced_and_acknowledges_nothing() -> None:
    broker, told = PopBroker("lost", "late"), asyncio.Event()
    broker.expired.update(("h-lost", "h-late"))
    faults: list[tuple[type[KeelMQError], str]] = []

    def on_fault(fault: KeelMQError, messages: Any) -> None:
        faults.append((type(fault), messages[0].message_id))
        if len(faults) == 2:
            told.set()

    async def handler(message: ReceivedMessage) -> None:
        if message.message_id == "lost":
            await told.wait()

    async with consumer(broker, handler, invisible_ms=1_000, on_fault=on_fault), asyncio.timeout(PATIENCE_S):
        await told.wait()
    assert sorted(faults, key=lambda each: each[1]) == [(QueueLost, "late"), (QueueLost, "lost")]
    assert broker.acked == []


async def test_closing_ends_within_its_time_and_gives_back_what_is_not_finished() -> None:
    broker, begun = PopBroker("stuck", "done"), asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        if message.message_id == "stuck":
            begun.set()
            await asyncio.Event().wait()

    worker = consumer(broker, handler, close_timeout_ms=1)
    await worker.start()
    await begun.wait()
    await worker.close()
    assert broker.acked == ["h-done"]
    assert broker.changed == [{"receipt_handle": "h-stuck", "invisible_ms": 0, "reason": "the consumer was closed"}]


async def test_a_handler_that_hangs_is_cancelled_and_its_message_given_back() -> None:
    broker = PopBroker("hangs")

    async def handler(message: ReceivedMessage) -> None:
        await asyncio.Event().wait()

    async with consumer(broker, handler, consume_timeout_ms=1):
        await broker.until(lambda: bool(broker.changed))
    assert broker.changed[0]["reason"].startswith("ConsumeTimeout")


async def test_an_acknowledgement_is_sent_until_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, refusals = PopBroker("a"), 2

    def refuse(target: str) -> HttpResponse | None:
        nonlocal refusals
        if target.endswith("/ack") and refusals:
            refusals -= 1
            return problem(500, "internal")
        return None

    async def handler(message: ReceivedMessage) -> None: ...

    monkeypatch.setattr("keelmq.consuming.pop_consumer.PAUSE_S", 0.0)
    broker.refuse = refuse
    async with consumer(broker, handler):
        await broker.until(lambda: bool(broker.acked))
    assert refusals == 0


async def test_a_group_that_has_members_ends_it() -> None:
    broker = PopBroker()
    broker.refuse = lambda target: problem(409, "group_has_members")

    async def handler(message: ReceivedMessage) -> None: ...

    with pytest.raises(Conflict, match="group_has_members"):
        await consumer(broker, handler).run()


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"invisible_ms": 999},
        {"invisible_ms": 12 * 3_600_000 + 1},
        {"start": "middle"},
        {"tags": "A", "filter": "TRUE"},
        {"wait_ms": 30_001},
    ],
)
async def test_what_is_wrong_is_refused_at_once(options: dict[str, Any]) -> None:
    async def handler(message: ReceivedMessage) -> None: ...

    with pytest.raises(InvalidRequest):
        consumer(PopBroker(), handler, **options)
