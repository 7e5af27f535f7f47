"""Transactional producers that are closed, decisions that nobody takes, and checks that are cancelled."""

import asyncio

import pytest

from keelmq.errors import Conflict, QueueNotFound
from keelmq.message import Message
from keelmq.producing.routing import queue_for_key
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import Outcome, TransactionProducer
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import HttpResponse
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, Request, ScriptedTransport, json_answer, problem
from tests.unit.client.test_transaction import ORDER, Broker, check_of, never, transactions


async def test_a_decision_that_contradicts_is_raised() -> None:
    broker = Broker()
    broker.decision_error = lambda: problem(409, "producer_group_mismatch")

    async def local(transaction: Transaction) -> None: ...

    producer, _ = transactions(broker)
    async with producer:
        with pytest.raises(Conflict):
            await producer.execute(ORDER, local)


async def test_a_producer_that_is_closed_during_a_local_transaction_leaves_its_decision_to_the_check() -> None:
    broker = Broker()
    running, may_end = asyncio.Event(), asyncio.Event()

    async def local(transaction: Transaction) -> None:
        running.set()
        await may_end.wait()

    connection = Connection(SERVERS, transport=ScriptedTransport(broker), rng=lambda: 0.0)
    async with TransactionProducer(SERVERS, "shop", check=never, connection=connection) as producer:
        executing = asyncio.create_task(producer.execute(ORDER, local))
        await running.wait()
    connection.close()
    may_end.set()
    assert (await executing).outcome is Outcome.COMMIT_PENDING


async def test_a_check_handler_that_raises_cancelled_error_answers_unknown() -> None:
    broker = Broker()

    async def check(transaction: Transaction) -> Decision:
        raise asyncio.CancelledError  # as what awaits something that was cancelled elsewhere does

    producer, _ = transactions(broker, check)
    async with producer:
        broker.checks.put_nowait([check_of("tx-1")])
        await asyncio.wait_for(broker.answered.wait(), PATIENCE_S)
    assert broker.decisions == [("tx-1", "unknown", "check")]


async def test_a_close_that_is_cancelled_goes_on_and_the_next_one_waits_for_it() -> None:
    broker = Broker()
    asked, ended = asyncio.Event(), asyncio.Event()
    may_end = asyncio.Event()

    async def check(transaction: Transaction) -> Decision:
        asked.set()
        await may_end.wait()
        ended.set()
        return Decision.COMMIT

    producer, _ = transactions(broker, check)
    await producer.start()
    broker.checks.put_nowait([check_of("tx-1")])
    await asyncio.wait_for(asked.wait(), PATIENCE_S)
    first = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = asyncio.create_task(producer.close())
    await asyncio.sleep(0)
    assert not second.done()
    may_end.set()
    await second
    assert ended.is_set()
    assert broker.decisions == [("tx-1", "commit", "check")]


async def test_a_queue_that_is_not_there_any_more_has_the_number_of_queues_asked_again() -> None:
    """The topic was deleted, and created anew with fewer queues."""
    broker, queues = Broker(), [4]

    async def script(request: Request) -> HttpResponse:
        if request.target.startswith("/v1/topics/"):
            return json_answer({"topic": "t", "queues": queues[0], "type": "any", "retention_ms": 1})
        if request.target == "/v1/transactions" and request.msgpack()["batches"][0]["queue"] >= queues[0]:
            return problem(404, "queue_not_found")
        return await broker(request)

    async def local(transaction: Transaction) -> None: ...

    message = Message(topic="t", body=b"x", sharding_key=next(k for k in "abcdefgh" if queue_for_key(k, 4)))
    connection = Connection(SERVERS, transport=ScriptedTransport(script), rng=lambda: 0.0)
    async with TransactionProducer(SERVERS, "shop", check=never, connection=connection) as producer:
        assert (await producer.execute(message, local)).outcome is Outcome.COMMITTED
        queues[0] = 1
        with pytest.raises(QueueNotFound):
            await producer.execute(message, local)
        assert (await producer.execute(message, local)).outcome is Outcome.COMMITTED
