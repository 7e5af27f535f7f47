"""Tests transactions with a real database and real brokers: debit and message are one step."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection as Database
from sqlalchemy import Engine, create_engine, text

from keelmq import (
    Admin,
    Connection,
    Decision,
    Message,
    Outcome,
    RollbackTransaction,
    Transaction,
    TransactionProducer,
    outbox,
)
from keelmq.admin import TransactionDetail
from keelmq.errors import TransactionConflict, TransactionNotFound
from tests.databases import balance
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.fixtures import fresh_topic
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

topic = fresh_topic(queues=2)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'accounts.db'}")
    outbox.create_tables(made)
    with made.begin() as database:
        database.execute(text("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)"))
        database.execute(text("INSERT INTO account VALUES (1, 1000)"))
    yield made
    made.dispose()


def debit(database: Database, transaction: Transaction) -> None:
    database.execute(text("UPDATE account SET balance = balance - 100"))


async def visible(connection: Connection, topic: str) -> int:
    return sum(each.max_offset for each in (await Admin(connection).topic(topic)).queue_offsets)


async def wait_for_state(connection: Connection, transaction_id: str, state: str) -> TransactionDetail:
    # A check that was delivered and not answered is asked again after 30 s.
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = await Admin(connection).transaction(transaction_id)
            if found.state == state:
                return found
            await asyncio.sleep(0.02)


async def unasked(transaction: Transaction) -> Decision:
    raise AssertionError("no check was expected")


async def test_commit_and_rollback(connection: Connection, topic: str, engine: Engine) -> None:
    message = Message(topic=topic, body=b"order", keys=["order-1"])
    async with TransactionProducer(
        [], "shop", check=outbox.checker(engine), connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:
        done = await outbox.execute(producer, engine, message, debit)
        assert done.outcome is Outcome.COMMITTED
        assert await visible(connection, topic) == 1

        def refuse(database: Database, transaction: Transaction) -> None:
            debit(database, transaction)
            raise RollbackTransaction("balance too low")

        undone = await outbox.execute(producer, engine, message, refuse)
        assert undone.outcome is Outcome.ROLLED_BACK
    assert await visible(connection, topic) == 1
    assert balance(engine) == 900
    events = [event.event for event in (await Admin(connection).transaction(done.transaction_id)).timeline]
    assert events == ["prepared", "committed"]


async def test_several_messages_and_topics_become_visible_together(connection: Connection, topic: str) -> None:
    other = f"{topic}-other"
    await Admin(connection).put_topic(other)
    messages = [Message(topic=topic, body=b"1"), Message(topic=other, body=b"2"), Message(topic=topic, body=b"3")]
    async with TransactionProducer(
        [], "shop", check=unasked, connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:

        async def local(transaction: Transaction) -> None:
            assert await visible(connection, topic) + await visible(connection, other) == 0

        result = await producer.execute(messages, local)
    assert {(place.topic, place.count) for place in result.positions} == {(topic, 2), (other, 1)}
    assert (await visible(connection, topic), await visible(connection, other)) == (2, 1)


@pytest.mark.parametrize("database_commits", [True, False])
async def test_an_exception_leaves_it_to_the_check(
    connection: Connection, topic: str, engine: Engine, database_commits: bool
) -> None:
    """The exception comes after or before the database committed; the outbox knows which."""
    seen: list[str] = []
    ended = asyncio.Event()
    answer = outbox.checker(engine)

    async def check(transaction: Transaction) -> Decision:
        await ended.wait()  # an earlier check would fence what is about to be recorded
        return await answer(transaction)

    async def local(transaction: Transaction) -> None:
        seen.append(transaction.id)
        try:
            with engine.begin() as database:
                outbox.record(database, transaction.id)
                debit(database, transaction)
                if not database_commits:
                    raise ConnectionResetError
            raise ConnectionResetError
        finally:
            ended.set()

    async with TransactionProducer(
        [], "shop", check=check, connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:
        with pytest.raises(ConnectionResetError):
            await producer.execute(Message(topic=topic, body=b"x"), local, check_after_ms=0)
        await wait_for_state(connection, seen[0], "committed" if database_commits else "rolled_back")
    assert balance(engine) == (900 if database_commits else 1000)
    assert await visible(connection, topic) == (1 if database_commits else 0)


async def test_a_check_in_the_middle_of_the_local_transaction_fences_it(
    connection: Connection, topic: str, engine: Engine
) -> None:
    """The check comes before the database transaction writes anything: it must fail then, and nothing is debited."""
    asked = asyncio.Event()
    check = outbox.checker(engine)

    async def noticed(transaction: Transaction) -> Decision:
        decision = await check(transaction)
        asked.set()
        return decision

    async with TransactionProducer(
        [], "shop", check=noticed, connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:

        async def local(transaction: Transaction) -> None:
            await asyncio.wait_for(asked.wait(), PATIENCE_S)
            with engine.begin() as database:
                outbox.record(database, transaction.id)
                debit(database, transaction)

        result = await producer.execute(Message(topic=topic, body=b"x"), local, check_after_ms=0)
    assert result.outcome is Outcome.ROLLED_BACK
    assert balance(engine) == 1000
    assert await visible(connection, topic) == 0


async def test_repeating_a_transaction_by_id_does_it_once(connection: Connection, topic: str, engine: Engine) -> None:
    message = Message(topic=topic, body=b"x")
    async with TransactionProducer(
        [], "shop", check=outbox.checker(engine), connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:
        results = [
            await outbox.execute(producer, engine, message, debit, transaction_id=f"{topic}-1") for _ in range(3)
        ]
    assert {result.outcome for result in results} == {Outcome.COMMITTED}
    assert (balance(engine), await visible(connection, topic)) == (900, 1)


async def test_the_first_decision_wins(connection: Connection, topic: str) -> None:
    admin = Admin(connection)

    async def roll_back_from_outside(transaction: Transaction) -> None:
        assert (await admin.decide(transaction.id, "rollback")).state == "rolled_back"
        assert (await admin.decide(transaction.id, "rollback")).state == "rolled_back"

    async with TransactionProducer(
        [], "shop", check=unasked, connection=connection, send_timeout_ms=CALL_PATIENCE_MS
    ) as producer:
        with pytest.raises(TransactionConflict) as caught:
            await producer.execute(Message(topic=topic, body=b"x"), roll_back_from_outside)
    assert caught.value.state == "rolled_back"
    assert await visible(connection, topic) == 0
    with pytest.raises(TransactionNotFound):
        await admin.decide("no-such-transaction", "commit")


_PRODUCER = """
import asyncio, os, signal, sys
from sqlalchemy import create_engine, text
from keelmq import Message, TransactionProducer, outbox

async def main(servers, database, topic):
    engine = create_engine(database)
    async with TransactionProducer(servers, "killed", check=outbox.checker(engine)) as producer:
        async def local(transaction):
            with engine.begin() as connection:
                outbox.record(connection, transaction.id)
                connection.execute(text("UPDATE account SET balance = balance - 100"))
            print(transaction.id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)      # between the database commit and the broker's commit
        await producer.execute(Message(topic=topic, body=b"x"), local, check_after_ms=2_000)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_another_process_of_the_group_answers_for_a_killed_producer(
    connection: Connection, cluster: ClusterProcess, topic: str, engine: Engine
) -> None:
    servers = cluster.servers
    command = [sys.executable, "-c", _PRODUCER, servers, str(engine.url), topic]
    done = await asyncio.to_thread(
        subprocess.run, command, stdout=subprocess.PIPE, timeout=PATIENCE_S, env={**os.environ}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    transaction_id = done.stdout.decode().strip()
    assert (balance(engine), await visible(connection, topic)) == (900, 0)
    async with TransactionProducer([], "killed", check=outbox.checker(engine), connection=connection):
        found = await wait_for_state(connection, transaction_id, "committed")
    assert await visible(connection, topic) == 1
    assert found.timeline[-1].event == "committed"
    assert found.timeline[-1].source == "check"


async def test_checks_go_on_after_the_leader_is_killed(tmp_path: Path, engine: Engine) -> None:
    with ClusterProcess(tmp_path / "cluster", nodes=3) as cluster:
        connection = Connection(cluster.urls)
        await Admin(connection).put_topic("t")
        ids: list[str] = []

        async def leave_open(transaction: Transaction) -> Decision:
            ids.append(transaction.id)
            with engine.begin() as database:
                outbox.record(database, transaction.id)
            return Decision.UNKNOWN

        message = Message(topic="t", body=b"x")
        async with TransactionProducer(
            [], "shop", check=outbox.checker(engine), connection=connection, send_timeout_ms=CALL_PATIENCE_MS
        ) as producer:
            await producer.execute(message, leave_open, check_after_ms=3_000)
            cluster.wait_leader().kill()
            await wait_for_state(connection, ids[0], "committed")
        connection.close()
