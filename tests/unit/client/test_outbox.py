"""The outbox works on SQLite and PostgreSQL, above all in its races."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from keelmq import outbox
from keelmq.errors import InvalidRequest
from keelmq.limits import CHECK_AFTER_MAX_MS
from keelmq.transactions.decision import Decision, Transaction
from keelmq.transactions.transaction import Outcome
from tests.databases import balance
from tests.patience import PATIENCE_S
from tests.unit.client.test_transaction import ORDER, Broker, transactions

TX = "4b39f920a1c28884d447c708f3f858b6"


def debit(connection: Connection) -> None:
    connection.execute(text("UPDATE account SET balance = balance - 100 WHERE id = 1"))


def record(connection: Connection) -> None:
    outbox.record(connection, TX)


def fail(connection: Connection) -> None:
    raise ZeroDivisionError


def in_transaction(engine: Engine, *steps: Callable[[Connection], None]) -> None:
    with engine.begin() as connection:
        for step in steps:
            step(connection)


def transaction(transaction_id: str = TX) -> Transaction:
    return Transaction(id=transaction_id, producer_group="shop", messages=[])


def async_url(url: str) -> str:
    parsed = make_url(url)
    if parsed.drivername == "sqlite":
        parsed = parsed.set(drivername="sqlite+aiosqlite")
    return parsed.render_as_string(hide_password=False)


def test_a_recorded_transaction_is_committed(engine: Engine) -> None:
    with engine.begin() as connection:
        outbox.record(connection, TX)
        debit(connection)
    assert outbox.check(engine, TX) is Decision.COMMIT
    assert outbox.check(engine, TX) is Decision.COMMIT
    assert balance(engine) == 900


def test_a_database_rollback_is_answered_with_rollback(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        in_transaction(engine, record, debit, fail)
    assert outbox.check(engine, TX) is Decision.ROLLBACK
    assert balance(engine) == 1000


def test_a_check_fences_a_database_transaction_that_comes_later(engine: Engine) -> None:
    assert outbox.check(engine, TX) is Decision.ROLLBACK
    with pytest.raises(outbox.Fenced):
        in_transaction(engine, debit, record)
    assert balance(engine) == 1000
    assert outbox.check(engine, TX) is Decision.ROLLBACK


def test_the_same_transaction_cannot_be_done_twice(engine: Engine) -> None:
    for expected in (900, 900):
        try:
            with engine.begin() as connection:
                outbox.record(connection, TX)
                debit(connection)
        except outbox.AlreadyCommitted:
            pass
        assert balance(engine) == expected
    assert outbox.check(engine, TX) is Decision.COMMIT


@pytest.mark.parametrize("producer_commits", [True, False])
def test_a_check_during_an_open_database_transaction_never_contradicts_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, producer_commits: bool
) -> None:
    """The producer is in the middle: the check waits for the end, or says UNKNOWN, but never ROLLBACK of a commit."""
    monkeypatch.setattr(outbox, "LOCK_TIMEOUT_MS", 20_000)
    recorded, answers = threading.Event(), []
    begun = threading.Event()

    def ask() -> None:
        recorded.wait(10)
        begun.set()
        answers.append(outbox.check(engine, TX))

    asker = threading.Thread(target=ask)
    asker.start()
    with engine.connect() as connection:
        outbox.record(connection, TX)
        debit(connection)
        recorded.set()
        assert begun.wait(10)
        if engine.dialect.name == "postgresql":
            _wait_until_a_backend_waits_for_a_lock(engine)
        assert not answers
        if producer_commits:
            connection.commit()
        else:
            connection.rollback()
    asker.join(PATIENCE_S)
    assert answers == [Decision.COMMIT if producer_commits else Decision.ROLLBACK]
    assert balance(engine) == (900 if producer_commits else 1000)


def _wait_until_a_backend_waits_for_a_lock(engine: Engine) -> None:
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    deadline_s = time.monotonic() + PATIENCE_S
    # Autocommit: inside one transaction the view would not change.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.execute(waiting).scalar_one():
            assert time.monotonic() < deadline_s, "the check does not wait for the open database transaction"


def test_a_check_that_would_wait_too_long_says_unknown(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "LOCK_TIMEOUT_MS", 50)
    with engine.begin() as connection:
        outbox.record(connection, TX)
        debit(connection)
        assert outbox.check(engine, TX) is Decision.UNKNOWN
    assert outbox.check(engine, TX) is Decision.COMMIT


def test_the_lock_timeout_does_not_stay_on_the_connection(database_url: str) -> None:
    engine = create_engine(database_url, pool_size=1, max_overflow=0)
    setting = text("PRAGMA busy_timeout" if engine.dialect.name == "sqlite" else "SHOW lock_timeout")
    outbox.create_tables(engine)
    with engine.connect() as connection:
        before = connection.execute(setting).scalar_one()
    outbox.check(engine, TX)
    with engine.connect() as connection:
        assert connection.execute(setting).scalar_one() == before
    engine.dispose()


def test_many_races_leave_no_mismatch(engine: Engine) -> None:
    """Producers and checks of the same ids run at the same time: every answer agrees with the database."""
    ids = [f"tx-{number}" for number in range(40)]
    committed: set[str] = set()
    answers: dict[str, Decision] = {}
    barrier = threading.Barrier(2)

    def produce() -> None:
        for tx in ids:
            barrier.wait(30)
            try:
                with engine.begin() as connection:
                    outbox.record(connection, tx)
                    debit(connection)
                committed.add(tx)
            except outbox.Fenced:
                pass

    def ask() -> None:
        for tx in ids:
            barrier.wait(30)
            answers[tx] = outbox.check(engine, tx)

    threads = [threading.Thread(target=work) for work in (produce, ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(answers) == len(ids)
    for tx in ids:
        expected = Decision.COMMIT if tx in committed else Decision.ROLLBACK
        assert answers[tx] in (expected, Decision.UNKNOWN), tx
        assert outbox.check(engine, tx) is expected
    assert balance(engine) == 1000 - 100 * len(committed)


async def test_the_check_handler_works_with_a_synchronous_engine(engine: Engine) -> None:
    with engine.begin() as connection:
        outbox.record(connection, TX)
    handler = outbox.checker(engine)
    assert await handler(transaction()) is Decision.COMMIT
    assert await handler(transaction("other")) is Decision.ROLLBACK


async def test_asynchronous_engine_and_session(engine: Engine, database_url: str) -> None:
    made = create_async_engine(async_url(database_url))
    try:
        await _record_and_check(made)
    finally:
        await made.dispose()
    assert balance(engine) == 900


async def _record_and_check(made: AsyncEngine) -> None:
    async with AsyncSession(made) as session, session.begin():
        await session.run_sync(outbox.record, TX)
        await session.execute(text("UPDATE account SET balance = balance - 100"))
    handler = outbox.checker(made)
    assert await handler(transaction()) is Decision.COMMIT
    assert await handler(transaction("other")) is Decision.ROLLBACK
    async with made.begin() as connection:
        with pytest.raises(outbox.Fenced):
            await connection.run_sync(outbox.record, "other")


def test_a_session_records_too(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        outbox.record(session, TX)
    assert outbox.check(engine, TX) is Decision.COMMIT


async def test_an_unreachable_database_is_unknown(tmp_path: object) -> None:
    engine = create_engine("sqlite:////nonexistent/directory/test.db")
    assert outbox.check(engine, TX) is Decision.UNKNOWN
    assert await outbox.checker(engine)(transaction()) is Decision.UNKNOWN
    engine.dispose()


def test_purge_keeps_what_may_still_be_asked_for(engine: Engine) -> None:
    with engine.begin() as connection:
        outbox.record(connection, "young")
        outbox.record(connection, "old")
        ten_days_ms = 10 * 24 * 3_600_000
        connection.execute(
            outbox.table.update()
            .where(outbox.table.c.transaction_id == "old")
            .values(created_at_ms=outbox.table.c.created_at_ms - ten_days_ms)
        )
    with engine.begin() as connection:
        with pytest.raises(InvalidRequest, match="9 days"):
            outbox.purge(connection, 60_000)
        assert outbox.purge(connection, outbox.KEEP_MS_MIN) == 1
        assert connection.execute(select(func.count()).select_from(outbox.table)).scalar_one() == 2
    assert outbox.check(engine, "young") is Decision.COMMIT


async def test_a_check_that_comes_after_the_purge_of_its_row_rolls_nothing_back(engine: Engine) -> None:
    """The service was away for longer than rows are kept: it purges first, then it is asked what became of them."""
    day_ms = 24 * 3_600_000
    now_ms = int(time.time() * 1000)

    def asked(days: float, transaction_id: str) -> Transaction:
        prepared_at_ms = now_ms - int(days * day_ms)
        return Transaction(id=transaction_id, producer_group="shop", messages=[], prepared_at_ms=prepared_at_ms)

    with engine.begin() as connection:
        outbox.record(connection, TX)
        connection.execute(outbox.table.update().values(created_at_ms=now_ms - 20 * day_ms))
        assert outbox.purge(connection, 10 * day_ms) == 1
        assert outbox.purge(connection, 15 * day_ms) == 0
        assert outbox.purge(connection, 10 * day_ms) == 0
        by_an_older_sdk = outbox.table.delete().where(outbox.table.c.created_at_ms < now_ms + 10_000 * day_ms)
        assert connection.execute(by_an_older_sdk).rowcount == 0
    for _ in range(2):
        assert await outbox.checker(engine)(asked(20, TX)) is Decision.UNKNOWN
        assert outbox.check(engine, TX, now_ms - 20 * day_ms) is Decision.UNKNOWN
    assert await outbox.checker(engine)(asked(9.5, "within-the-margin")) is Decision.UNKNOWN
    assert await outbox.checker(engine)(asked(8.5, "younger")) is Decision.ROLLBACK
    with engine.begin() as connection, pytest.raises(outbox.Fenced):
        outbox.record(connection, "younger")


def test_no_purge_leaves_a_first_check_to_operators_while_it_is_a_day_late(engine: Engine) -> None:
    now_ms = int(time.time() * 1000)
    with engine.begin() as connection:
        outbox.purge(connection, outbox.KEEP_MS_MIN)
    late_ms = 23 * 3_600_000
    assert outbox.check(engine, "rolled-back", now_ms - CHECK_AFTER_MAX_MS - late_ms) is Decision.ROLLBACK


def test_a_row_that_is_purged_between_two_statements_of_a_check_rolls_nothing_back(engine: Engine) -> None:
    """SQLite has no such moment: a check holds the database's write lock from its first statement on."""
    purged = [engine.dialect.name == "sqlite"]
    with engine.begin() as connection:
        outbox.record(connection, TX)
        connection.execute(outbox.table.update().values(created_at_ms=0))

    @event.listens_for(engine, "before_cursor_execute")
    def purge(at: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("SELECT keelmq_outbox.state") and not purged[0]:
            purged[0] = True
            with engine.begin() as connection:
                assert outbox.purge(connection, outbox.KEEP_MS_MIN) == 1

    expected = Decision.COMMIT if purged[0] else Decision.UNKNOWN
    assert outbox.check(engine, TX, 1) is expected
    assert purged[0]


async def test_work_that_records_itself_is_rolled_back_and_not_published(engine: Engine) -> None:
    def work(connection: Connection, transaction: Transaction) -> None:
        debit(connection)
        outbox.record(connection, transaction.id)

    broker = Broker()
    producer, _ = transactions(broker)
    async with producer:
        result = await outbox.execute(producer, engine, ORDER, work, transaction_id=TX)
    assert balance(engine) == 1000
    assert result.outcome is Outcome.ROLLED_BACK
    assert broker.decisions == [(TX, "rollback", "producer")]
    assert outbox.check(engine, TX) is Decision.ROLLBACK


async def test_a_repeated_execute_is_published_and_not_run_again(engine: Engine) -> None:
    """The process died before it told the broker: the second one finds the row of the first."""
    in_transaction(engine, record, debit)
    broker = Broker()
    producer, _ = transactions(broker)
    async with producer:
        result = await outbox.execute(producer, engine, ORDER, lambda db, _: debit(db), transaction_id=TX)
    assert balance(engine) == 900
    assert result.outcome is Outcome.COMMITTED


@pytest.mark.parametrize("of", ["engine", "connection", "driver"])
def test_autocommit_is_refused_before_anything_is_recorded(engine: Engine, database_url: str, of: str) -> None:
    sqlite = engine.dialect.name == "sqlite"
    options: dict[str, dict[str, Any]] = {
        "engine": {"isolation_level": "AUTOCOMMIT"},
        "connection": {},
        "driver": {"connect_args": {"isolation_level": None} if sqlite else {"autocommit": True}},
    }
    made = create_engine(database_url, **options[of])
    with made.connect() as connection:
        if of == "connection":
            connection = connection.execution_options(isolation_level="AUTOCOMMIT")
        with pytest.raises(InvalidRequest, match="autocommit"):
            outbox.record(connection, TX)
        with Session(connection) as session, pytest.raises(InvalidRequest, match="autocommit"):
            outbox.record(session, TX)
    made.dispose()
    assert outbox.check(engine, TX) is Decision.ROLLBACK


async def test_autocommit_of_an_asynchronous_engine_is_refused(engine: Engine, database_url: str) -> None:
    made = create_async_engine(async_url(database_url), isolation_level="AUTOCOMMIT")
    broker = Broker()
    producer, _ = transactions(broker)
    async with producer:
        with pytest.raises(InvalidRequest, match="autocommit"):
            await outbox.execute(producer, made, ORDER, lambda db, _: debit(db), transaction_id=TX)
    await made.dispose()
    assert balance(engine) == 1000
    assert [decision for _, decision, _ in broker.decisions] == ["unknown"]
    assert outbox.check(engine, TX) is Decision.ROLLBACK


def test_sqlite_transactions_that_the_application_begins_itself_are_none(tmp_path: Path) -> None:
    """The application follows SQLAlchemy's recipe for SQLite: the driver in autocommit mode, and BEGIN by an event."""
    made = create_engine(f"sqlite:///{tmp_path / 'recipe.db'}", connect_args={"isolation_level": None})
    event.listen(made, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    outbox.create_tables(made)
    with made.connect() as connection:
        outbox.record(connection, TX)
        connection.rollback()
    assert outbox.check(made, TX) is Decision.ROLLBACK
    made.dispose()


def test_other_databases_are_refused_by_name() -> None:
    engine = create_engine("sqlite://")
    engine.dialect.name = "oracle"
    with engine.connect() as connection, pytest.raises(InvalidRequest, match="oracle"):
        outbox.record(connection, TX)
    engine.dispose()


async def test_event_loop_is_not_blocked_while_a_check_waits(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "LOCK_TIMEOUT_MS", 10_000)
    handler = outbox.checker(engine)
    connection = engine.connect()
    outbox.record(connection, TX)
    waiting = asyncio.ensure_future(handler(transaction()))
    turns = 0
    while not waiting.done() and turns < 200:
        await asyncio.sleep(0.001)
        turns += 1
    assert turns == 200, "the check did not wait for the open transaction"
    connection.commit()
    connection.close()
    assert await waiting is Decision.COMMIT
