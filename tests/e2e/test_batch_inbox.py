"""Tests whole batches in one database transaction each: one effect per message, however often it is delivered."""

import asyncio
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection as Database
from sqlalchemy import Engine, text

from keelmq import Admin, Connection, Consumer, ReceivedMessage, RetryLater, inbox, sql
from tests.e2e.cluster_process import ClusterProcess, until
from tests.e2e.test_sdk_consumer import fill, rewarded, vanish
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

MESSAGES = 600


async def test_batches_take_effect_once_though_they_are_given_back_and_leader_and_member_are_killed(
    tmp_path: Path, engine: Engine
) -> None:
    """Handlers fail before and after their database transaction, the leader is killed, and a member disappears."""
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

    options: dict[str, Any] = {"start": "earliest", "concurrency": 4, "max_messages": 10}
    with (
        ClusterProcess(tmp_path / "cluster", nodes=3) as cluster,
        closing(Connection(cluster.urls, call_timeout_ms=CALL_PATIENCE_MS)) as connection,
    ):
        await Admin(connection).put_topic("orders", queues=4)
        await fill(connection, "orders", MESSAGES)
        options |= {"connection": connection, "batch_handler": handle}
        async with Consumer([], "points", "orders", session_timeout_ms=2_000, **options) as first:
            await until(lambda: len(rewarded(engine)) >= 50)
            cluster.wait_leader().kill()
            await until(lambda: len(rewarded(engine)) >= 200)
            vanish(first)
            async with Consumer([], "points", "orders", **options):
                async with asyncio.timeout(PATIENCE_S):
                    while not (await Admin(connection).group("points")).offsets or any(
                        each.lag for each in (await Admin(connection).group("points")).offsets
                    ):
                        await asyncio.sleep(0.1)
                await until(lambda: len(rewarded(engine)) >= MESSAGES)
    assert rewarded(engine) == list(range(MESSAGES))
    assert known > 0, "something was delivered again after it had taken effect"
