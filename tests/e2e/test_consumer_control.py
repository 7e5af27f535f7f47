"""Tests consumers that are paused, hang, or outlive their session, against real brokers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keelmq import Admin, Connection, Consumer, PopConsumer, ReceivedMessage
from keelmq.errors import ConsumeTimeout, KeelMQError, QueueLost
from tests.e2e.cluster_process import ClusterProcess, until
from tests.e2e.fixtures import fresh_topic
from tests.e2e.fixtures import own_cluster as make_own_cluster
from tests.e2e.test_sdk_consumer import Collector, committed, fill
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

topic = fresh_topic(queues=2)
own_cluster = make_own_cluster()


async def until_committed(connection: Connection, group: str, expected: dict[int, int]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await committed(connection, group) != expected:
            await asyncio.sleep(0.02)


async def test_a_paused_consumer_keeps_its_queues_and_goes_on_where_it_was(connection: Connection, topic: str) -> None:
    """Three messages are handled, then none while the consumer is paused; queues of another member are not paused."""
    seen = Collector()
    options: dict[str, Any] = {"start": "earliest", "connection": connection}
    async with Consumer([], topic, topic, seen, **options) as member:
        await fill(connection, topic, 3, queue=0)
        await until_committed(connection, topic, {0: 3, 1: 0})
        member.pause()
        await fill(connection, topic, 5, queue=0)
        await fill(connection, topic, 5, queue=1)
        generation = (await Admin(connection).group(topic)).generation
        other = Collector()
        async with Consumer([], topic, topic, other, **options) as second:  # the second member is not paused
            await until(lambda: len(second.assignment) == len(member.assignment) == 1)
            await until(lambda: len(other.bodies) == 5)
        await until(lambda: len(member.assignment) == 2)
        assert (await Admin(connection).group(topic)).generation > generation
        assert len(seen.bodies) == 3
        kept = sum((await committed(connection, topic)).values())
        assert kept == 3 + 5, "what is paused is not committed"
        member.resume()
        await until_committed(connection, topic, {0: 8, 1: 5})
    assert len(seen.bodies) == 3 + 5
    assert sorted(seen.bodies + other.bodies) == sorted(str(n).encode() for n in [*range(3), *range(5), *range(5)])


async def test_a_single_queue_is_paused(connection: Connection, topic: str) -> None:
    seen = Collector()
    async with Consumer([], topic, topic, seen, start="earliest", connection=connection) as member:
        member.pause((topic, 0))
        await fill(connection, topic, 5, queue=0)
        await fill(connection, topic, 7, queue=1)
        await until_committed(connection, topic, {0: 0, 1: 7})
        assert len(seen.bodies) == 7
        member.resume((topic, 0))
        await until_committed(connection, topic, {0: 5, 1: 7})


async def test_a_paused_group_stays_paused_across_leaders_and_restarts(own_cluster: ClusterProcess) -> None:
    own_cluster.wait_leader()
    connection = Connection(own_cluster.servers)
    admin = Admin(connection)
    await admin.put_topic("orders", queues=1)
    members, workers = Collector(), Collector()
    async with (
        Consumer([], "members", "orders", members, start="earliest", connection=connection) as consumer,
        PopConsumer(workers, topic="orders", group="workers", connection=connection, wait_ms=500) as pops,
    ):
        await fill(connection, "orders", 3)
        await until(lambda: len(members.bodies) == len(workers.bodies) == 3)
        for group in ("members", "workers"):
            done = await admin.pause_group(group, operator="ann", reason="the database is moved")
            assert done.changed
            assert done.paused is not None
        await until(lambda: consumer.group_paused and pops.group_paused)
        own_cluster.wait_leader().kill()
        own_cluster.wait_leader(among=own_cluster.alive())
        await fill(connection, "orders", 4)
        own_cluster.stop()
        own_cluster.start()
        own_cluster.wait_leader()
        found = await admin.group("members")
        assert found.paused is not None
        assert (found.paused.operator, found.paused.reason) == ("ann", "the database is moved")
        assert await consumer._session.committed() == {("orders", 0): 3}
        assert (len(members.bodies), len(workers.bodies)) == (3, 3)
        for group in ("members", "workers"):
            assert (await admin.resume_group(group)).changed
        await until(lambda: len(members.bodies) == len(workers.bodies) == 7)
        await until(lambda: not consumer.group_paused)
    assert members.numbers() == workers.numbers() == [0, 0, 1, 1, 2, 2, 3]
    connection.close()


async def test_a_handler_that_hangs_is_cut_off_and_its_message_comes_again(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 4, queue=0)
    await Admin(connection).put_group(topic, retry_max_attempts=3, retry_delays_ms=[1])
    first: list[bytes] = []
    again: list[tuple[bytes, int]] = []
    faults: list[tuple[KeelMQError, list[bytes]]] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.attempt:
            again.append((message.body, message.attempt))
        elif message.body == b"1":
            await asyncio.Event().wait()
        else:
            first.append(message.body)

    async with Consumer(
        [],
        topic,
        topic,
        handle,
        start="earliest",
        connection=connection,
        on_error="give_back",
        consume_timeout_ms=200,
        on_fault=lambda error, messages: faults.append((error, [each.body for each in messages])),
    ):
        await until(lambda: bool(again))
        await until(lambda: len(first) == 3)
    assert again == [(b"1", 1)]
    [(error, bodies)] = faults
    assert isinstance(error, ConsumeTimeout)
    assert bodies == [b"1"]


async def test_a_handler_that_outlives_its_session_is_fenced_and_told_and_another_member_takes_over(
    connection: Connection, topic: str
) -> None:
    await fill(connection, topic, 3, queue=0)
    entered, may_end = asyncio.Event(), asyncio.Event()
    finished: list[bytes] = []
    faults: list[tuple[KeelMQError, bytes]] = []

    async def slow(message: ReceivedMessage) -> None:
        entered.set()
        await may_end.wait()
        finished.append(message.body)

    def on_fault(error: KeelMQError, messages: Sequence[ReceivedMessage]) -> None:
        faults.append((error, messages[0].body))

    options: dict[str, Any] = {"start": "earliest", "connection": connection, "close_timeout_ms": 600_000}
    first = Consumer([], topic, topic, slow, on_fault=on_fault, session_timeout_ms=5_000, **options)
    await first.start()
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    # Its heartbeats end as those of a frozen process do, while its handler goes on.
    next(task for task in first._tasks if task.get_name() == "session").cancel()
    seen = Collector()
    async with Consumer([], topic, topic, seen, **options):
        await until(lambda: len(faults) > 0)
        assert not first.owns(ReceivedMessage(topic=topic, queue=0, offset=0, message_id="m", body=b""))
        await until_committed(connection, topic, {0: 3, 1: 0})
        may_end.set()
        await until(lambda: finished == [b"0"])
        await first.close()
        assert await committed(connection, topic) == {0: 3, 1: 0}
    assert seen.numbers() == [0, 1, 2]
    assert finished == [b"0"], "nothing was begun after the session"
    assert isinstance(faults[0][0], QueueLost)
    assert faults[0][1] == b"0"
