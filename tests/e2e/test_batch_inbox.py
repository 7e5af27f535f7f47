"""Whole batches, each in one database transaction: one effect per message through everything that delivers it again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection as Database
from sqlalchemy import create_engine, text

from keelmq import Admin, Connection, Consumer, ReceivedMessage, RetryLater, inbox, sql
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.test_sdk_consumer import fill, until

pytestmark = pytest.mark.process

MESSAGES = 600
TIMEOUT_S = 120


async def test_batches_take_effect_once_though_they_are_given_back_and_leader_and_member_are_killed(
    tmp_path: Path, database_url: str
) -> None:
    """Handlers fail before and after their database transaction, the leader is killed, and a member disappears."""
    engine = create_engine(database_url)
    inbox.create_tables(engine)
    with engine.begin() as database:
        database.execute(text("CREATE TABLE points (order_id INTEGER, amount INTEGER)"))
    known = calls = 0

    def apply(database: Database, messages: Sequence[ReceivedMessage]) -> int:
        new = inbox.first_times(database, "points", messages)
        if new:
            database.execute(
                text("INSERT INTO points VALUES (:id, 100)"), [{"id": int(message.body)} for message in new]
            )
        return len(messages) - len(new)

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        nonlocal calls, known
        calls += 1
        first_try = not any(message.attempt for message in messages)
        if first_try and calls % 5 == 0:
            raise RetryLater(delay_ms=1, reason="before the database transaction")
        known += await sql.run(engine, lambda database: apply(database, messages))
        if first_try and calls % 3 == 0:
            raise RetryLater(delay_ms=1, reason="after the database transaction")

    def rows() -> list[int]:
        with engine.connect() as database:
            return [int(row[0]) for row in database.execute(text("SELECT order_id FROM points ORDER BY order_id"))]

    with ClusterProcess(tmp_path / "cluster", nodes=3) as cluster:
        connection = Connection([node.url for node in cluster.nodes.values()])
        await Admin(connection).put_topic("orders", queues=4)
        await fill(connection, "orders", MESSAGES)
        options: dict[str, Any] = {"start": "earliest", "connection": connection, "concurrency": 4, "max_messages": 10}
        first = Consumer([], "points", "orders", batch_handler=handle, session_timeout_ms=2_000, **options)
        await first.start()
        await until(lambda: len(rows()) >= 50, TIMEOUT_S)
        cluster.wait_leader().kill()
        await until(lambda: len(rows()) >= 200, TIMEOUT_S)
        # Like a process that is killed: nothing is committed, nobody leaves the group.
        for reader in first._readers.values():
            reader.begin_stop()
        for task in first._tasks:
            task.cancel()
        async with Consumer([], "points", "orders", batch_handler=handle, **options):
            async with asyncio.timeout(TIMEOUT_S):
                while (await Admin(connection).group("points"))["offsets"] == [] or any(
                    each["lag"] for each in (await Admin(connection).group("points"))["offsets"]
                ):
                    await asyncio.sleep(0.1)
            await until(lambda: len(rows()) >= MESSAGES, TIMEOUT_S)
        await first.close()
        connection.close()
    assert rows() == list(range(MESSAGES))
    assert known > 0, "something was delivered again after it had taken effect"
    engine.dispose()
