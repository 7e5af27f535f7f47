"""Tests tags and SQL92 filters with real nodes: only matching messages arrive, and offsets move on past the rest."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from keelmq import Admin, Connection, Consumer, Message, Producer, ReceivedMessage
from keelmq.errors import Conflict, InvalidFilter
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, until
from tests.e2e.fixtures import fresh_topic, shared_cluster
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

EUROPE = "price > 3 AND region = 'eu'"
MESSAGES = 300

cluster = shared_cluster()  # whose leader is killed
topic = fresh_topic(queues=3)


def message(number: int) -> Message:
    properties = {"price": str(number % 10), "region": "eu" if number % 3 else "us"}
    return Message(body=str(number).encode(), tag="AB"[number % 2], properties=properties, queue=number % 3)


def matches(number: int) -> bool:
    return number % 10 > 3 and number % 3 != 0


async def fill(connection: Connection, topic: str, numbers: range) -> None:
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        for queue in range(3):
            wanted = [message(number) for number in numbers if number % 3 == queue]
            for begin in range(0, len(wanted), 10):
                await producer.send_batch(topic, wanted[begin : begin + 10])


class Seen:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    async def __call__(self, received: ReceivedMessage) -> None:
        self.numbers.append(int(received.body))


async def lag(connection: Connection, group: str) -> int:
    return sum(each.lag for each in (await Admin(connection).group(group)).offsets)


async def test_only_what_matches_is_handled_and_the_rest_is_committed_past(connection: Connection, topic: str) -> None:
    await fill(connection, topic, range(MESSAGES))
    expected = [number for number in range(MESSAGES) if matches(number)]

    async def all_committed() -> bool:
        offsets = (await Admin(connection).group(topic)).offsets
        return len(offsets) == 3 and all(each.lag == 0 for each in offsets)

    seen = Seen()
    async with Consumer([], topic, topic, seen, start="earliest", filter=EUROPE, connection=connection, wait_ms=500):
        await until(all_committed)
    assert sorted(seen.numbers) == expected

    # Another consumer goes on from there: nothing comes twice, and new matching messages come.
    again = Seen()
    async with Consumer([], topic, topic, again, filter=EUROPE, connection=connection, wait_ms=500):
        await fill(connection, topic, range(MESSAGES, MESSAGES + 30))
        await until(lambda: len(again.numbers) >= sum(map(matches, range(MESSAGES, MESSAGES + 30))))
        await until(all_committed)
    assert sorted(again.numbers) == [number for number in range(MESSAGES, MESSAGES + 30) if matches(number)]


async def test_a_queue_of_which_nothing_matches_is_committed_to_its_end(connection: Connection, topic: str) -> None:
    await fill(connection, topic, range(60))
    seen = Seen()
    async with Consumer([], topic, topic, seen, start="earliest", filter="FALSE", connection=connection, wait_ms=200):

        async def at_end() -> bool:
            offsets = (await Admin(connection).group(topic)).offsets
            return [each.offset for each in offsets] == [20, 20, 20]

        await until(at_end)
    assert seen.numbers == []


async def test_a_message_that_fails_holds_its_queue_though_filtered_ones_follow(
    connection: Connection, topic: str
) -> None:
    """Queue 1 gets 1, 4, 7, …; 4 is the first that matches, and nothing behind it is committed."""
    await fill(connection, topic, range(60))
    failed = asyncio.Event()

    async def handle(received: ReceivedMessage) -> None:
        if received.body == b"4":
            failed.set()
            raise ValueError("not now")

    async with Consumer([], topic, topic, handle, start="earliest", filter=EUROPE, connection=connection, wait_ms=200):
        await asyncio.wait_for(failed.wait(), PATIENCE_S)

        async def others_done() -> bool:
            offsets = {each.queue: each.offset for each in (await Admin(connection).group(topic)).offsets}
            return offsets.get(0) == 20 and offsets.get(2) == 20

        await until(others_done)
    offsets = {each.queue: each.offset for each in (await Admin(connection).group(topic)).offsets}
    assert offsets[1] == 1


async def test_tags_of_one_topic_and_everything_of_another(connection: Connection, topic: str) -> None:
    other = f"{topic}-other"
    await Admin(connection).put_topic(other, queues=1)
    await fill(connection, topic, range(30))
    async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        await producer.send(other, b"1000")
    seen = Seen()
    topics = [topic, other]
    async with Consumer([], topic, topics, seen, start="earliest", tags={topic: "B || C"}, connection=connection):
        await until(lambda: len(seen.numbers) == 16)
    assert sorted(seen.numbers) == [*range(1, 30, 2), 1000]


def pull_from(node: NodeProcess, topic: str, queue: int) -> list[int] | None:
    """Return a node's messages by plain HTTP; None while it has not applied everything yet."""
    query = urlencode({"offset": 0, "max_messages": 100, "filter": EUROPE})
    reply = node.request("GET", f"/v1/topics/{topic}/queues/{queue}/messages?{query}")
    if reply.status != 200 or reply.json()["max_offset"] < 10:
        return None
    assert reply.json()["next_offset"] == 10
    return [int(each["body"]) for each in reply.json()["messages"]]


async def test_every_node_filters_for_plain_http(cluster: ClusterProcess, connection: Connection, topic: str) -> None:
    await fill(connection, topic, range(30))
    for node in cluster.nodes.values():
        for queue in range(3):
            await until(lambda node=node, queue=queue: pull_from(node, topic, queue) is not None)  # type: ignore[misc]
            expected = [number for number in range(queue, 30, 3) if matches(number)]
            assert pull_from(node, topic, queue) == expected


async def test_a_bad_filter_is_refused_where_it_is_wrong(connection: Connection, topic: str) -> None:
    with pytest.raises(InvalidFilter) as caught:
        await Consumer([], topic, topic, Seen(), filter="price >> 3", connection=connection).start()
    assert caught.value.position == 8
    assert caught.value.detail.endswith("price >> 3\n       ^")


async def test_another_selection_is_refused_also_after_the_leader_was_killed(
    cluster: ClusterProcess, connection: Connection, topic: str
) -> None:
    await fill(connection, topic, range(30))
    seen = Seen()
    options: dict[str, Any] = {"start": "earliest", "connection": connection, "wait_ms": 500}
    async with Consumer([], topic, topic, seen, filter=EUROPE, **options):
        leader = await asyncio.to_thread(cluster.wait_leader)
        leader.kill()
        try:
            others: list[dict[str, Any]] = [{}, {"tags": "A"}, {"filter": "price > 4"}]
            for other in others:
                with pytest.raises(Conflict) as caught:
                    await Consumer([], topic, topic, Seen(), **options, **other).start()
                assert caught.value.code == "subscription_mismatch"
                assert EUROPE in caught.value.detail
            async with Consumer([], topic, topic, seen, filter=EUROPE, **options):
                await until(lambda: set(filter(matches, range(30))) <= set(seen.numbers))
        finally:
            await asyncio.to_thread(leader.start)
            await asyncio.to_thread(cluster.wait_ready)
    assert set(seen.numbers) == set(filter(matches, range(30)))
    # No member is left: the next one may choose another selection.
    async with Consumer([], topic, topic, Seen(), tags="A", **options):
        shown = await Admin(connection).group(topic)
        assert (shown.tags, shown.filters) == ({topic: "A"}, {})
