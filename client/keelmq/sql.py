"""Shared code of the SQL outbox and inbox: dialects, any kind of engine, time. Requires `keelmq[sql]`.

Statements run on a synchronous Connection or Session inside the caller's own database transaction. With asyncio, pass
them through `run_sync`, as in `await session.run_sync(outbox.record, transaction.id)`.
"""

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Column, Connection, Engine, MetaData, Table, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session
from sqlalchemy.schema import CreateIndex, CreateTable

from keelmq.errors import InvalidRequest
from keelmq.plain_calls import HAVE_YIELD, check_plain_function

T = TypeVar("T")

Executor = Connection | Session
"""An object with `execute` that is inside the caller's database transaction."""

metadata = MetaData()
"""Metadata with the tables of outbox and inbox, for applications that create them with their own migrations."""

CREATION_LOCK: Final = int.from_bytes(b"keelmq")
"""PostgreSQL's advisory lock under which tables are created."""


def create_table(bind: Engine | Connection, table: Table) -> None:
    """Create the table and its indexes if they are missing, in the caller's database transaction if there is one.

    Instances of a service that start at the same moment may all call this; each of them finds the table afterwards.
    """
    if isinstance(bind, Engine):
        with bind.begin() as connection:
            create_table(connection, table)
        return
    if bind.dialect.name == "postgresql":  # IF NOT EXISTS alone: two that look at the same time both create it
        bind.execute(select(func.pg_advisory_xact_lock(CREATION_LOCK)))
    bind.execute(CreateTable(table, if_not_exists=True))
    for index in sorted(table.indexes, key=lambda each: str(each.name)):
        bind.execute(CreateIndex(index, if_not_exists=True))


def now_ms() -> int:
    return int(time.time() * 1000)


def insert_if_absent(executor: Executor, table: Table, row: dict[str, Any]) -> bool:
    """Insert `row` unless its primary key exists; return True when it was inserted.

    Waits for another database transaction that has inserted the same key and has not ended yet.
    """
    return bool(insert_absent(executor, table, [row], (table.primary_key.columns[0],)))


def insert_absent(
    executor: Executor, table: Table, rows: Sequence[dict[str, Any]], returning: Sequence[Column[Any]]
) -> list[tuple[Any, ...]]:
    """Insert the `rows` whose primary key does not exist; return their `returning` columns, unordered.

    All rows are inserted in one statement, which waits as `insert_if_absent` does. The caller must keep the number of
    values within the database's limit per statement. Raises InvalidRequest for a dialect other than PostgreSQL and
    SQLite.
    """
    dialect = _dialect_name(executor)
    if dialect not in ("postgresql", "sqlite"):
        raise InvalidRequest("invalid_request", f"outbox and inbox work with PostgreSQL and SQLite, not {dialect}")
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement = insert(table).values(list(rows)).on_conflict_do_nothing().returning(*returning)
    return [tuple(row) for row in executor.execute(statement)]


def refuse_autocommit(executor: Executor) -> None:
    """Raise InvalidRequest if each statement of `executor` would commit by itself: nothing could be rolled back."""
    connection = executor.connection() if isinstance(executor, Session) else executor
    pooled = connection.connection
    autocommit = getattr(pooled.dbapi_connection, "autocommit", False) is True
    if connection.dialect.name == "sqlite":
        driver: Any = pooled.driver_connection
        if driver.isolation_level is None:  # autocommit, unless an event handler of the application begins transactions
            connection.execute(select(1))
            autocommit = not driver.in_transaction
    if autocommit:
        raise InvalidRequest(
            "invalid_request", "this connection is in autocommit mode: outbox and inbox need a database transaction"
        )


def _dialect_name(executor: Executor) -> str:
    bind = executor.get_bind() if isinstance(executor, Session) else executor
    return bind.dialect.name


def check_work(work: object) -> None:
    """Raise InvalidRequest unless `work` is a plain function: any other would run after its database transaction."""
    check_plain_function("work", work)
    if any(has_yield(work) for has_yield in HAVE_YIELD):
        raise _runs_too_late("a function with a yield")


def call_work(work: Callable[..., T], *given: object) -> T:
    """Call `work` and return its result. Raises InvalidRequest when it has only returned what would run later."""
    result = work(*given)
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise _runs_too_late(f"one that returns an object of type {type(result).__name__}")
    return result


def _runs_too_late(what: str) -> InvalidRequest:
    detail = f"work: give a plain function (def), not {what}, whose statements would not run in the transaction"
    return InvalidRequest("invalid_request", detail)


async def run(engine: Engine | AsyncEngine, work: Callable[[Connection], T]) -> T:
    """Run `work` in a new database transaction without blocking the event loop, and return its result.

    `work` is a plain function, also with an AsyncEngine. Raises InvalidRequest for any other, with which nothing would
    run; the database transaction is rolled back then.
    """
    check_work(work)
    if isinstance(engine, AsyncEngine):
        async with engine.begin() as connection:
            return await connection.run_sync(partial(call_work, work))
    return await asyncio.to_thread(_in_transaction, engine, work)


def _in_transaction(engine: Engine, work: Callable[[Connection], T]) -> T:
    with engine.begin() as connection:
        return call_work(work, connection)
