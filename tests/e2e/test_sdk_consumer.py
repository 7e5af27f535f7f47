"""Tests consumers against real brokers: nothing is committed before it is processed, and nothing is left out."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from keelmq import Admin, Connection, Consumer, Producer, ReceivedMessage, inbox, sql
from keelmq.errors import InvalidRequest, TopicNotFound
from tests.e2e.cluster_process import ClusterProcess, until
from tests.e2e.fixtures import fresh_topic
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

topic = fresh_topic(queues=4)


async def fill(connection: Connection, topic: str, count: int, **options: Any) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        await asyncio.gather(*(producer.send(topic, str(n).encode(), **options) for n in range(count)))


async def committed(connection: Connection, group: str) -> dict[int, int]:
    return {each.queue: each.offset for each in (await Admin(connection).group(group)).offsets}


def vanish(consumer: Consumer) -> None:
    """Stop like a process that is killed: nothing is committed, nobody leaves the group. The consumer must still be
    closed.
    """
    for reader in consumer._queues.readers.values():
        reader.begin_stop()
    for task in consumer._tasks:
        task.cancel()


def rewarded(engine: Engine) -> list[int]:
    """Return the orders in the table `points`, sorted."""
    with engine.connect() as database:
        return [int(row[0]) for row in database.execute(text("SELECT order_id FROM points ORDER BY order_id"))]


class Collector:
    """A handler that collects bodies; it raises for messages for which `fail` returns True."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fail: Callable[[ReceivedMessage], bool] = lambda message: False

    async def __call__(self, message: ReceivedMessage) -> None:
        if self.fail(message):
            raise ValueError("not now")
        self.bodies.append(message.body)

    def numbers(self) -> list[int]:
        return sorted(int(body) for body in self.bodies)


async def test_every_message_once_and_the_rest_later(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 300)
    seen = Collector()
    async with Consumer([], topic, topic, seen, start="earliest", connection=connection, concurrency=4):
        await until(lambda: len(seen.bodies) == 300)
    assert sum((await committed(connection, topic)).values()) == 300
    assert (await Admin(connection).group(topic)).members == ()
    await fill(connection, topic, 10)
    again = Collector()
    async with Consumer([], topic, topic, again, start="earliest", connection=connection):
        await until(lambda: len(again.bodies) == 10)
    assert seen.numbers() == list(range(300))
    assert again.numbers() == list(range(10))


async def test_a_queue_is_handled_in_order_by_default(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 100, queue=1)
    seen = Collector()
    async with Consumer([], topic, topic, seen, start="earliest", connection=connection, concurrency=8):
        await until(lambda: len(seen.bodies) == 100)
    assert [int(body) for body in seen.bodies] == list(range(100))


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_failing_handler_holds_its_queue_back_and_is_tried_again(
    connection: Connection, topic: str, ordered: bool
) -> None:
    """Message 5 of queue 0 fails at first: nothing behind it is committed, whatever else was processed."""
    await fill(connection, topic, 20, queue=0)
    await fill(connection, topic, 20, queue=1)
    attempts = 0
    seen = Collector()

    def fail(message: ReceivedMessage) -> bool:
        nonlocal attempts
        bad = message.queue == 0 and message.offset == 5 and attempts < 3
        attempts += bad
        return bad

    seen.fail = fail
    consumer = Consumer(
        [],
        topic,
        topic,
        seen,
        start="earliest",
        connection=connection,
        concurrency=4,
        ordered=ordered,
        on_error="block",
    )
    async with consumer:
        await until(lambda: attempts >= 2)
        places = await committed(connection, topic)
        assert places.get(0, 0) <= 5
        await until(lambda: len(seen.bodies) == 40)
    assert attempts == 3
    assert await committed(connection, topic) == {0: 20, 1: 20, 2: 0, 3: 0}


async def test_a_message_whose_handler_was_cut_off_is_delivered_again(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 3, queue=0)
    entered = asyncio.Event()
    finished: list[int] = []

    async def stuck(message: ReceivedMessage) -> None:
        if message.offset == 1:
            entered.set()
            await asyncio.Event().wait()
        finished.append(message.offset)

    async with Consumer(
        [], topic, topic, stuck, start="earliest", connection=connection, close_timeout_ms=50, commit_interval_ms=0
    ):
        await asyncio.wait_for(entered.wait(), PATIENCE_S)
    assert finished == [0]
    assert (await committed(connection, topic))[0] == 1
    rest: list[int] = []
    async with Consumer([], topic, topic, connection=connection) as consumer:
        async for message in consumer:
            rest.append(message.offset)
            if len(rest) == 2:
                break
    assert rest == [1, 2]
    assert (await committed(connection, topic))[0] == 2, "the message at which the loop was left is not finished"


async def test_close_lets_a_running_handler_end_and_commits_it(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 5, queue=0)
    entered, release = asyncio.Event(), asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        entered.set()
        await release.wait()

    consumer = Consumer([], topic, topic, slow, start="earliest", connection=connection)
    await consumer.start()
    await asyncio.wait_for(entered.wait(), PATIENCE_S)
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    release.set()
    await closing
    assert (await committed(connection, topic))[0] == 1


async def test_a_cancelled_run_closes_too(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 5)
    seen = Collector()
    running = asyncio.create_task(Consumer([], topic, topic, seen, start="earliest", connection=connection).run())
    await until(lambda: len(seen.bodies) == 5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sum((await committed(connection, topic)).values()) == 5
    assert (await Admin(connection).group(topic)).members == ()


async def test_batches(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 100, queue=2)
    batches: list[list[int]] = []

    async def handle(messages: Sequence[ReceivedMessage]) -> None:
        batches.append([message.offset for message in messages])

    async with Consumer(
        [], topic, topic, batch_handler=handle, max_messages=7, start="earliest", connection=connection
    ):
        await until(lambda: sum(map(len, batches)) == 100)
    assert list(itertools.chain(*batches)) == list(range(100))
    assert max(map(len, batches)) == 7


async def test_where_a_new_group_begins(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 10, queue=0)
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        middle = await producer.send(topic, b"100", queue=0)
        await producer.send(topic, b"101", queue=0)
        for start, expected in (("earliest", 12), (middle.receipt.timestamp_ms, 2), ("latest", 0)):
            seen = Collector()
            group = f"{topic}-{start}"
            async with Consumer([], group, topic, seen, start=start, connection=connection):  # type: ignore[arg-type]
                after = await producer.send(topic, b"102", queue=1)
                await until(lambda seen=seen: b"102" in seen.bodies)  # type: ignore[misc]
            assert after.queue == 1
            of_queue_0 = [body for body in seen.bodies if body != b"102"]
            assert len(of_queue_0) == expected, start


async def test_latest_is_remembered_from_the_first_moment(connection: Connection, topic: str) -> None:
    """A group that began at the end and saw nothing goes on from there, not from a later end."""
    await fill(connection, topic, 10)
    seen = Collector()
    async with Consumer([], topic, topic, seen, connection=connection):
        pass
    await fill(connection, topic, 3)
    async with Consumer([], topic, topic, seen, connection=connection):
        await until(lambda: len(seen.bodies) == 3)
    assert seen.numbers() == [0, 1, 2]


async def test_what_is_before_the_beginning_of_a_group_was_skipped_not_consumed(
    connection: Connection, topic: str
) -> None:
    seen = Collector()
    async with Producer([], connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        await producer.send(topic, b"0", queue=0, message_id=f"{topic}-before")
        async with Consumer([], topic, topic, seen, connection=connection):
            await producer.send(topic, b"1", queue=0, message_id=f"{topic}-after")
            await until(lambda: len(seen.bodies) == 1)
    admin = Admin(connection)
    names = []
    for message_id in (f"{topic}-before", f"{topic}-after"):
        (trace,) = await admin.trace(message_id, topic=topic)
        names.append([event.event for event in trace.events if event.group == topic])
    assert names == [["skipped"], ["consumed"]]


async def test_two_members_share_the_queues_and_take_over(connection: Connection, topic: str) -> None:
    seen = Collector()
    first = Consumer([], topic, topic, seen, start="earliest", connection=connection, session_timeout_ms=60_000)
    await first.start()
    assert len(first.assignment) == 4
    second = Consumer([], topic, topic, seen, start="earliest", connection=connection, session_timeout_ms=60_000)
    await second.start()
    await until(lambda: len(first.assignment) == 2 and len(second.assignment) == 2)
    assert sorted(first.assignment + second.assignment) == [(topic, queue) for queue in range(4)]
    await fill(connection, topic, 100)
    await until(lambda: len(set(seen.bodies)) == 100)
    await first.close()
    await until(lambda: len(second.assignment) == 4)
    await fill(connection, topic, 1, queue=first.assignment[0][1])
    await until(lambda: seen.bodies.count(b"0") == 2)
    await second.close()
    assert seen.numbers() == [0, *range(100)], "no message was processed twice in a clean hand-over"


async def test_a_reset_makes_running_members_start_again(connection: Connection, topic: str) -> None:
    await fill(connection, topic, 50)
    seen = Collector()
    async with Consumer(
        [], topic, topic, seen, start="earliest", connection=connection, session_timeout_ms=60_000
    ) as consumer:
        await until(lambda: len(seen.bodies) == 50)
        async with asyncio.timeout(PATIENCE_S):
            while sum((await committed(connection, topic)).values()) < 50:
                await asyncio.sleep(0.01)
        await Admin(connection).reset_group(topic, topic, to="earliest")
        await until(lambda: len(seen.bodies) == 100)
        assert len(consumer.assignment) == 4
    assert seen.numbers() == sorted([*range(50), *range(50)])


async def test_new_queues_of_a_topic_are_read_from_their_beginning(connection: Connection, topic: str) -> None:
    seen = Collector()
    async with Consumer([], topic, topic, seen, connection=connection, session_timeout_ms=1_000) as consumer:
        await Admin(connection).put_topic(topic, queues=6)
        await fill(connection, topic, 5, queue=5)
        await until(lambda: len(consumer.assignment) == 6 and len(seen.bodies) == 5)
    assert seen.numbers() == [0, 1, 2, 3, 4]


async def test_a_topic_that_is_made_anew_is_read_from_its_beginning(connection: Connection, topic: str) -> None:
    seen = Collector()
    async with Consumer([], topic, topic, seen, connection=connection, session_timeout_ms=1_000):
        await fill(connection, topic, 10)
        await until(lambda: len(seen.bodies) == 10)
        await Admin(connection).delete_topic(topic)
        await Admin(connection).put_topic(topic, queues=4)
        await fill(connection, topic, 5)
        await until(lambda: len(seen.bodies) == 15)


async def test_a_session_that_was_lost_is_joined_again(connection: Connection, topic: str) -> None:
    seen = Collector()
    consumer = Consumer([], topic, topic, seen, start="earliest", connection=connection, session_timeout_ms=1_000)
    async with consumer:
        await connection.call("DELETE", f"/v1/groups/{topic}/members/{consumer.member_id}")
        await fill(connection, topic, 20)
        async with asyncio.timeout(PATIENCE_S):
            while sum((await committed(connection, topic)).values()) < 20:
                await asyncio.sleep(0.01)
    assert set(seen.numbers()) == set(range(20))


async def test_bad_input(connection: Connection, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        await Consumer([], topic, "no-such-topic", Collector(), connection=connection).start()
    for arguments, options in (
        (("bad group", topic), {}),
        (("", topic), {}),
        (("g", ""), {}),
        (("g", []), {}),
        (("g", topic), {"start": -1}),
        (("g", topic), {"max_messages": 0}),
        (("g", topic), {"handler": Collector(), "batch_handler": Collector()}),
    ):
        with pytest.raises(InvalidRequest):
            Consumer([], *arguments, connection=connection, **options)


async def test_effects_with_an_inbox_happen_once_though_the_leader_is_killed(
    tmp_path: Path, sqlite_engine: Engine
) -> None:
    """Delivery is at least once, through a failover and a consumer that is torn down in the middle; each effect occurs
    once.
    """
    engine = sqlite_engine
    with engine.begin() as database:
        database.execute(text("CREATE TABLE points (order_id INTEGER, amount INTEGER)"))

    async def handle(message: ReceivedMessage) -> None:
        def apply(database: Any) -> None:
            if inbox.first_time(database, "points", message):
                database.execute(text("INSERT INTO points VALUES (:id, 100)"), {"id": int(message.body)})

        await sql.run(engine, apply)

    with (
        ClusterProcess(tmp_path / "cluster", nodes=3) as cluster,
        closing(Connection(cluster.urls, call_timeout_ms=CALL_PATIENCE_MS)) as connection,
    ):
        await Admin(connection).put_topic("orders", queues=4)
        await fill(connection, "orders", 400)
        options: dict[str, Any] = {"start": "earliest", "connection": connection, "concurrency": 4}
        options["session_timeout_ms"] = 1_000
        async with Consumer([], "points", "orders", handle, **options) as first:
            await until(lambda: len(rewarded(engine)) >= 50)
            cluster.wait_leader().kill()
            await until(lambda: len(rewarded(engine)) >= 150)
            vanish(first)
            async with Consumer([], "points", "orders", handle, **options):
                await until(lambda: len(rewarded(engine)) >= 400)
    assert rewarded(engine) == list(range(400))
