"""Transactions that run at the same time travel together, and each caller gets the outcome of its own."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from keelmq import limits
from keelmq.errors import (
    Closed,
    Corrupt,
    IdempotencyConflict,
    InvalidRequest,
    KeelMQError,
    TopicNotFound,
    Unavailable,
    UnknownOutcome,
)
from keelmq.message import Message
from keelmq.producing import half_sender
from keelmq.producing.half_sender import Half
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import Outcome, TransactionProducer, TransactionResult
from keelmq.transport.call_lane import EXPIRY_GRACE_S, EXPIRY_STEP_S, Expiries, Waiting
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from keelmq.transport.retry import Deadline
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Gate,
    Request,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
    problem,
)
from tests.unit.client.virtual_time import run_in_virtual_time

BUDGETS_MS = (300, 100, 200, 900, 500)
HALVES, DECISIONS = "/v1/transactions/batch", "/v1/transactions/decisions"

Part = Callable[[str], HttpResponse | None]


def fine(transaction_id: str) -> HttpResponse | None:
    return None


class Broker:
    """A broker that prepares and commits transactions. `half` and `decision` return the problem of each id, if any."""

    def __init__(self, half: Part = fine, decision: Part = fine) -> None:
        self.half, self.decision = half, decision
        self.whole: Callable[[Request], HttpResponse | None] = lambda request: None
        self.held: asyncio.Event | None = None

    async def __call__(self, request: Request) -> HttpResponse:
        if request.method == "GET":
            await asyncio.Event().wait()  # nobody has checks
        if self.held is not None:
            await self.held.wait()
        refused = self.whole(request)
        if refused is not None:
            return refused
        if request.target in (HALVES, DECISIONS):
            (items,) = request.msgpack().values()
            prepares = request.target == HALVES
            return msgpack_answer({"results": [self._part(each["transaction_id"], prepares) for each in items]})
        if request.target == "/v1/transactions":
            part, status = self._part(request.msgpack()["transaction_id"], True), 201
        else:
            part, status = self._part(request.target.split("/")[3], False), 200
        error = part.get("problem")
        return problem(error["status"], error["code"]) if error else json_answer(part, status)

    def _part(self, transaction_id: str, prepares: bool) -> dict[str, Any]:
        refused = (self.half if prepares else self.decision)(transaction_id)
        if refused is not None:
            return {"transaction_id": transaction_id, "problem": msgspec.json.decode(refused.body)}
        if prepares:
            return {"transaction_id": transaction_id, "state": "prepared", "duplicate": False, "receipt": RECEIPT}
        place = {"topic": "orders", "queue": 1, "offset": int(transaction_id), "count": 1}
        return {"transaction_id": transaction_id, "state": "committed", "positions": [place]}


async def never(transaction: Transaction) -> Decision:
    raise AssertionError("no check was expected")


async def nothing(transaction: Transaction) -> None: ...


def posts(transport: ScriptedTransport) -> list[Request]:
    return [request for request in transport.requests if request.method == "POST"]


async def execute(
    broker: Broker, ids: Sequence[int], local: Any = nothing, **options: Any
) -> tuple[list[TransactionResult | BaseException], list[Request]]:
    """Execute all transactions at once. Returns the results in their order, and the requests that were sent.

    Broker and producer share this process: without patience, a busy machine makes answers seem too slow to wait for.
    """
    options = {"send_timeout_ms": CALL_PATIENCE_MS, "decision_timeout_ms": CALL_PATIENCE_MS} | options
    transport = ScriptedTransport(broker)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    async with TransactionProducer(SERVERS, "shop", check=never, connection=connection, **options) as producer:
        calls = [
            producer.execute(Message(topic="orders", body=b"order %d" % each), local, transaction_id=str(each))
            for each in ids
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
    return results, posts(transport)


def committed(result: TransactionResult | BaseException, transaction_id: int) -> bool:
    return (
        isinstance(result, TransactionResult)
        and result.outcome is Outcome.COMMITTED
        and result.transaction_id == str(transaction_id)
        and [place.offset for place in result.positions] == [transaction_id]
    )


async def test_what_runs_at_the_same_time_is_two_requests() -> None:
    results, sent = await execute(Broker(), range(40))
    assert [request.target for request in sent] == [HALVES, DECISIONS]
    assert all(committed(result, each) for each, result in enumerate(results))
    halves = sent[0].msgpack()["transactions"]
    assert [half["transaction_id"] for half in halves] == [str(each) for each in range(40)]
    assert all(half["producer_group"] == "shop" and half["client_id"] for half in halves)


async def test_one_alone_is_sent_as_before() -> None:
    results, sent = await execute(Broker(), [7])
    assert [request.target for request in sent] == ["/v1/transactions", "/v1/transactions/7/commit"]
    assert committed(results[0], 7)


async def test_a_request_holds_no_more_than_the_contract_allows() -> None:
    count = 2 * limits.TRANSACTIONS_MAX + 5
    results, sent = await execute(Broker(), range(count))
    assert all(committed(result, each) for each, result in enumerate(results))
    for target in (HALVES, DECISIONS):
        sizes = [len(next(iter(request.msgpack().values()))) for request in sent if request.target == target]
        assert max(sizes) == limits.TRANSACTIONS_MAX
        assert sum(sizes) == count


async def test_one_that_fails_does_not_fail_the_others() -> None:
    def half(transaction_id: str) -> HttpResponse | None:
        return {"1": problem(404, "topic_not_found"), "2": problem(409, "idempotency_conflict")}.get(transaction_id)

    def decision(transaction_id: str) -> HttpResponse | None:
        return problem(404, "transaction_not_found") if transaction_id == "3" else None

    ran: list[str] = []

    async def local(transaction: Transaction) -> None:
        ran.append(transaction.id)

    results, _ = await execute(Broker(half, decision), range(6), local)
    assert isinstance(results[1], TopicNotFound)
    assert isinstance(results[2], IdempotencyConflict)
    assert isinstance(results[3], KeelMQError)
    assert results[3].code == "transaction_not_found"
    assert all(committed(results[each], each) for each in (0, 4, 5))
    assert ran == ["0", "3", "4", "5"]  # never without its half message


async def test_only_what_was_not_done_is_sent_again_and_just_the_same() -> None:
    refusals = {"1": ["overloaded"], "3": ["unknown_outcome", "no_leader"]}

    def half(transaction_id: str) -> HttpResponse | None:
        codes = refusals.get(transaction_id)
        return problem(503, codes.pop(0)) if codes else None

    results, sent = await execute(Broker(half), range(5))
    assert all(committed(result, each) for each, result in enumerate(results))
    first, second, third = (each.msgpack()["transactions"] for each in sent if each.target == HALVES)
    assert [half["transaction_id"] for half in second] == ["1", "3"]
    assert second == [first[1], first[3]]
    assert third == [first[3]]


async def test_tries_are_counted_and_no_half_means_no_local_transaction() -> None:
    broker = Broker(lambda transaction_id: problem(503, "unknown_outcome") if transaction_id == "1" else None)
    results, sent = await execute(broker, range(3), retries=2)
    assert isinstance(results[1], UnknownOutcome)
    assert len([request for request in sent if request.target == HALVES]) == 3
    assert committed(results[0], 0)


async def test_a_lost_answer_is_asked_for_again_with_the_same_ids() -> None:
    losses = {HALVES, DECISIONS}

    def lose_once(request: Request) -> HttpResponse | None:
        if request.target in losses:
            losses.discard(request.target)
            raise ExchangeFailed("connection closed")
        return None

    broker = Broker()
    broker.whole = lose_once
    results, sent = await execute(broker, range(4))
    assert all(committed(result, each) for each, result in enumerate(results))
    for target in (HALVES, DECISIONS):
        first, second = (request.body for request in sent if request.target == target)
        assert first == second


async def test_an_error_after_a_lost_answer_may_have_taken_effect() -> None:
    losses = [True]

    def lose_once(request: Request) -> HttpResponse | None:
        if losses:
            losses.pop()
            raise ExchangeFailed("connection closed")
        return None

    broker = Broker(lambda transaction_id: problem(404, "topic_not_found") if transaction_id == "1" else None)
    broker.whole = lose_once
    results, _ = await execute(broker, range(2))
    assert isinstance(results[1], TopicNotFound)
    assert results[1].outcome_unknown


@pytest.mark.parametrize(("status", "code"), [(400, "invalid_request"), (405, "method_not_allowed")])
async def test_refused_as_a_whole_each_is_sent_by_itself(status: int, code: str) -> None:
    """The request of one must not be able to spoil those of the others, and an older broker knows no batches."""

    def refuse(request: Request) -> HttpResponse | None:
        if request.target in (HALVES, DECISIONS):
            return problem(status, code)
        spoilt = request.target == "/v1/transactions" and request.msgpack()["transaction_id"] == "1"
        return problem(400, "invalid_request") if spoilt else None

    broker = Broker()
    broker.whole = refuse
    results, _ = await execute(broker, range(4))
    assert isinstance(results[1], InvalidRequest)
    assert all(committed(results[each], each) for each in (0, 2, 3))


@pytest.mark.parametrize(
    "results",
    [
        [],
        [{"transaction_id": "0", "state": "prepared", "receipt": RECEIPT}],
        [{"transaction_id": each, "state": "prepared", "receipt": RECEIPT} for each in ("1", "0")],
        [{"transaction_id": each} for each in ("0", "1")],
        [{"transaction_id": each, "state": "prepared"} for each in ("0", "1")],
        [{"transaction_id": each, "problem": 5} for each in ("0", "1")],
    ],
)
async def test_an_answer_about_something_else_is_believed_by_nobody(results: list[Any]) -> None:
    broker = Broker()
    broker.whole = lambda request: msgpack_answer({"results": results}) if request.target == HALVES else None
    outcomes, _ = await execute(broker, range(2))
    assert [type(outcome) for outcome in outcomes] == [Corrupt, Corrupt]


async def test_a_problem_that_says_nothing_fails_its_own_transaction_only() -> None:
    answers = [{"transaction_id": "0", "state": "prepared", "receipt": RECEIPT}, {"transaction_id": "1", "problem": {}}]
    broker = Broker()
    broker.whole = lambda request: msgpack_answer({"results": answers}) if request.target == HALVES else None
    outcomes, _ = await execute(broker, range(2), retries=0)
    assert committed(outcomes[0], 0)
    assert isinstance(outcomes[1], KeelMQError)


async def test_decisions_that_cannot_be_told_are_pending() -> None:
    broker = Broker(decision=lambda transaction_id: problem(503, "unknown_outcome") if transaction_id == "1" else None)
    results, _ = await execute(broker, range(3), decision_timeout_ms=1_000)
    assert isinstance(results[1], TransactionResult)
    assert results[1].outcome is Outcome.COMMIT_PENDING
    assert committed(results[0], 0)


async def test_who_waits_behind_requests_that_hang_is_told_in_time_that_nothing_was_sent() -> None:
    broker = Broker()
    broker.held = asyncio.Event()
    transport = ScriptedTransport(broker)
    connection = Connection(SERVERS, transport=transport)
    producer = TransactionProducer(SERVERS, "shop", check=never, connection=connection, send_timeout_ms=200)

    def start(transaction_id: str) -> asyncio.Task[TransactionResult]:
        message = Message(topic="orders", body=b"x")
        return asyncio.create_task(producer.execute(message, nothing, transaction_id=transaction_id))

    async with producer:
        under_way = []
        for number in range(2):
            under_way.append(start(str(number)))
            async with asyncio.timeout(PATIENCE_S):
                while len(posts(transport)) <= number:
                    await asyncio.sleep(0)
        late, cancelled = start("8"), start("9")
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(Unavailable) as caught:
            await late
        assert caught.value.code == "not_sent"
        ended = await asyncio.gather(*under_way, return_exceptions=True)
        assert all(isinstance(each, UnknownOutcome) for each in ended)
        broker.held.set()
    assert not any(b"\xa19" in request.body for request in posts(transport))  # given up before it was sent


def test_each_call_expires_at_its_own_time_although_one_timer_watches_all() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        expiries: Expiries[int, Any] = Expiries()
        calls = [Waiting[int, Any](budget_ms, 1, Deadline(budget_ms, loop.time), loop) for budget_ms in BUDGETS_MS]
        ended_at_ms: dict[int, float] = {}

        def ended(call: Waiting[int, Any], _: object) -> None:
            ended_at_ms[call.item] = round((loop.time() - begun_s - EXPIRY_GRACE_S) * 1000, 3)

        for call in calls:
            call.future.add_done_callback(partial(ended, call))
            expiries.add(call)
        calls[BUDGETS_MS.index(200)].future.set_result(None)  # answered in time
        expiries.remove(calls[BUDGETS_MS.index(200)])
        results = await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
        assert [type(each) for each in results] == [type(None) if ms == 200 else Unavailable for ms in BUDGETS_MS]
        assert ended_at_ms == {ms: -EXPIRY_GRACE_S * 1000 if ms == 200 else ms for ms in BUDGETS_MS}

    run_in_virtual_time(main())


def test_many_calls_that_expire_one_by_one_cost_few_looks() -> None:
    looks = 0

    class Counting(Expiries[int, Any]):
        def _expire(self) -> None:
            nonlocal looks
            looks += 1
            super()._expire()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        expiries = Counting()
        calls = [Waiting[int, Any](ms, 1, Deadline(ms, loop.time), loop) for ms in range(1, 1_001)]
        for call in calls:
            expiries.add(call)
        results = await asyncio.gather(*(call.future for call in calls), return_exceptions=True)
        assert {type(each) for each in results} == {Unavailable}

    run_in_virtual_time(main())
    assert looks <= 1 / EXPIRY_STEP_S + 1


async def test_a_closed_connection_ends_every_call() -> None:
    transport = ScriptedTransport(Broker())
    connection = Connection(SERVERS, transport=transport)
    async with TransactionProducer(SERVERS, "shop", check=never, connection=connection) as producer:
        connection.close()
        message = Message(topic="orders", body=b"x")
        calls = [producer.execute(message, nothing) for _ in range(3)]
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 3


async def test_a_call_that_ends_with_its_loop_may_have_taken_effect() -> None:
    gate = Gate(lambda request: problem(503, "overloaded"))
    connection = Connection(SERVERS, transport=ScriptedTransport(gate))
    async with TransactionProducer(SERVERS, "shop", check=never, connection=connection) as producer:
        message = Message(topic="orders", body=b"x")
        call = asyncio.create_task(producer.execute(message, nothing))
        while not any("/transactions" in each.target for each in gate.held):
            await asyncio.sleep(0)
        for worker in producer._halves._lane._workers:
            worker.cancel()
        with pytest.raises(Closed) as caught:
            await call
        assert caught.value.outcome_unknown


def test_what_collects_within_its_bytes_is_within_every_limit_of_a_request() -> None:
    budget = half_sender.COLLECT_BYTES_MAX

    def most(**fields: int) -> int:
        """Return how many half messages like this one fit a request by their size."""
        given = {"batches": 1, "messages": 1, "keys": 0, "unpacked_bytes": 1, **fields}
        return budget // Half("t", b"x", **given).size

    assert most(batches=10) * 10 <= limits.REQUEST_BATCHES_MAX
    assert most(messages=10) * 10 <= limits.REQUEST_MESSAGES_MAX
    assert most(keys=100) * 100 <= limits.REQUEST_KEYS_MAX
    assert most(unpacked_bytes=1 << 20) << 20 <= limits.REQUEST_BYTES_MAX
