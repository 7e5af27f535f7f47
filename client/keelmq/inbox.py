"""SQL inbox: a message's effect is applied once, even if the message is delivered repeatedly.

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

Topic and id are stored in the database transaction of the effect, so both are committed or neither is.
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
"""Maximum number of rows per INSERT. A row has four values, so this stays far below SQLite's limit of 32,766."""

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
    """Create the table if it is missing; several instances of a service may do so at once.

    With an AsyncConnection: `await connection.run_sync(create_tables)`.
    """
    sql.create_table(engine, table)


def first_time(executor: Executor, group: str, message: ReceivedMessage) -> bool:
    """Return True when `group` has not applied this message yet.

    Apply its effect then, in the same database transaction. If two consumers have the same message, the second waits
    for the database transaction of the first. A message is identified by its topic and id. Raises InvalidRequest for a
    connection in autocommit mode, and SQLAlchemy's errors.
    """
    sql.refuse_autocommit(executor)
    topic, message_id = _key(message)
    row = {"consumer_group": group, "topic": topic, "message_id": message_id, "processed_at_ms": sql.now_ms()}
    return sql.insert_if_absent(executor, table, row)


def first_times(executor: Executor, group: str, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    """Return the messages that `group` has not applied yet, in their order.

    Apply their effects in the same database transaction, which also records the messages: all or none. A message that
    appears twice is returned once. Overlapping batches wait for each other as in `first_time`. One call cannot
    deadlock, because ids are stored in a fixed order; several calls of this or `first_time` in one database transaction
    can. Raises InvalidRequest for a connection in autocommit mode, and SQLAlchemy's errors.
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
    """Delete ids older than `older_than_ms` and return their number.

    A message that can still be redelivered must keep its id. Keep ids at least for the retention of the topics, and
    longer than the age of the oldest offset a group may be reset to. Raises InvalidRequest unless `older_than_ms` is
    positive.
    """
    if older_than_ms <= 0:
        raise InvalidRequest("invalid_request", "older_than_ms must be positive")
    deleted: Any = executor.execute(delete(table).where(table.c.processed_at_ms < sql.now_ms() - older_than_ms))
    return int(deleted.rowcount)
