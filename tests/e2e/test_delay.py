"""Tests delayed messages on real nodes: they survive kill -9 of the leader and of all nodes, and come once, not too
early.
"""

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keelmq import (
    Admin,
    Connection,
    Decision,
    Message,
    Outcome,
    Producer,
    ReceivedMessage,
    Transaction,
    TransactionProducer,
)
from keelmq.cli.app import app
from keelmq.consuming.group_session import pull
from tests.e2e import fixtures
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.undisturbed import Disturbed, undisturbed
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

LATE = "were delivered late"

own_cluster = fixtures.own_cluster()


def now_ms() -> int:
    return int(time.time() * 1000)


async def read(connection: Connection, topic: str, count: int) -> list[ReceivedMessage]:
    """Return the messages of queue 0, once there are `count` or more."""
    found: list[ReceivedMessage] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            pulled = await pull(
                connection, (topic, 0), len(found), max_messages=1_000, max_bytes=1 << 20, wait_ms=5_000
            )
            found += pulled.messages
    return found


async def until(timestamp_ms: int) -> None:
    while now_ms() <= timestamp_ms:
        await asyncio.sleep(0.05)


async def test_timers_survive_the_leader(own_cluster: ClusterProcess) -> None:
    connection = Connection(own_cluster.servers, call_timeout_ms=CALL_PATIENCE_MS)
    await Admin(connection).put_topic("t", queues=1, type="delay")
    due_ms: dict[bytes, int] = {}
    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        begin_ms = now_ms()
        for wave in range(2):  # one wave before the leader dies, one without a leader
            sends = []
            for number in range(100):
                body = f"{wave}-{number}".encode()
                due_ms[body] = begin_ms + 4_000 + 20 * ((number * 37) % 100)
                sends.append(asyncio.create_task(producer.send("t", body, deliver_at_ms=due_ms[body])))
            if wave == 1:
                old = await asyncio.to_thread(own_cluster.wait_leader)
                old.kill()
            await asyncio.gather(*sends)
    old.start()
    found = await read(connection, "t", len(due_ms))
    assert sorted(message.body for message in found) == sorted(due_ms)
    assert all(message.stored_at_ms >= due_ms[message.body] for message in found)
    # Messages due at one time may come in any order, and messages that came after their time come at once.
    assert [message.stored_at_ms for message in found] == sorted(message.stored_at_ms for message in found)
    await asyncio.to_thread(own_cluster.wait_ready)
    await asyncio.to_thread(own_cluster.wait_same_state)
    assert (await Admin(connection).topic("t")).queue_offsets[0].max_offset == len(due_ms)
    connection.close()


def test_what_became_due_while_nobody_was_there_is_delivered_and_reported(tmp_path: Path) -> None:
    delays_ms = iter((2_000, 10_000, 30_000, 60_000))  # a busy machine takes time to be killed before it

    def once(directory: Path) -> None:
        with ClusterProcess(directory, nodes=3) as cluster:
            asyncio.run(become_due_while_nobody_is_there(cluster, next(delays_ms)))

    undisturbed(once, tmp_path)


async def become_due_while_nobody_is_there(cluster: ClusterProcess, delay_ms: int) -> None:
    connection = Connection(cluster.servers, call_timeout_ms=CALL_PATIENCE_MS)
    await Admin(connection).put_topic("t", queues=1)
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        due_ms = now_ms() + delay_ms
        for number in range(3):
            await producer.send("t", str(number).encode(), deliver_at_ms=due_ms + number)
        await producer.send("t", b"tomorrow", deliver_at_ms=due_ms + 86_400_000)
    for node in cluster.nodes.values():
        node.kill()
    killed_ms = now_ms()
    await until(due_ms + 2_000)
    cluster.start()
    found = await read(connection, "t", 3)
    assert [message.body for message in found] == [b"0", b"1", b"2"]
    assert all(message.stored_at_ms >= due_ms for message in found)

    def reports() -> list[str]:
        lines = [line for node in cluster.nodes.values() for line in node.output().splitlines()]
        return [line for line in lines if LATE in line]

    if found[0].stored_at_ms <= killed_ms:
        raise Disturbed("a message was delivered before the nodes were killed")
    async with asyncio.timeout(PATIENCE_S):
        while not reports():
            await asyncio.sleep(0.05)
    (report,) = reports()
    assert "3 delayed messages" in report
    waiting = await Admin(connection).scheduled("t")
    assert [message.deliver_at_ms for message in waiting.messages] == [due_ms + 86_400_000]
    connection.close()


async def test_what_was_taken_back_stays_so(own_cluster: ClusterProcess) -> None:
    connection = Connection(own_cluster.servers, call_timeout_ms=CALL_PATIENCE_MS)
    await Admin(connection).put_topic("t", queues=1)
    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        kept, gone = await asyncio.gather(
            producer.send("t", b"kept", delay_ms=3_600_000),
            producer.send("t", b"gone", delay_ms=3_600_000, message_id="reminder:1"),
        )
        assert (kept.offset, gone.message_id) == (None, "reminder:1")
        assert await producer.cancel("t", "reminder:1")
        (await asyncio.to_thread(own_cluster.wait_leader)).kill()
        assert await producer.cancel("t", "reminder:1"), "the new leader knows that it was taken back"
        assert not await producer.cancel("t", "reminder:2")
        assert await producer.cancel("t", kept.message_id)
        moved = await producer.send("t", b"moved", deliver_at_ms=now_ms() - 1_000, message_id="reminder:1")
        assert (moved.duplicate, moved.offset) == (False, 0)
        assert not await producer.cancel("t", "reminder:1"), "too late"
    for node in own_cluster.alive():
        reply = await asyncio.to_thread(node.request, "GET", "/v1/topics/t/scheduled")
        assert reply.status == 307 or reply.json()["messages"] == []
    assert [message.body for message in await read(connection, "t", 1)] == [b"moved"]
    connection.close()


async def test_delay_counts_from_the_commit_across_a_failover(own_cluster: ClusterProcess) -> None:
    connection = Connection(own_cluster.servers, call_timeout_ms=CALL_PATIENCE_MS)
    await Admin(connection).put_topic("t", queues=1, type="transaction")

    async def check(transaction: Transaction) -> Decision:
        return Decision.COMMIT

    async def fail_over(transaction: Transaction) -> None:
        (await asyncio.to_thread(own_cluster.wait_leader)).kill()
        await asyncio.to_thread(own_cluster.wait_leader, own_cluster.alive())

    messages = [
        Message(topic="t", body=b"later", delay_ms=1_500),
        Message(topic="t", body=b"past", deliver_at_ms=now_ms()),
    ]
    async with TransactionProducer(
        own_cluster.servers, group="g", check=check, send_timeout_ms=60_000, decision_timeout_ms=60_000
    ) as producer:
        result = await producer.execute(messages, fail_over)
    assert result.outcome is Outcome.COMMITTED
    later, past = result.positions
    assert (later.offset, past.offset, past.deliver_at_ms) == (None, 0, None)
    transaction = await Admin(connection).transaction(result.transaction_id)
    assert later.deliver_at_ms is not None
    assert transaction.decided_at_ms is not None
    assert later.deliver_at_ms == transaction.decided_at_ms + 1_500
    found = await read(connection, "t", 2)
    assert [message.body for message in found] == [b"past", b"later"]
    assert found[1].stored_at_ms >= later.deliver_at_ms
    assert found[1].transaction_id == result.transaction_id
    position = (await Admin(connection).transaction(result.transaction_id)).positions[0]
    assert (position.offset, position.deliver_at_ms) == (1, later.deliver_at_ms)
    connection.close()


def test_delay_on_the_command_line(cluster: ClusterProcess) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        environment = {"KEELMQ_SERVERS": cluster.servers, "COLUMNS": "200"}
        result = CliRunner(env=environment).invoke(app, list(arguments))
        assert result.exit_code == code, result.output
        return result.output

    run("topic", "create", "reminders", "--queues", "1", "--type", "delay")
    sent = json.loads(run("send", "reminders", "a", "--delay", "2h", "--message-id", "a", "--json"))
    assert sent["offset"] is None
    assert sent["deliver_at_ms"] == sent["receipt"]["timestamp_ms"] + 7_200_000
    assert "due 2" in run("send", "reminders", "b", "--delay-level", "17", "--message-id", "b")
    in_an_hour = str(now_ms() + 3_600_000)
    run("send", "reminders", "c", "--at", in_an_hour, "--message-id", "c")
    run("send", "reminders", "d", "--delay", "1h", "--at", in_an_hour, code=2)
    run("send", "reminders", "d", "--delay", "soon", code=2)
    run("send", "reminders", "d", "--delay", "41d", code=2)
    run("send", "reminders", "d", "--delay-level", "19", code=2)
    assert "topic_type_mismatch" in run("send", "reminders", "now", code=1)
    listed = json.loads(run("scheduled", "list", "reminders", "--json"))
    assert {message["message_id"] for message in listed["messages"]} == {"a", "b", "c"}
    assert listed["messages"][-1]["message_id"] == "a"
    table = run("scheduled", "list", "reminders", "--limit", "2")
    assert "there are more: --after" in table
    assert "will not be delivered" in run("scheduled", "cancel", "reminders", "b")
    assert "not_scheduled" in run("scheduled", "cancel", "reminders", "nobody", code=1)
    listed = json.loads(run("scheduled", "list", "reminders", "--json"))
    assert [message["message_id"] for message in listed["messages"]] == ["c", "a"]
