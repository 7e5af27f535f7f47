"""SQL inbox: a message's effect is applied once, however often it is delivered.

    async def handle(message):
        def apply(connection):
            if inbox.first_time(connection, "points", message):
                connection.execute(...)                      # the effect, in the same database transaction
        await sql.run(engine, apply)

and for a batch, in one database transaction:

    async def handle(messages):                                  # Consumer(…, batch_handler=handle)
        def apply(connection):
            new = inbox.first_times(connection, "points", messages)
            connection.execute(insert(points), [row_of(message) for message in new])
        await sql.run(engine, apply)

Topic and id are stored in the database transaction of the effect, so both are there or none.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, Engine, Index, String, Table, delete

from keelmq import sql
from keelmq.errors import InvalidRequest
from keelmq.limits import TOPIC_LENGTH_MAX
from keelmq.message import ReceivedMessage
from keelmq.sql import Executor

ROWS_PER_STATEMENT: Final = 500
"""Four values each: far below the 32,766 of a statement in SQLite."""

table = Table(
    "keelmq_inbox",
    sql.metadata,
    Column("consumer_group", String(255), primary_key=True),
    Column("topic", String(TOPIC_LENGTH_MAX), primary_key=True),  # message ids are unique in their topic only
    Column("message_id", String(128), primary_key=True),
    Column("processed_at_ms", BigInteger, nullable=False),
    Index("keelmq_inbox_processed_at_ms", "processed_at_ms"),
)


def create_tables(engine: Engine | Connection) -> None:
    """Create the table if it is missing. For an AsyncConnection: `await connection.run_sync(create_tables)`."""
    table.create(engine, checkfirst=True)


def first_time(executor: Executor, group: str, message: ReceivedMessage) -> bool:
    """True when `group` has not applied this message: apply the effect now, in the same database transaction.

    Two consumers with the same message: the second waits for the first one's database transaction. A message is known
    by its topic and id. Raises InvalidRequest for a connection in autocommit mode, and SQLAlchemy's errors.
    """
    sql.refuse_autocommit(executor)
    topic, message_id = _key(message)
    row = {"consumer_group": group, "topic": topic, "message_id": message_id, "processed_at_ms": sql.now_ms()}
    return sql.insert_if_absent(executor, table, row)


def first_times(executor: Executor, group: str, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    """Those of `messages` that `group` has not applied, in their order: apply their effects now, in the same database
    transaction. They are remembered with it, all or none.

    A message that is there twice is returned once. Batches that overlap wait for each other as in `first_time`, and
    cannot deadlock in here, for ids are stored in one order; a database transaction that calls this or `first_time`
    several times can. Raises InvalidRequest for a connection in autocommit mode, and SQLAlchemy's errors.
    """
    sql.refuse_autocommit(executor)
    keys = sorted({_key(message) for message in messages})
    now_ms = sql.now_ms()
    new: set[tuple[str, str]] = set()
    for first in range(0, len(keys), ROWS_PER_STATEMENT):
        rows = [
            {"consumer_group": group, "topic": topic, "message_id": message_id, "processed_at_ms": now_ms}
            for topic, message_id in keys[first : first + ROWS_PER_STATEMENT]
        ]
        inserted = sql.insert_absent(executor, table, rows, (table.c.topic, table.c.message_id))
        new.update((topic, message_id) for topic, message_id in inserted)
    told: list[ReceivedMessage] = []
    for message in messages:
        if (key := _key(message)) in new:
            new.remove(key)
            told.append(message)
    return told


def _key(message: ReceivedMessage) -> tuple[str, str]:
    return message.topic if message.origin is None else message.origin.topic, message.message_id


def purge(executor: Executor, older_than_ms: int) -> int:
    """Delete ids older than `older_than_ms`; how many. A message that can still be redelivered must keep its id.

    Keep at least the retention of the topics, and longer than the oldest offset a group may be reset to.
    """
    if older_than_ms <= 0:
        raise InvalidRequest("invalid_request", "older_than_ms must be positive")
    deleted: Any = executor.execute(delete(table).where(table.c.processed_at_ms < sql.now_ms() - older_than_ms))
    return int(deleted.rowcount)
