"""TransactionProducer: the order of its steps, its requests to the broker, and its results for the caller."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from keelmq.errors import InvalidRequest, NoLeader, TransactionConflict, UnknownOutcome
from keelmq.message import Message
from keelmq.transactions.decision import Decision, RollbackTransaction, Transaction
from keelmq.transactions.transaction import Outcome, TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ExchangeFailed, HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import (
    RECEIPT,
    SERVERS,
    Request,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
    problem,
)

ORDER = Message(topic="orders", body=b"order 1")


class Broker:
    """A broker that answers half transactions, decisions and checks. `decisions` has the decisions that it was told."""

    def __init__(self) -> None:
        self.state = "prepared"
        self.duplicate = False
        self.half_error: HttpResponse | None = None
        self.decision_error: Callable[[], HttpResponse] | None = None
        self.decisions: list[tuple[str, str, str]] = []
        self.late: set[str] = set()
        self.checks: asyncio.Queue[list[dict[str, Any]]] = asyncio.Queue()
        self.answered = asyncio.Event()

    async def __call__(self, request: Request) -> HttpResponse:
        if request.target == "/v1/transactions":
            if self.half_error is not None:
                return self.half_error
            half = request.msgpack()
            answer = {"transaction_id": half["transaction_id"], "state": self.state, "duplicate": self.duplicate}
            return msgpack_answer({**answer, "receipt": RECEIPT}, 201)
        if request.target.startswith("/v1/producer-groups/"):
            return json_answer({"checks": await self.checks.get()})
        if request.method == "GET":
            return json_answer({"topic": "t", "queues": 4, "type": "any", "retention_ms": 1})
        if request.target == "/v1/transactions/decisions":
            told = request.msgpack()["decisions"]
            return msgpack_answer({"results": [self._part(each) for each in told]})
        _, _, _, transaction_id, decision = request.target.split("/")
        return self._decide(transaction_id, decision, request.json()["source"])

    def _part(self, told: dict[str, str]) -> dict[str, Any]:
        """Return the answer for one decision of several."""
        answer = self._decide(told["transaction_id"], told["decision"], told["source"])
        body: dict[str, Any] = msgspec.json.decode(answer.body)
        return body if answer.status == 200 else {"transaction_id": told["transaction_id"], "problem": body}

    def _decide(self, transaction_id: str, decision: str, source: str) -> HttpResponse:
        if transaction_id in self.late:
            return problem(409, "transaction_conflict", state="discarded")
        if self.decision_error is not None and decision != "unknown":
            return self.decision_error()
        self.decisions.append((transaction_id, decision, source))
        self.answered.set()
        positions = [{"topic": "orders", "queue": 1, "offset": 5, "count": 1}] if decision == "commit" else []
        return json_answer({"transaction_id": transaction_id, "state": decision, "positions": positions})


async def never(transaction: Transaction) -> Decision:
    raise AssertionError("no check was expected")


def transactions(broker: Broker, check: Any = never, **options: Any) -> tuple[TransactionProducer, ScriptedTransport]:
    transport = ScriptedTransport(broker)
    connection = Connection(SERVERS, transport=transport, rng=lambda: 0.0)
    return TransactionProducer(SERVERS, "shop", check=check, connection=connection, **options), transport


@pytest.mark.parametrize(
    ("returned", "outcome", "told"),
    [
        (None, Outcome.COMMITTED, "commit"),
        (Decision.COMMIT, Outcome.COMMITTED, "commit"),
        (Decision.ROLLBACK, Outcome.ROLLED_BACK, "rollback"),
        (Decision.UNKNOWN, Outcome.UNKNOWN, "unknown"),
    ],
)
async def test_what_the_local_transaction_returns_decides(
    returned: Decision | None, outcome: Outcome, told: str
) -> None:
    broker = Broker()
    producer, transport = transactions(broker)
    seen: list[Transaction] = []

    async def local(transaction: Transaction) -> Decision | None:
        assert any(request.target == "/v1/transactions" for request in transport.requests)
        assert broker.decisions == []
        seen.append(transaction)
        return returned

    async with producer:
        result = await producer.execute(ORDER, local)
    assert result.outcome is outcome
    assert broker.decisions == [(result.transaction_id, told, "producer")]
    assert seen[0].id == result.transaction_id
    assert seen[0].messages == [ORDER]
    assert len(result.positions) == (1 if outcome is Outcome.COMMITTED else 0)


async def test_rollback_transaction_rolls_back() -> None:
    broker = Broker()

    async def local(transaction: Transaction) -> None:
        raise RollbackTransaction

    producer, _ = transactions(broker)
    async with producer:
        result = await producer.execute(ORDER, local)
    assert result.outcome is Outcome.ROLLED_BACK
    assert broker.decisions[0][1] == "rollback"


async def test_another_exception_is_unknown_and_raised() -> None:
    """Nobody here knows whether the database committed before the exception: only the check can tell."""
    broker = Broker()

    async def local(transaction: Transaction) -> None:
        raise ConnectionResetError("database went away")

    producer, _ = transactions(broker)
    async with producer:
        with pytest.raises(ConnectionResetError):
            await producer.execute(ORDER, local)
    assert [told for _, told, _ in broker.decisions] == ["unknown"]


@pytest.mark.parametrize(
    "error", [problem(503, "unknown_outcome"), problem(404, "topic_not_found"), problem(507, "disk_full")]
)
async def test_without_a_durable_half_message_the_local_transaction_does_not_run(error: HttpResponse) -> None:
    broker = Broker()
    broker.half_error = error
    ran = False

    async def local(transaction: Transaction) -> None:
        nonlocal ran
        ran = True

    producer, _ = transactions(broker, retries=1)
    async with producer:
        with pytest.raises(Exception, match=r"."):
            await producer.execute(ORDER, local)
    assert not ran
    assert broker.decisions == []


@pytest.mark.parametrize(
    ("status", "code"),
    [
        *((503, code) for code in ("no_leader", "unknown_outcome", "overloaded")),
        *((401, "unauthenticated"), (403, "forbidden")),
    ],
)
@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
async def test_a_decision_that_cannot_be_told_is_pending_not_failed(status: int, code: str, decision: Decision) -> None:
    """An error of `execute` means that the local transaction did not run; here it did, and the check finishes it."""
    broker = Broker()
    broker.decision_error = lambda: problem(status, code)

    async def local(transaction: Transaction) -> Decision:
        return decision

    producer, _ = transactions(broker, decision_timeout_ms=50)
    async with producer:
        result = await producer.execute(ORDER, local)
    pending = Outcome.COMMIT_PENDING if decision is Decision.COMMIT else Outcome.ROLLBACK_PENDING
    assert result.outcome is pending


async def test_a_lost_answer_to_the_decision_is_resolved_by_telling_again() -> None:
    broker = Broker()
    losses = [True]

    def lose_once() -> HttpResponse:
        if losses:
            losses.pop()
            raise ExchangeFailed("connection closed")
        broker.decision_error = None
        return problem(503, "no_leader")

    broker.decision_error = lose_once

    async def local(transaction: Transaction) -> None: ...

    producer, _ = transactions(broker)
    async with producer:
        assert (await producer.execute(ORDER, local)).outcome is Outcome.COMMITTED
    assert len(broker.decisions) == 1


async def test_a_conflict_is_never_hidden() -> None:
    broker = Broker()
    broker.decision_error = lambda: problem(409, "transaction_conflict", state="rolled_back", decided_at_ms=7)

    async def local(transaction: Transaction) -> None: ...

    producer, _ = transactions(broker)
    async with producer:
        with pytest.raises(TransactionConflict) as caught:
            await producer.execute(ORDER, local)
    assert caught.value.state == "rolled_back"


@pytest.mark.parametrize(("state", "raises"), [("committed", False), ("rolled_back", True), ("discarded", True)])
async def test_an_id_that_is_decided_already_does_not_run_again(state: str, raises: bool) -> None:
    broker = Broker()
    broker.state, broker.duplicate = state, True

    async def local(transaction: Transaction) -> None:
        raise AssertionError("must not run")

    producer, _ = transactions(broker)
    async with producer:
        if raises:
            with pytest.raises(TransactionConflict):
                await producer.execute(ORDER, local, transaction_id="order-1")
        else:
            result = await producer.execute(ORDER, local, transaction_id="order-1")
            assert result.outcome is Outcome.COMMITTED
    assert broker.decisions == []


async def test_repeating_a_transaction_repeats_the_request_exactly() -> None:
    bodies = []
    for transaction_id in ("order-1", "order-1", "x" * 64):
        producer, transport = transactions(Broker(), client_id="c")

        async def local(transaction: Transaction) -> None: ...

        async with producer:
            await producer.execute([ORDER, Message(topic="other", body=b"b")], local, transaction_id=transaction_id)
        bodies.append(next(r for r in transport.requests if r.target == "/v1/transactions").msgpack())
    assert bodies[0] == bodies[1]
    assert [batch["topic"] for batch in bodies[0]["batches"]] == ["orders", "other"]
    ids = [batch["batch_id"] for body in bodies[1:] for batch in body["batches"]]
    assert len(set(ids)) == 4
    assert all(len(batch_id) <= 64 for batch_id in ids)


async def test_messages_go_to_the_queue_of_their_key() -> None:
    producer, transport = transactions(Broker())

    async def local(transaction: Transaction) -> None: ...

    messages = [Message(topic="t", body=b"1", sharding_key="a"), Message(topic="t", body=b"2", queue=3)]
    async with producer:
        await producer.execute(messages, local)
    half = next(r for r in transport.requests if r.target == "/v1/transactions").msgpack()
    assert [batch["queue"] for batch in half["batches"]] == [0xC1D04330 % 4, 3]  # CRC-32C of "a"


@pytest.mark.parametrize(
    "messages",
    [[], [Message(body=b"no topic")], [Message(topic="bad topic", body=b"x")], [Message(topic="t", body=b"")], ["x"]],
)
async def test_bad_messages_are_refused_before_anything_is_sent(messages: list[Any]) -> None:
    producer, transport = transactions(Broker())
    async with producer:
        with pytest.raises(InvalidRequest):
            await producer.execute(messages, never)
    assert not any(request.method == "POST" for request in transport.requests)


async def test_a_producer_without_a_check_handler_or_not_started_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="check: give a function"):
        transactions(Broker(), check=None)
    producer, transport = transactions(Broker())
    with pytest.raises(InvalidRequest, match="start"):
        await producer.execute(ORDER, never)
    assert transport.requests == []


def check_of(transaction_id: str, **fields: Any) -> dict[str, Any]:
    message = {"body": "aGVsbG8=", "encoding": "base64", "topic": "orders", "message_id": "m-1", "queue": 1}
    return {
        "transaction_id": transaction_id,
        "producer_group": "shop",
        "client_id": "gone",
        "check_times": 2,
        "prepared_at_ms": 7,
        "messages": [message],
        **fields,
    }


@pytest.mark.parametrize("decision", list(Decision))
async def test_checks_are_answered(decision: Decision) -> None:
    broker = Broker()
    asked: list[Transaction] = []

    async def check(transaction: Transaction) -> Decision:
        asked.append(transaction)
        return decision

    producer, _ = transactions(broker, check)
    async with producer:
        broker.checks.put_nowait([check_of("tx-1")])
        await asyncio.wait_for(broker.answered.wait(), PATIENCE_S)
    assert broker.decisions == [("tx-1", str(decision), "check")]
    assert (asked[0].id, asked[0].check_times, asked[0].messages[0].body) == ("tx-1", 2, b"hello")


@pytest.mark.parametrize("fault", ["raises", "returns nonsense", "hangs"])
async def test_a_check_handler_that_fails_answers_unknown(fault: str) -> None:
    broker = Broker()

    async def check(transaction: Transaction) -> Any:
        if fault == "raises":
            raise ValueError("bug")
        if fault == "hangs":
            await asyncio.Event().wait()
        return "commit"

    producer, _ = transactions(broker, check, check_handler_timeout_ms=20)
    async with producer:
        broker.checks.put_nowait([check_of("tx-1")])
        await asyncio.wait_for(broker.answered.wait(), PATIENCE_S)
    assert broker.decisions == [("tx-1", "unknown", "check")]


async def test_the_check_loop_survives_errors_and_conflicts() -> None:
    """One poll fails, one answer comes too late, and then a check works."""
    broker = Broker()
    broker.late.add("tx-late")
    polls = 0

    async def script(request: Request) -> HttpResponse:
        nonlocal polls
        if request.target.startswith("/v1/producer-groups/"):
            polls += 1
            if polls == 1:
                return problem(500, "internal")
        return await broker(request)

    async def check(transaction: Transaction) -> Decision:
        return Decision.COMMIT

    connection = Connection(SERVERS, transport=ScriptedTransport(script))
    async with TransactionProducer(SERVERS, "shop", check=check, connection=connection):
        broker.checks.put_nowait([check_of("tx-late")])
        broker.checks.put_nowait([check_of("tx-2")])
        await asyncio.wait_for(broker.answered.wait(), PATIENCE_S)
    assert broker.decisions == [("tx-2", "commit", "check")]


async def test_check_handlers_run_at_once_but_bounded_and_never_twice_for_one() -> None:
    broker = Broker()
    running: set[str] = set()
    most = 0
    release = asyncio.Event()
    started = asyncio.Event()

    async def check(transaction: Transaction) -> Decision:
        nonlocal most
        assert transaction.id not in running
        running.add(transaction.id)
        most = max(most, len(running))
        if len(running) == 3:
            started.set()
        await release.wait()
        running.discard(transaction.id)
        return Decision.COMMIT

    producer, transport = transactions(broker, check, check_concurrency=3)
    async with producer:
        broker.checks.put_nowait([check_of("a"), check_of("b"), check_of("a")])
        broker.checks.put_nowait([check_of("c")])
        await asyncio.wait_for(started.wait(), PATIENCE_S)
        polls = [request.target for request in transport.requests if "checks" in request.target]
        assert ["max=3" in polls[0], "max=1" in polls[1]] == [True, True]
        release.set()
        async with asyncio.timeout(PATIENCE_S):
            while len(broker.decisions) < 3:
                broker.answered.clear()
                await broker.answered.wait()
    assert most == 3


async def test_errors_say_what_they_are() -> None:
    broker = Broker()
    broker.half_error = problem(503, "no_leader")
    producer, _ = transactions(broker, retries=0)
    async with producer:
        with pytest.raises(NoLeader):
            await producer.execute(ORDER, never)
        broker.half_error = problem(503, "unknown_outcome")
        with pytest.raises(UnknownOutcome):
            await producer.execute(ORDER, never)
