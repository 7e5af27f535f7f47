"""Functions that would run nothing in their database transaction are refused: the record alone would be committed."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, select
from sqlalchemy.ext.asyncio import create_async_engine

from keelmq import inbox, outbox, sql
from keelmq.errors import InvalidRequest
from keelmq.message import ReceivedMessage
from tests.databases import balance
from tests.unit.client.test_outbox import async_url, debit
from tests.unit.client.test_transaction import ORDER, Broker, transactions

MESSAGE = ReceivedMessage(topic="orders", queue=0, offset=1, message_id="m", body=b"x")


async def asynchronous(connection: Connection, *_: object) -> None:
    debit(connection)


def yielding(connection: Connection, *_: object) -> Iterator[None]:
    debit(connection)
    yield


WORK = [asynchronous, yielding, lambda *given: asynchronous(*given)]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("work", WORK)
async def test_nothing_is_published_for_work_that_would_not_run(
    engine: Engine, database_url: str, work: Any, is_async: bool
) -> None:
    broker = Broker()
    producer, _ = transactions(broker)
    used = create_async_engine(async_url(database_url)) if is_async else engine
    async with producer:
        with pytest.raises(InvalidRequest, match="work: give a plain function"):
            await outbox.execute(producer, used, ORDER, work)
    assert [decision for _, decision, _ in broker.decisions if decision != "unknown"] == []
    assert balance(engine) == 1000
    with engine.connect() as connection:
        assert list(connection.execute(select(outbox.table))) == []
    if is_async:
        await used.dispose()  # type: ignore[misc]


@pytest.mark.parametrize("work", WORK)
async def test_no_message_counts_as_applied_when_nothing_would_run(engine: Engine, work: Any) -> None:
    def apply(connection: Connection) -> object:
        assert inbox.first_time(connection, "points", MESSAGE)
        return work(connection)

    for function in (work, apply):
        with pytest.raises(InvalidRequest, match="work: give a plain function"):
            await sql.run(engine, function)
    with engine.begin() as connection:
        assert inbox.first_time(connection, "points", MESSAGE)
