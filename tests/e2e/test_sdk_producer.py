"""Tests the producer against real brokers: acknowledged messages are there, once and in order, whatever was killed."""

import asyncio
import itertools
import re

import pytest

from keelmq import Admin, Connection, Message, Producer
from keelmq.consuming.group_session import first_offset, pull
from keelmq.errors import TopicNotFound, UnknownOutcome
from keelmq.limits import WAIT_MS_MAX
from keelmq.message import ReceivedMessage
from tests.e2e import fixtures
from tests.e2e.cluster_process import ClusterProcess
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

topic = fixtures.fresh_topic(queues=4)
own_cluster = fixtures.own_cluster()


async def read_all(connection: Connection, topic: str) -> list[ReceivedMessage]:
    info = await Admin(connection).topic(topic)
    found: list[ReceivedMessage] = []
    for queue in range(info.queues):
        place = (topic, queue)
        offset, end = await first_offset(connection, place, "earliest"), await first_offset(connection, place, "latest")
        async with asyncio.timeout(PATIENCE_S):
            while offset < end:
                # Another node may lead by now, which has not applied as much yet: then it waits.
                pulled = await pull(
                    connection, place, offset, max_messages=1_000, max_bytes=1 << 20, wait_ms=WAIT_MS_MAX
                )
                found += pulled.messages
                offset = pulled.next_offset
    return found


async def test_everything_of_a_message_comes_back(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        result = await producer.send(
            topic,
            "пример".encode(),
            tag="created",
            keys=["order-1", "ключ"],
            properties={"a": "b", "账户": "一"},
            sharding_key="account-7",
            message_id="order-1:created",
        )
        again = await producer.send(topic, "пример".encode(), sharding_key="account-7", message_id="order-1:created")
    (message,) = await read_all(connection, topic)
    assert (message.topic, message.queue, message.offset) == (topic, result.queue, result.offset)
    assert (message.body, message.tag, list(message.keys)) == ("пример".encode(), "created", ["order-1", "ключ"])
    assert (message.properties, message.sharding_key) == ({"a": "b", "账户": "一"}, "account-7")
    assert message.message_id == result.message_id == again.message_id == "order-1:created"
    assert (again.duplicate, again.queue, again.offset) == (True, result.queue, result.offset)
    assert message.stored_at_ms == result.receipt.timestamp_ms
    assert len(result.receipt.durable_on) >= 2


async def test_concurrent_sends_are_all_stored_once(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        results = await asyncio.gather(*(producer.send(topic, str(n).encode()) for n in range(2_000)))
    found = await read_all(connection, topic)
    assert sorted(int(message.body) for message in found) == list(range(2_000))
    by_place = {(message.queue, message.offset): message for message in found}
    for number, result in enumerate(results):
        assert result.offset is not None
        message = by_place[result.queue, result.offset]
        assert (message.body, message.message_id) == (str(number).encode(), result.message_id)


async def test_keys_keep_their_order(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS, max_batch_messages=7) as producer:
        await asyncio.gather(
            *(producer.send(topic, f"{n % 5}:{n}".encode(), sharding_key=f"key-{n % 5}") for n in range(500))
        )
    seen: dict[bytes, list[int]] = {}
    for message in await read_all(connection, topic):
        key, number = message.body.split(b":")
        seen.setdefault(key, []).append(int(number))
    assert {key: sorted(numbers) for key, numbers in seen.items()} == seen
    assert sum(map(len, seen.values())) == 500


async def test_a_batch_is_whole_and_in_order(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        plain = await producer.send_batch(topic, [str(n).encode() for n in range(1_000)], queue=2)
        mixed = await producer.send_batch(topic, [b"x", Message(body=b"y", message_id="own")], queue=2)
    found = [message for message in await read_all(connection, topic) if message.queue == 2]
    assert [message.body for message in found] == [str(n).encode() for n in range(1_000)] + [b"x", b"y"]
    assert plain.offset is not None
    assert mixed.offset is not None
    assert found[plain.offset + 3].message_id == plain.message_id(3)
    assert found[mixed.offset + 1].message_id == "own"


async def test_a_batch_with_known_ids_says_where_each_message_is(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        first = await producer.send(topic, b"1", message_id="a", queue=1)
        result = await producer.send_batch(
            topic, [Message(body=b"1", message_id="a"), Message(body=b"2", message_id="b")], queue=1
        )
    assert first.offset is not None
    assert [(place.message_id, place.offset, place.duplicate) for place in result.places] == [
        ("a", first.offset, True),
        ("b", first.offset + 1, False),
    ]
    assert [message.body for message in await read_all(connection, topic)] == [b"1", b"2"]


async def test_one_way(connection: Connection, topic: str) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        for number in range(100):
            producer.send_oneway(topic, str(number).encode())
    assert len(await read_all(connection, topic)) == 100


async def test_a_missing_topic(connection: Connection) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send("no-such-topic", b"x")


async def test_any_node_will_do_to_begin_with(cluster: ClusterProcess, topic: str) -> None:
    for node in cluster.nodes.values():
        async with Producer(node.url) as producer:
            assert (await producer.send(topic, b"x")).offset is not None


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_leader_that_disappears_under_load_loses_and_doubles_nothing(
    own_cluster: ClusterProcess, how: str
) -> None:
    connection = Connection(own_cluster.servers)
    await Admin(connection).put_topic("t", queues=4)
    acknowledged: dict[bytes, tuple[int, int]] = {}
    unknown: set[bytes] = set()
    stop = asyncio.Event()

    async def send_until_stopped(producer: Producer, worker: int) -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            body = f"{worker}-{number}".encode()
            try:
                result = await producer.send("t", body)
            except UnknownOutcome:
                unknown.add(body)
            else:
                assert result.offset is not None
                acknowledged[body] = (result.queue, result.offset)

    async def until(count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(acknowledged) < count:
                await asyncio.sleep(0.01)

    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        workers = [asyncio.create_task(send_until_stopped(producer, worker)) for worker in range(16)]
        await until(500)
        old = await asyncio.to_thread(own_cluster.wait_leader)
        old.kill() if how == "kill" else old.pause()
        others = [node for node in own_cluster.nodes.values() if node is not old]
        await asyncio.to_thread(own_cluster.wait_leader, others)
        await until(len(acknowledged) + 500)
        stop.set()
        await asyncio.gather(*workers)
    assert not unknown, "a failover of less than the budget must not be visible"
    found = await read_all(connection, "t")
    places = {message.body: (message.queue, message.offset) for message in found}
    assert len(places) == len(found), "a message is stored twice"
    assert places == acknowledged
    connection.close()


async def test_compressed_batches_survive_a_leader_that_is_killed(own_cluster: ClusterProcess) -> None:
    """Batches are stored as they were sent on every node, and each opens them: for the SDK, for JSON and for tags."""
    connection = Connection(own_cluster.servers)
    await Admin(connection).put_topic("t", queues=1)
    bodies = [f"order {number}: ".encode() + b"1 x book, " * 40 for number in range(600)]

    def batch(first: int) -> list[Message]:
        return [Message(body=body, tag="ab"[n % 2]) for n, body in enumerate(bodies[first : first + 200])]

    async with Producer(connection=connection, send_timeout_ms=60_000) as producer:
        await producer.send_batch("t", batch(0))
        old = await asyncio.to_thread(own_cluster.wait_leader)
        sending = asyncio.create_task(producer.send_batch("t", batch(200)))
        old.kill()
        await sending
        await producer.send_batch("t", batch(400))
    old.start()
    await asyncio.to_thread(own_cluster.wait_ready)
    await asyncio.to_thread(own_cluster.wait_same_state)
    assert [message.body for message in await read_all(connection, "t")] == bodies
    path = "/v1/topics/t/queues/0/messages?offset=0&max_messages=1000"
    for node in own_cluster.nodes.values():
        found = await asyncio.to_thread(node.request, "GET", path)
        assert [message["body"].encode() for message in found.json()["messages"]] == bodies
        tagged = await asyncio.to_thread(node.request, "GET", path + "&tags=b")
        assert [message["offset"] for message in tagged.json()["messages"]] == list(range(1, 600, 2))
        metrics = (await asyncio.to_thread(node.request, "GET", "/metrics")).body.decode()
        produced = re.search(r"^keelmq_produced_bytes_total (\S+)$", metrics, re.MULTILINE)
        assert produced is not None
        assert float(produced[1]) < sum(map(len, bodies)) / 10
    connection.close()
