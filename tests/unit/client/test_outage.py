"""Background calls that fail: a failover is no warning, what goes on for longer is."""

import asyncio
import logging
from typing import Any

import pytest

from keelmq.consuming.pop_consumer import PopConsumer
from keelmq.errors import BrokerFault, InvalidRequest, KeelMQError, NoLeader, Unavailable
from keelmq.message import ReceivedMessage
from keelmq.transactions.check_loop import CheckLoop
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transport.outage import FAILOVER_S, Outage
from tests.unit.client.virtual_time import run_in_virtual_time

NO_ANSWER = Unavailable("no_answer", "connection closed by the server")


class Failing:
    """A connection whose calls fail with `error` for `seconds`, and then wait for ever."""

    def __init__(self, error: KeelMQError, seconds: float) -> None:
        self.error = error
        self.ends_s = asyncio.get_running_loop().time() + seconds
        self.over = asyncio.Event()

    async def call_for(self, *arguments: Any, **options: Any) -> Any:
        if asyncio.get_running_loop().time() < self.ends_s:
            raise self.error
        self.over.set()
        await asyncio.Event().wait()


async def polls_checks(error: KeelMQError, seconds: float) -> None:
    """Run a check loop until its polls have failed for `seconds`."""

    async def check(transaction: Transaction) -> Decision:
        raise AssertionError("there are no checks")

    connection: Any = Failing(error, seconds)
    teller: Any = None
    options = {"concurrency": 1, "handler_timeout_ms": 1_000, "answer_timeout_ms": 1_000}
    loop = CheckLoop(connection, "shop", "c", check, teller, **options)
    loop.start()
    await connection.over.wait()
    await loop.stop(0)


async def pops(error: KeelMQError, seconds: float) -> None:
    """Run a pop consumer until its pops have failed for `seconds`."""

    async def handle(message: ReceivedMessage) -> None:
        raise AssertionError("there are no messages")

    connection: Any = Failing(error, seconds)
    consumer = PopConsumer(handle, topic="orders", group="g", connection=connection)
    await consumer.start()
    await connection.over.wait()
    await consumer.close()


@pytest.mark.parametrize("calls", [polls_checks, pops])
def test_a_failover_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture, calls: Any) -> None:
    caplog.set_level(logging.DEBUG, "keelmq")
    run_in_virtual_time(calls(NO_ANSWER, FAILOVER_S / 2))
    assert "no_answer" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


@pytest.mark.parametrize("calls", [polls_checks, pops])
def test_what_lasts_longer_is_a_warning(caplog: pytest.LogCaptureFixture, calls: Any) -> None:
    run_in_virtual_time(calls(NO_ANSWER, FAILOVER_S + 5))
    assert "no_answer" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_no_failover_explains_is_a_warning_at_once(caplog: pytest.LogCaptureFixture) -> None:
    run_in_virtual_time(polls_checks(BrokerFault("internal", "a bug"), 0.01))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_an_outage_ends_with_a_success() -> None:
    async def levels() -> list[int]:
        outage, found = Outage(), []
        for pause_s, ends in ((0, False), (FAILOVER_S, True), (0, False)):
            await asyncio.sleep(pause_s)
            found.append(outage.level(NoLeader("no_leader", "x")))
            if ends:
                outage.ended()
        return [*found, outage.level(InvalidRequest("invalid_request", "x"))]

    assert run_in_virtual_time(levels()) == [logging.DEBUG, logging.WARNING, logging.DEBUG, logging.WARNING]
