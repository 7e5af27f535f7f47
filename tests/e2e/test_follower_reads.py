"""Tests consumers that read old messages at followers; a follower that is behind, hangs or ends costs no message.

Nodes keep hardly anything of their logs in memory, so nearly every page is an old one.
"""

import asyncio
import base64
import itertools
import os
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.local_nodes import make_secret
from keelmq import Admin, Connection, Consumer, Message, Producer, ReceivedMessage
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, until, wait_for
from tests.e2e.fixtures import own_cluster
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

OPTIONS = ("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--cache-bytes", str(1 << 16))
QUEUES = 2
"""Number of queues: one for each follower."""
BATCHES = 40
BATCH_MESSAGES = 8
MESSAGES = BATCHES * BATCH_MESSAGES
BODY_BYTES = 1_024
SMALL_PAGES = {"prefetch_messages": 2 * BATCH_MESSAGES, "max_messages": BATCH_MESSAGES}
PULL = r'method="GET",route="/v1/topics/\{topic\}/queues/\{queue\}/messages",status="200"'

cluster = own_cluster(OPTIONS, settled=True)


@pytest.fixture
async def connection(cluster: ClusterProcess) -> AsyncIterator[Connection]:
    made = Connection(cluster.urls, call_timeout_ms=CALL_PATIENCE_MS)
    yield made
    made.close()


async def make_topic(connection: Connection) -> None:
    await Admin(connection).put_topic("t", queues=QUEUES)


async def fill(connection: Connection, what: bytes) -> None:
    """Add MESSAGES messages to each queue; their bodies begin with `what`."""
    async with Producer(connection=connection, compress=False, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        for _ in range(BATCHES):
            for queue in range(QUEUES):
                bodies = [what + os.urandom(BODY_BYTES) for _ in range(BATCH_MESSAGES)]
                await producer.send_batch("t", [Message(body=body) for body in bodies], queue=queue)


def pulls(node: NodeProcess) -> int:
    """Return the number of pulls that the node has answered with a page."""
    found = re.search(f"^keelmq_http_requests_total{{{PULL}}} (\\S+)$", metrics(node), re.MULTILINE)
    return int(float(found[1])) if found is not None else 0


def metrics(node: NodeProcess) -> str:
    return node.request("GET", "/metrics").body.decode()


def followers(cluster: ClusterProcess) -> list[NodeProcess]:
    leader = cluster.wait_leader()
    return [node for node in cluster.nodes.values() if node is not leader]


class Seen:
    """A handler that notes offsets and kinds of bodies by queue, and calls `then` when `when` messages were seen."""

    def __init__(self, when: int = 0, then: Callable[[], object] = lambda: None) -> None:
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)
        self.kinds: defaultdict[int, list[bytes]] = defaultdict(list)
        self.count = 0
        self._when = when
        self._then = then

    async def __call__(self, message: ReceivedMessage) -> None:
        self.offsets[message.queue].append(message.offset)
        self.kinds[message.queue].append(message.body[:3])
        self.count += 1
        if self.count == self._when:
            await asyncio.to_thread(self._then)

    def everything_once(self, messages: int) -> bool:
        """Return whether every message of each queue was seen in order. Raises AssertionError for anything else."""
        for offsets in self.offsets.values():
            assert offsets == list(range(len(offsets)))
        return self.count == QUEUES * messages


def consumer(connection: Connection, seen: Seen, group: str = "g", **options: Any) -> Consumer:
    settings: dict[str, Any] = {"start": "earliest", "concurrency": QUEUES, **SMALL_PAGES, **options}
    return Consumer([], group, "t", seen, connection=connection, **settings)


def isolate(node: NodeProcess, directory: Path) -> None:
    """Restart the node with its data and another secret, so that no other node admits it: it stays behind for ever."""
    node.terminate()
    directory.mkdir()
    node.start(extra=["--peer-secret-file", str(make_secret(directory))])
    wait_for(lambda: node.status() is not None, "the isolated node to answer")


def is_old(node: NodeProcess) -> bool:
    """Return whether the isolated node answers with its old data, from the beginning and beyond the first pages."""
    replies = [
        node.request("GET", f"/v1/topics/t/queues/{queue}/messages?offset={offset}&max_messages=1")
        for queue in range(QUEUES)
        for offset in (0, 4 * BATCH_MESSAGES)
    ]
    bodies = [base64.b64decode(reply.json()["messages"][0]["body"]) for reply in replies]
    return all(body.startswith(b"old") for body in bodies)


async def test_old_messages_are_read_at_followers_each_of_which_has_its_queues(
    cluster: ClusterProcess, connection: Connection
) -> None:
    """Groups read one after the other until each follower was asked: on a busy machine one may be too slow at first."""
    await make_topic(connection)
    await fill(connection, b"old")
    async with asyncio.timeout(PATIENCE_S):
        for number in itertools.count():
            seen = Seen()
            async with consumer(connection, seen, group=f"g{number}"):
                await until(lambda seen=seen: seen.everything_once(MESSAGES))  # type: ignore[misc]
            if all(pulls(node) > 1 for node in followers(cluster)):
                break
    seen = Seen()
    async with consumer(connection, seen):
        await until(lambda: seen.count > 0)
        await fill(connection, b"new")
        await until(lambda: seen.everything_once(2 * MESSAGES))


async def test_followers_are_left_alone_by_who_wants_that(cluster: ClusterProcess, connection: Connection) -> None:
    await make_topic(connection)
    await fill(connection, b"old")
    seen = Seen()
    async with consumer(connection, seen, follower_reads=False):
        await until(lambda: seen.everything_once(MESSAGES))
    assert [pulls(node) for node in followers(cluster)] == [0, 0]


async def test_a_filter_moves_on_at_followers_too(cluster: ClusterProcess, connection: Connection) -> None:
    """Pages without any matching message count as well: the broker had to look through them."""
    await make_topic(connection)
    await fill(connection, b"old")
    seen = Seen()
    async with consumer(connection, seen, filter="x IS NOT NULL"):
        async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
            for queue in range(QUEUES):
                await producer.send("t", b"end", queue=queue, properties={"x": "1"})
        await until(lambda: seen.count == QUEUES)
    assert dict(seen.offsets) == {queue: [MESSAGES] for queue in range(QUEUES)}


@pytest.mark.parametrize("fault", [NodeProcess.pause, NodeProcess.kill])
async def test_a_follower_that_fails_meanwhile_costs_no_message(
    cluster: ClusterProcess, connection: Connection, fault: Callable[[NodeProcess], None]
) -> None:
    await make_topic(connection)
    await fill(connection, b"old")
    failing = followers(cluster)[0]
    seen = Seen(when=MESSAGES // 2, then=lambda: fault(failing))
    async with consumer(connection, seen):
        await until(lambda: seen.everything_once(MESSAGES))


async def test_with_the_leader_gone_meanwhile_nothing_is_missing(
    cluster: ClusterProcess, connection: Connection
) -> None:
    await make_topic(connection)
    await fill(connection, b"old")
    leader = cluster.wait_leader()
    seen = Seen(when=MESSAGES // 2, then=leader.kill)
    async with consumer(connection, seen):
        await until(lambda: seen.everything_once(MESSAGES))


async def test_a_follower_that_ends_before_the_queue_does_is_not_believed(
    cluster: ClusterProcess, connection: Connection, tmp_path: Path
) -> None:
    """The follower knows the consumer's assignment, and half of the present messages."""
    await make_topic(connection)
    await fill(connection, b"old")
    seen = Seen()
    reading = consumer(connection, seen)
    async with reading:
        await until(lambda: seen.count > 0)
        reading.pause()
        cluster.wait_same_state()
        isolate(followers(cluster)[0], tmp_path / "other")
        await fill(connection, b"new")
        reading.resume()
        await until(lambda: seen.everything_once(2 * MESSAGES))


async def test_a_follower_that_has_an_earlier_topic_of_that_name_is_not_believed(
    cluster: ClusterProcess, connection: Connection, tmp_path: Path
) -> None:
    await make_topic(connection)
    await fill(connection, b"old")
    cluster.wait_same_state()
    behind = followers(cluster)[0]
    isolate(behind, tmp_path / "other")
    await Admin(connection).delete_topic("t")
    await make_topic(connection)
    await fill(connection, b"new")
    assert is_old(behind)
    seen = Seen()
    async with consumer(connection, seen):
        await until(lambda: seen.everything_once(MESSAGES))
    assert {kind for kinds in seen.kinds.values() for kind in kinds} == {b"new"}


async def test_a_topic_that_is_made_anew_while_it_is_read_is_read_from_its_beginning(
    cluster: ClusterProcess, connection: Connection, tmp_path: Path
) -> None:
    """The topic is replaced half way, with a follower that never hears of it: nothing of the earlier topic comes after
    the later one has begun.
    """
    await make_topic(connection)
    await fill(connection, b"old")
    seen = Seen()
    reading = consumer(connection, seen)
    async with reading:
        await until(lambda: seen.count >= MESSAGES // 2)
        reading.pause()
        cluster.wait_same_state()
        behind = followers(cluster)[0]
        isolate(behind, tmp_path / "other")
        await Admin(connection).delete_topic("t")
        await make_topic(connection)
        await fill(connection, b"new")
        assert is_old(behind)
        reading.resume()
        await until(lambda: all(seen.kinds[queue].count(b"new") >= MESSAGES for queue in range(QUEUES)))
    for queue in range(QUEUES):
        old = seen.kinds[queue].count(b"old")
        assert seen.kinds[queue] == [b"old"] * old + [b"new"] * MESSAGES
        assert seen.offsets[queue] == [*range(old), *range(MESSAGES)]
