"""SQL outbox: the database transaction itself records that it was committed, and the check reads the record back.

    outbox.create_tables(engine)
    async with TransactionProducer(servers, "orders", check=outbox.checker(engine)) as producer:
        await outbox.execute(producer, engine, message, debit)      # debit(connection, transaction): SQL statements

`record` writes the transaction's id in the same database transaction as the application's changes: both are committed
or neither is. The check does not only look, it *fences*: it inserts `rolled_back` for an id that is not recorded. A
producer that is still in the middle of its database transaction then either makes the check wait (the unique index, or
SQLite's write lock), or fails in `record` afterwards. At no moment can both win.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, Column, Connection, Engine, String, Table, delete, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from keelmq import sql
from keelmq.errors import InvalidRequest
from keelmq.limits import TRANSACTION_ID_LENGTH_MAX, check_transaction_id
from keelmq.line_log import log
from keelmq.message import Message
from keelmq.sql import Executor
from keelmq.transactions.decision import CheckHandler, Decision, RollbackTransaction, Transaction
from keelmq.transactions.transaction import TransactionProducer, TransactionResult

LOCK_TIMEOUT_MS: Final = 2_000
# A row must outlive the first check of its transaction: check_after_ms may be 7 days, the check may come a day later,
# and nothing of the CLOCK_MARGIN_MS before it may be purged.
KEEP_MS_MIN: Final = 9 * 24 * 3_600_000
CLOCK_MARGIN_MS: Final = 24 * 3_600_000
"""Allowed difference between the clock of the cluster and those of the processes that record and purge."""

COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
PURGED_ID: Final = "purged.before"
"""The row whose state says before when rows were purged. No transaction has its id, which has a dot."""
NEVER_MS: Final = (1 << 63) - 1
"""Time of that row: no process purges it, whatever version of the SDK it runs."""

table = Table(
    "keelmq_outbox",
    sql.metadata,
    Column("transaction_id", String(TRANSACTION_ID_LENGTH_MAX), primary_key=True),
    Column("state", String(16), nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
)

Work = Callable[[Connection, Transaction], object]


class Fenced(RollbackTransaction):
    """Raised when a check already recorded the transaction as rolled back: the database transaction must not commit."""


class AlreadyCommitted(Exception):
    """Raised when this transaction id is already recorded as committed: its statements must not run twice.

    Not a RollbackTransaction: if the first database transaction was committed, its messages are due, and the check will
    find that.
    """


def create_tables(engine: Engine | Connection) -> None:
    """Create the table if it is missing; several instances of a service may do so at once.

    With an AsyncConnection: `await connection.run_sync(create_tables)`.
    """
    sql.create_table(engine, table)


def record(executor: Executor, transaction_id: str) -> None:
    """Record, in the caller's database transaction, that `transaction_id` commits with it.

    Call it before the other statements, so that a fenced transaction fails early. Raises Fenced or AlreadyCommitted
    (let them propagate: the database transaction has to be rolled back), InvalidRequest for a connection in autocommit
    mode, and SQLAlchemy's errors. A second call in the same database transaction raises AlreadyCommitted too; only
    `check` tells the outcome then.
    """
    check_transaction_id(transaction_id)
    sql.refuse_autocommit(executor)
    row = {"transaction_id": transaction_id, "state": COMMITTED, "created_at_ms": sql.now_ms()}
    if not sql.insert_if_absent(executor, table, row):
        if _state(executor, transaction_id) == COMMITTED:
            raise AlreadyCommitted(f"transaction {transaction_id} was committed before")
        raise Fenced(f"transaction {transaction_id} was rolled back by a check")


def check(engine: Engine, transaction_id: str, prepared_at_ms: int | None = None) -> Decision:
    """Return the final outcome of `transaction_id`; this call fences an id that is not recorded.

    Returns UNKNOWN when a database transaction holds the row or the lock for longer than 2 s, or the database cannot be
    reached; and for an id that is not recorded when its row may have been purged, as `prepared_at_ms` of the check
    tells: give it where rows are purged. The call blocks; `checker` returns an async check handler.
    """
    try:
        with engine.begin() as connection:
            return _fence(connection, transaction_id, prepared_at_ms)
    except DBAPIError as exc:
        return _unknown(transaction_id, exc)


def checker(engine: Engine | AsyncEngine) -> CheckHandler:
    """Return a check handler for TransactionProducer that answers from the outbox in `engine`'s database."""

    async def answer(transaction: Transaction) -> Decision:
        try:
            return await sql.run(
                engine, lambda connection: _fence(connection, transaction.id, transaction.prepared_at_ms)
            )
        except DBAPIError as exc:
            return _unknown(transaction.id, exc)

    return answer


async def execute(
    producer: TransactionProducer,
    engine: Engine | AsyncEngine,
    messages: Message | Sequence[Message],
    work: Work,
    *,
    transaction_id: str | None = None,
    check_after_ms: int | None = None,
) -> TransactionResult:
    """Run `producer.execute` with `work(connection, transaction)` as the local transaction.

    `work` is a plain function, also with an AsyncEngine (InvalidRequest otherwise). It runs in one database transaction
    together with `record`, which it must not call itself; with an Engine it runs in a thread. It raises
    RollbackTransaction to roll back the messages and the database transaction. Any other exception rolls the database
    transaction back, leaves the messages to the check (which will find them rolled back) and is raised again.
    """
    sql.check_work(work)

    async def local(transaction: Transaction) -> Decision:
        def both(connection: Connection) -> None:
            record(connection, transaction.id)
            sql.call_work(work, connection, transaction)

        try:
            await sql.run(engine, both)
        except AlreadyCommitted:
            # Only a new database transaction can tell who recorded the row: a `work` that calls `record` itself meets
            # its own row, which is rolled back by now.
            decision = await checker(engine)(transaction)
            log.warning("transaction %s was recorded before; the database says: %s", transaction.id, decision)
            return decision
        return Decision.COMMIT

    return await producer.execute(messages, local, transaction_id=transaction_id, check_after_ms=check_after_ms)


def purge(executor: Executor, older_than_ms: int) -> int:
    """Delete rows older than `older_than_ms` and return their number.

    Raises InvalidRequest below 9 days, because a check may still ask for younger rows. A check that asks for a
    transaction which is older than what was purged, because nobody could be asked for so long, is answered UNKNOWN.
    """
    if older_than_ms < KEEP_MS_MIN:
        raise InvalidRequest("invalid_request", f"older_than_ms must be at least {KEEP_MS_MIN} (9 days)")
    before_ms = sql.now_ms() - older_than_ms
    _note_purged(executor, before_ms)
    deleted: Any = executor.execute(delete(table).where(table.c.created_at_ms < before_ms))
    return int(deleted.rowcount)


def _note_purged(executor: Executor, before_ms: int) -> None:
    """Note, for checks, before when rows are purged; the latest such time stays."""
    state = f"{before_ms:016d}"  # of one length, so that texts compare as the numbers do
    row = {"transaction_id": PURGED_ID, "state": state, "created_at_ms": NEVER_MS}
    if not sql.insert_if_absent(executor, table, row):
        earlier = (table.c.transaction_id == PURGED_ID) & (table.c.state < state)
        executor.execute(update(table).where(earlier).values(state=state))


def _fence(connection: Connection, transaction_id: str, prepared_at_ms: int | None) -> Decision:
    check_transaction_id(transaction_id)
    with _LockTimeout(connection):
        row = {"transaction_id": transaction_id, "state": ROLLED_BACK, "created_at_ms": sql.now_ms()}
        if not sql.insert_if_absent(connection, table, row):
            state = _state(connection, transaction_id)
            if state is None:  # purged since
                return Decision.UNKNOWN
            return Decision.COMMIT if state == COMMITTED else Decision.ROLLBACK
        if not prepared_at_ms or not _may_be_purged(connection, prepared_at_ms):
            return Decision.ROLLBACK
        connection.execute(delete(table).where(table.c.transaction_id == transaction_id))
        log.error("transaction %s: its row may have been purged; an operator has to decide it", transaction_id)
        return Decision.UNKNOWN


def _may_be_purged(connection: Connection, prepared_at_ms: int) -> bool:
    """Return whether the row of a transaction that was prepared then may have been purged.

    Asked after the insert, which waits for a purge that deletes the row: its note is seen then."""
    before = _state(connection, PURGED_ID)
    return before is not None and prepared_at_ms < int(before) + CLOCK_MARGIN_MS


def _unknown(transaction_id: str, error: DBAPIError) -> Decision:
    log.warning("transaction %s: the database does not tell at the moment: %s", transaction_id, error.orig)
    return Decision.UNKNOWN


def _state(executor: Executor, transaction_id: str) -> str | None:
    found = executor.execute(select(table.c.state).where(table.c.transaction_id == transaction_id)).scalar()
    return str(found) if found is not None else None


class _LockTimeout:
    """Bounds the lock waits of the statements inside to 2 s, and restores the connection's own setting afterwards."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._before: int | None = None

    def __enter__(self) -> None:
        if self._connection.dialect.name == "postgresql":
            self._connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"))
        elif self._connection.dialect.name == "sqlite":
            self._before = self._connection.execute(text("PRAGMA busy_timeout")).scalar_one()
            self._connection.execute(text(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_MS}"))

    def __exit__(self, *_: object) -> Literal[False]:
        if self._before is not None:
            self._connection.execute(text(f"PRAGMA busy_timeout = {int(self._before)}"))
        return False
