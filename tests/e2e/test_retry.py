"""Tests messages that consumers cannot process, on real nodes: each comes again once, whoever leads, and ends as a dead
letter.
"""

import asyncio
import json

import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from keelmq import Admin, Connection, Consumer, Origin, Producer, ReceivedMessage, RetryLater, inbox
from keelmq.cli.app import app
from keelmq.consuming.group_session import GroupSession
from keelmq.consuming.selection import EVERYTHING
from keelmq.consuming.session_times import SessionTimes
from keelmq.errors import Forbidden, StaleGeneration
from tests.e2e import fixtures
from tests.e2e.cluster_process import ClusterProcess, until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

own_cluster = fixtures.own_cluster()
topic = fixtures.fresh_topic(queues=1)


async def fill(connection: Connection, topic: str, count: int) -> None:
    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        await producer.send_batch(topic, [str(number).encode() for number in range(count)], queue=0)


async def test_a_message_that_fails_twice_comes_again_twice_and_holds_nobody_up(
    connection: Connection, topic: str
) -> None:
    await Admin(connection).put_group(topic, retry_delays_ms=[20, 40])
    await fill(connection, topic, 10)
    seen: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        seen.append(message)
        if message.body == b"3" and message.attempt < 2:
            raise ValueError(f"attempt {message.attempt}")

    async with Consumer([], topic, topic, handle, start="earliest", connection=connection, ordered=False):
        await until(lambda: len(seen) == 12)
    tries = [message for message in seen if message.body == b"3"]
    assert [message.attempt for message in tries] == [0, 1, 2]
    assert {message.message_id for message in tries} == {tries[0].message_id}
    assert [message.origin for message in tries] == [None, Origin(topic, 0, 3), Origin(topic, 0, 3)]
    offsets = (await Admin(connection).group(topic)).offsets
    assert {each.topic: (each.offset, each.lag) for each in offsets} == {
        topic: (10, 0),
        f"%RETRY%{topic}": (2, 0),
    }


async def test_the_inbox_knows_a_message_that_comes_again(
    connection: Connection, topic: str, sqlite_engine: Engine
) -> None:
    await Admin(connection).put_group(topic, retry_delays_ms=[0])
    await fill(connection, topic, 1)
    outcomes: list[bool] = []

    async def handle(message: ReceivedMessage) -> None:
        with sqlite_engine.begin() as transaction:
            outcomes.append(inbox.first_time(transaction, topic, message))
        if message.attempt == 0:
            raise RetryLater(reason="processed, and failed after that")

    async with Consumer([], topic, topic, handle, start="earliest", connection=connection):
        await until(lambda: len(outcomes) == 2)
    assert outcomes == [True, False]


async def test_what_fails_too_often_is_a_dead_letter_with_its_history_and_is_replayed_once(
    connection: Connection, topic: str, cluster: ClusterProcess
) -> None:
    admin = Admin(connection)
    await admin.put_group(topic, retry_max_attempts=2, retry_delays_ms=[0])
    await fill(connection, topic, 3)
    healed, seen = False, [0, 0]

    async def handle(message: ReceivedMessage) -> None:
        seen[healed] += 1
        if not healed and message.body == b"1":
            raise RetryLater(reason=f"attempt {message.attempt}")

    async with Consumer([], topic, topic, handle, start="earliest", connection=connection, client_id="till"):
        async with asyncio.timeout(PATIENCE_S):
            while not (await admin.dead_letters(topic)).messages:
                await asyncio.sleep(0.01)
        healed = True
        (dead,) = (await admin.dead_letters(topic)).messages
        assert (dead.body, dead.origin, dead.attempt) == ("1", Origin(topic, 0, 1), 3)
        assert [(each.attempt, each.reason) for each in dead.history] == [
            (1, "attempt 0"),
            (2, "attempt 1"),
            (3, "attempt 2"),
        ]
        assert {each.client_id for each in dead.history} == {"till"}
        with pytest.raises(Forbidden):
            await fill(connection, f"%DLQ%{topic}", 1)
        runner, servers = CliRunner(), ["--servers", cluster.servers]
        listed = await asyncio.to_thread(runner.invoke, app, ["dlq", "list", topic, *servers])
        assert listed.exit_code == 0, listed.output
        assert "attempt 2" in listed.output
        for replayed in (1, 0):
            done = await asyncio.to_thread(
                runner.invoke, app, ["dlq", "replay", topic, "--rate", "10", "--json", *servers]
            )
            assert json.loads(done.output)["replayed"] == replayed, done.output
        await until(lambda: seen[1] == 1)
    assert seen == [5, 1]
    assert (await admin.topic(f"%RETRY%{topic}")).queue_offsets[0].max_offset == 3


async def test_a_member_of_an_older_generation_gives_nothing_back(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 1)
    sessions = [
        GroupSession(
            connection,
            topic,
            {topic: EVERYTHING},
            member_id=member,
            client_id=member,
            times=SessionTimes(60_000, call_timeout_ms_max=60_000),
        )
        for member in ("first", "second")
    ]
    old = (await sessions[0].join()).generation
    await sessions[1].join()
    message = ReceivedMessage(topic=topic, queue=0, offset=0, message_id="m", body=b"0")
    with pytest.raises(StaleGeneration):
        await sessions[0].give_back(old, [message], 0, "")
    names = [each.topic for each in await Admin(connection).topics(system=True)]
    assert f"%RETRY%{topic}" not in names


async def test_what_was_given_back_outlives_the_leader_and_comes_once(own_cluster: ClusterProcess) -> None:
    connection = Connection(own_cluster.servers)
    admin = Admin(connection)
    await admin.put_topic("orders", queues=1)
    await fill(connection, "orders", 20)
    first: list[bytes] = []
    again: list[ReceivedMessage] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.attempt:
            again.append(message)
        else:
            first.append(message.body)
            raise RetryLater(delay_ms=4_000, reason="not now")

    async with Consumer([], "g", "orders", handle, start="earliest", connection=connection, close_timeout_ms=60_000):

        async def waiting() -> int:
            topics = [each.topic for each in await admin.topics(system=True)]
            return len((await admin.scheduled("%RETRY%g")).messages) if "%RETRY%g" in topics else 0

        async with asyncio.timeout(PATIENCE_S):
            while await waiting() + len(again) < 20:
                await asyncio.sleep(0.01)
        old = await asyncio.to_thread(own_cluster.wait_leader)
        old.kill()
        await until(lambda: len(again) >= 20)
    old.start()
    await asyncio.to_thread(own_cluster.wait_ready)
    await asyncio.to_thread(own_cluster.wait_same_state)
    assert sorted(first) == sorted(message.body for message in again) == sorted(str(n).encode() for n in range(20))
    assert (await admin.topic("%RETRY%g")).queue_offsets[0].max_offset == 20
    connection.close()
