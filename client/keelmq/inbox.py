"""SQL inbox: a message's effect is applied once, however often it is delivered.

    async def handle(message):
        def apply(connection):
            if inbox.first_time(connection, "points", message):
                connection.execute(...)                      # the effect, in the same database transaction
        await sql.run(engine, apply)

Topic and id are stored in the database transaction of the effect, so both are there or none.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, Connection, Engine, Index, String, Table, delete

from keelmq import sql
from keelmq.errors import InvalidRequest
from keelmq.limits import TOPIC_LENGTH_MAX
from keelmq.message import ReceivedMessage
from keelmq.sql import Executor

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
    row = {
        "consumer_group": group,
        "topic": message.topic if message.origin is None else message.origin.topic,
        "message_id": message.message_id,
        "processed_at_ms": sql.now_ms(),
    }
    return sql.insert_if_absent(executor, table, row)


def purge(executor: Executor, older_than_ms: int) -> int:
    """Delete ids older than `older_than_ms`; how many. A message that can still be redelivered must keep its id.

    Keep at least the retention of the topics, and longer than the oldest offset a group may be reset to.
    """
    if older_than_ms <= 0:
        raise InvalidRequest("invalid_request", "older_than_ms must be positive")
    deleted: Any = executor.execute(delete(table).where(table.c.processed_at_ms < sql.now_ms() - older_than_ms))
    return int(deleted.rowcount)
