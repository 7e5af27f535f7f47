"""Latency-fault tolerance: a node that answers late or not at all is avoided for the time that the table says.

The nodes are HTTP servers on real sockets; how long an answer took, and how long a node is avoided, is told by a clock
that only the test moves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest

from keelmq.consuming.group_session import pull
from keelmq.errors import KeelMQError, UnknownOutcome
from keelmq.producing.producer import Producer
from keelmq.transport.connection import Connection
from keelmq.transport.node_health import AVOIDANCE_MS, FAILURE_COUNTS_AS_MS, avoidance_ms
from keelmq.transport.retry import Deadline
from tests.stream_server import stream_server
from tests.unit.client.scripted import RECEIPT
from tests.unit.client.test_connection import Clock

EMPTY_PULL = msgspec.msgpack.encode({"batches": [], "next_offset": 0, "max_offset": 0})
OUT_OF_TRIES_MS = 300
"""Budget of a call that is to fail: real time, the only one in here."""


class Node:
    """The part of a broker's node that matters here: it leads or names the leader, and answers late or not at all."""

    def __init__(self, name: str, asked: list[str]) -> None:
        self.name = name
        self.url = ""
        self.leader: Node | None = None
        self.before_answer: Callable[[], None] = lambda: None
        self.hangs = False
        self.end = 0
        self._asked = asked

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
                body = await reader.readexactly(length)
                self._asked.append(self.name if target != "/v1/cluster" else f"{self.name}?")
                if self.hangs:
                    await reader.read()  # until the client gives up
                    break
                self.before_answer()
                writer.write(self._answer(method, target, body))
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, target: str, body: bytes) -> bytes:
        if target == "/v1/cluster":
            return _http("200 OK", "application/json", _json({"leader_url": self.leader.url if self.leader else None}))
        if self.leader is None:
            return _http("503 X", "application/problem+json", _json({"code": "no_leader"}))
        is_leader = self.leader is self
        if (method != "GET" or f"offset={self.end + 1}" in target) and not is_leader:
            return _http("307 X", "text/plain", b"", f"Location: {self.leader.url}{target}\r\n")
        if method == "GET":
            return _http("200 OK", "application/msgpack", EMPTY_PULL)
        batch = msgspec.msgpack.decode(body)["batches"][0]["batch_id"]
        stored = {"results": [{"batch_id": batch, "queue": 0, "offset": 0, "count": 1}], "receipt": RECEIPT}
        return _http("200 OK", "application/msgpack", msgspec.msgpack.encode(stored))


def _http(status: str, media: str, body: bytes, headers: str = "") -> bytes:
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return lines.encode() + body


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def taking(clock: Clock, latency_s: float) -> Callable[[], None]:
    """Return a function that lets `latency_s` pass on the clock before an answer."""

    def pass_time() -> None:
        clock.now_s += latency_s

    return pass_time


class Cluster:
    """Nodes `a`, `b` and `c`; `a` leads. `asked` has the nodes that were asked, with a ? when asked for the leader."""

    def __init__(self, clock: Clock) -> None:
        self.asked: list[str] = []
        self.clock = clock
        self.a, self.b, self.c = (Node(name, self.asked) for name in "abc")
        self.connection: Connection

    def lead(self, leader: Node, *, known_to: str = "abc") -> None:
        for node in (self.a, self.b, self.c):
            if node.name in known_to:
                node.leader = leader

    def connect(self, **options: Any) -> Connection:
        urls = [node.url for node in (self.a, self.b, self.c)]
        return Connection(urls, clock=self.clock, rng=lambda: 0.0, **options)

    async def pull(self, offset: int = 0, wait_ms: int = 0) -> list[str]:
        """Pull, and return the nodes that were asked."""
        self.asked.clear()
        place = ("t", 0)
        await pull(self.connection, place, offset, max_messages=1, max_bytes=1, wait_ms=wait_ms)
        return list(self.asked)

    async def write(self) -> list[str]:
        """Write, and return the nodes that were asked."""
        self.asked.clear()
        async with Producer(connection=self.connection) as producer:
            await producer.send("t", b"x")
        return list(self.asked)

    async def fail(self, node: Node) -> None:
        """Let `node` hang in a write's only try."""
        node.hangs = True
        with pytest.raises(UnknownOutcome):
            await self.connection.call("POST", "/v1/x", deadline=Deadline(OUT_OF_TRIES_MS), tries=1)
        node.hangs = False


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(Clock())
    async with AsyncExitStack() as servers:
        for node in (cluster.a, cluster.b, cluster.c):
            server = await servers.enter_async_context(stream_server(node.serve))
            node.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        cluster.lead(cluster.a)
        cluster.connection = cluster.connect(**options)
        try:
            yield cluster
        finally:
            cluster.connection.close()


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with running() as made:
        yield made


def test_the_table_is_rocketmqs() -> None:
    assert [latency for latency, _ in AVOIDANCE_MS] == [50, 100, 550, 1800, 3000, 5000, 15000]
    assert [avoided / 1000 for _, avoided in AVOIDANCE_MS] == [0, 0, 2, 5, 6, 10, 30]
    assert avoidance_ms(FAILURE_COUNTS_AS_MS) == 10_000


@pytest.mark.parametrize(
    ("latency_ms", "avoided_s"),
    [
        *((0, 0), (50, 0), (100, 0), (549, 0), (550, 2), (1_799, 2), (1_800, 5), (2_999, 5), (3_000, 6), (4_999, 6)),
        *((5_000, 10), (14_999, 10), (15_000, 30), (60_000, 30)),
    ],
)
async def test_a_slow_node_is_avoided_for_exactly_the_stated_time(
    cluster: Cluster, latency_ms: int, avoided_s: float
) -> None:
    clock = cluster.clock
    assert await cluster.write() == ["a"]

    def answer_late() -> None:
        clock.now_s += latency_ms / 1000
        cluster.a.before_answer = lambda: None

    cluster.a.before_answer = answer_late
    assert await cluster.pull() == ["a"]
    end_s = clock.now_s + avoided_s
    if avoided_s:
        assert await cluster.pull() == ["b"]
        clock.now_s = end_s - 0.001
        assert await cluster.pull() == ["b"]
    clock.now_s = end_s
    assert await cluster.pull() == ["a"]


async def test_a_hanging_node_is_avoided_for_exactly_ten_seconds(cluster: Cluster) -> None:
    """The node took the request and never answered, which counts as 10 s. It is the leader again all the same."""
    assert await cluster.write() == ["a"]
    failed_at_s = cluster.clock.now_s
    await cluster.fail(cluster.a)
    assert await cluster.pull() == ["b?", "b"]
    cluster.clock.now_s = failed_at_s + 9.999
    assert await cluster.pull() == ["b"]
    cluster.clock.now_s = failed_at_s + 10
    assert await cluster.pull() == ["a"]


async def test_writes_go_to_a_slow_leader_for_nobody_else_can_take_them(cluster: Cluster) -> None:
    cluster.a.before_answer = taking(cluster.clock, 1.8)
    for _ in range(3):
        assert await cluster.write() == ["a"]
    assert await cluster.pull() == ["b"]


async def test_a_read_that_the_follower_cannot_answer_goes_to_the_slow_leader(cluster: Cluster) -> None:
    """The follower is behind: it redirects reads beyond its end, and these are not sent back to it."""
    assert await cluster.write() == ["a"]
    cluster.a.before_answer = taking(cluster.clock, 2)
    assert await cluster.pull() == ["a"]
    assert await cluster.pull(offset=1) == ["b", "a"]


async def test_nothing_shortens_the_time(cluster: Cluster) -> None:
    """Quick answers to writes, which only the leader can take, do not make it a fast node."""
    cluster.a.before_answer = taking(cluster.clock, 3)
    await cluster.write()
    cluster.a.before_answer = lambda: None
    end_s = cluster.clock.now_s + 6
    await cluster.write()
    cluster.clock.now_s = end_s - 0.001
    assert await cluster.pull() == ["b"]
    cluster.clock.now_s = end_s
    assert await cluster.pull() == ["a"]


async def test_the_leader_is_looked_for_at_nodes_that_did_not_fail(cluster: Cluster) -> None:
    """The new leader is known to `c` alone: `b` still names `a`, which is not asked before `c` was."""
    assert await cluster.write() == ["a"]
    await cluster.fail(cluster.a)
    cluster.a.hangs = True
    cluster.lead(cluster.c, known_to="c")
    assert await cluster.write() == ["b", "c"]
    assert await cluster.write() == ["c"]


async def test_a_leader_that_failed_is_asked_again_when_all_others_name_it(cluster: Cluster) -> None:
    """The failure was a hiccup. No other node will lead, so it would be wrong to wait ten seconds."""
    assert await cluster.write() == ["a"]
    await cluster.fail(cluster.a)
    assert await cluster.write() == ["b", "c", "a"]
    assert await cluster.write() == ["a"]


async def test_the_time_a_request_may_wait_at_the_broker_is_no_latency(cluster: Cluster) -> None:
    await cluster.write()
    cluster.a.before_answer = taking(cluster.clock, 15.4)
    assert await cluster.pull(wait_ms=15_000) == ["a"]
    assert await cluster.pull(wait_ms=15_000) == ["a"]
    assert await cluster.pull(wait_ms=14_000) == ["a"]
    assert await cluster.pull(wait_ms=15_000) == ["b"]


async def test_when_all_nodes_are_avoided_the_one_to_be_free_first_is_asked(cluster: Cluster) -> None:
    await cluster.write()
    clock = cluster.clock
    for node, latency_s in ((cluster.a, 15), (cluster.b, 1.8), (cluster.c, 3)):
        node.before_answer = taking(clock, latency_s)
    assert [await cluster.pull() for _ in range(3)] == [["a"], ["b"], ["c"]]
    for node in (cluster.a, cluster.b, cluster.c):
        node.before_answer = lambda: None
    assert await cluster.pull() == ["b"]


async def test_it_can_be_switched_off() -> None:
    async with running(avoid_slow_nodes=False) as cluster:
        cluster.a.before_answer = taking(cluster.clock, 20)
        await cluster.write()
        assert [await cluster.pull() for _ in range(2)] == [["a"], ["a"]]


async def test_a_try_that_was_cut_short_by_its_own_budget_says_nothing_of_the_node(cluster: Cluster) -> None:
    await cluster.write()
    cluster.a.hangs = True
    with pytest.raises(KeelMQError):
        await cluster.connection.call("POST", "/v1/x", deadline=Deadline(50), tries=1)
    cluster.a.hangs = False
    await cluster.write()
    assert await cluster.pull() == ["a"]
