"""Transactional producers that are closed, decisions that nobody takes, and checks that are cancelled."""

import asyncio

import pytest

from keelmq.errors import Conflict
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import Outcome, TransactionProducer
from keelmq.transport.connection import Connection
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import SERVERS, ScriptedTransport, problem
from tests.unit.client.test_transaction import ORDER, Broker, check_of, never, transactions


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
@pytest.mark.parametrize("code", ["unauthenticated", "forbidden"])
async def test_a_decision_that_nobody_takes_any_more_is_pending_not_failed(code: str, decision: Decision) -> None:
    """An error of `execute` means that the local transaction did not run; here it did, and the check finishes it."""
    broker = Broker()
    broker.decision_error = lambda: problem(403 if code == "forbidden" else 401, code)

    async def local(transaction: Transaction) -> Decision:
        return decision

    producer, _ = transactions(broker)
    async with producer:
        result = await producer.execute(ORDER, local)
    pending = Outcome.COMMIT_PENDING if decision is Decision.COMMIT else Outcome.ROLLBACK_PENDING
    assert result.outcome is pending


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
