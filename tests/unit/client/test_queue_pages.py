"""Pages of a queue are read from the leader, and from a follower while they are old."""

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from keelmq.blocks.batch import encode_messages
from keelmq.consuming.group_session import Pulled
from keelmq.consuming.queue_pages import FOLLOWER_PAUSE_MAX_MS, FOLLOWER_PAUSE_MS, FOLLOWER_TIMEOUT_MS, QueuePages
from keelmq.consuming.selection import EVERYTHING, Selection
from keelmq.errors import Unavailable
from keelmq.message import Message
from keelmq.transport.connection import Connection
from keelmq.transport.http1 import ConnectFailed, ExchangeFailed, HttpResponse
from tests.unit.client.scripted import (
    SERVERS,
    Request,
    ScriptedTransport,
    json_answer,
    msgpack_answer,
    problem,
    redirect,
)
from tests.unit.client.test_connection import Clock

END = 100
ASSIGNED = 50
"""Index that the leader had applied when the queue was assigned."""

Answer = Callable[[int], HttpResponse]


def page(offset: int, *, disk: bool = True, applied: int | None = ASSIGNED, **changes: Any) -> HttpResponse:
    """Return a page with one message at `offset`; `changes` replace its fields."""
    block = encode_messages([Message(body=b"m")])
    batch = {"base_offset": offset, "count": 1, "batch_id": "b", "stored_at_ms": 1, "skip": []}
    batch |= {"crc32c": block.crc32c, "block": block.data}
    answer = msgpack_answer({"batches": [batch], "next_offset": offset + 1, "max_offset": END} | changes)
    headers = {} if applied is None else {"keelmq-applied-index": str(applied)}
    return answer._replace(headers=answer.headers | headers | ({"keelmq-disk-bytes": "4096"} if disk else {}))


def empty(offset: int) -> HttpResponse:
    return page(offset, batches=[], next_offset=offset, max_offset=offset)


def expired(offset: int) -> HttpResponse:
    return page(offset + 5, min_offset=offset + 5)


def raising(error: Exception) -> Answer:
    def answer(offset: int) -> HttpResponse:
        raise error

    return answer


class Cluster:
    """A cluster in which n1 leads, and n2 and n3 follow. `asked` has each node that was asked for a page, with the
    offset.
    """

    def __init__(self, servers: list[str]) -> None:
        self.asked: list[tuple[str, int]] = []
        self.timeouts_s: dict[str, float] = {}
        self.answers: dict[str, Answer] = dict.fromkeys(("n1", "n2", "n3"), page)
        self.clock = Clock()
        transport = ScriptedTransport(self._answer, answers_cluster=True)
        self.connection = Connection(servers, transport=transport, rng=lambda: 0.0, clock=self.clock)

    def pages(self, queue: int = 0, *, follower_reads: bool = True) -> QueuePages:
        made = QueuePages(self.connection, ("t", queue), follower_reads=follower_reads, clock=self.clock)
        made.require(ASSIGNED)
        return made

    def _answer(self, request: Request) -> HttpResponse:
        if request.target == "/v1/cluster":
            return json_answer({"leader_url": "http://n1:1"})
        offset = int(parse_qs(urlsplit(request.target).query)["offset"][0])
        self.asked.append((request.node, offset))
        self.timeouts_s[request.node] = request.timeout_s
        return self.answers[request.node](offset)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster(SERVERS)
    yield made
    made.connection.close()


async def read(pages: QueuePages, offset: int, selection: Selection = EVERYTHING) -> Pulled:
    return await pages.next(offset, max_messages=1, max_bytes=1, wait_ms=0, selection=selection)


async def read_all(pages: QueuePages, count: int) -> int:
    """Read `count` pages from the first offset on and return the offset after them."""
    offset = 0
    for _ in range(count):
        offset = (await read(pages, offset)).next_offset
    return offset


async def test_behind_an_old_page_a_follower_is_asked(cluster: Cluster) -> None:
    assert await read_all(cluster.pages(), 4) == 4
    assert cluster.asked == [("n1", 0), ("n2", 1), ("n2", 2), ("n2", 3)]
    assert cluster.timeouts_s["n2"] == FOLLOWER_TIMEOUT_MS / 1000


async def test_queues_are_spread_over_the_followers(cluster: Cluster) -> None:
    for queue in range(4):
        await read_all(cluster.pages(queue), 2)
    assert [node for node, offset in cluster.asked if offset == 1] == ["n2", "n3", "n2", "n3"]


async def test_what_is_in_memory_is_read_at_the_leader(cluster: Cluster) -> None:
    """The leader's word counts, and so does the follower's: the page is then in the leader's memory as well."""
    cluster.answers["n2"] = lambda offset: page(offset, disk=offset != 2)
    cluster.answers["n1"] = lambda offset: page(offset, disk=offset == 0)
    await read_all(cluster.pages(), 5)
    assert cluster.asked == [("n1", 0), ("n2", 1), ("n2", 2), ("n1", 3), ("n1", 4)]


async def test_the_last_page_is_followed_by_one_of_the_leader(cluster: Cluster) -> None:
    """The age of the page does not matter: only the leader knows where the queue ends."""
    cluster.answers["n1"] = lambda offset: page(offset, max_offset=2 if offset else 3)
    cluster.answers["n2"] = lambda offset: page(offset, max_offset=2)
    await read_all(cluster.pages(), 4)
    assert cluster.asked == [("n1", 0), ("n2", 1), ("n1", 2), ("n1", 3)]


async def test_a_broker_that_does_not_say_what_is_old_is_read_at_its_leader(cluster: Cluster) -> None:
    cluster.answers["n1"] = lambda offset: page(offset, disk=False, applied=None)
    await read_all(cluster.pages(), 3)
    assert [node for node, _ in cluster.asked] == ["n1"] * 3


async def test_followers_can_be_left_alone(cluster: Cluster) -> None:
    await read_all(cluster.pages(follower_reads=False), 3)
    assert [node for node, _ in cluster.asked] == ["n1"] * 3


async def test_a_leader_without_followers_is_read_as_ever() -> None:
    cluster = Cluster(["http://n1:1"])
    assert await read_all(cluster.pages(), 3) == 3
    assert [node for node, _ in cluster.asked] == ["n1"] * 3
    cluster.connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda offset: page(offset, applied=ASSIGNED - 1),
        lambda offset: page(offset, applied=None),
        empty,
        expired,
        lambda offset: page(offset, batches=[], next_offset=offset - 1),
        lambda offset: redirect("http://n1:1/v1/x"),
        lambda offset: problem(503, "no_leader"),
        lambda offset: problem(429, "overloaded", retry_after="1"),
        lambda offset: problem(404, "topic_not_found"),
        lambda offset: problem(416, "offset_out_of_range"),
        lambda offset: problem(500, "message_damaged"),
        lambda offset: msgpack_answer({"nonsense": 1}),
        lambda offset: page(offset, batches=[{"base_offset": offset, "count": 1, "batch_id": "b", "stored_at_ms": 1}]),
        raising(ConnectFailed("refused")),
        raising(ExchangeFailed("no answer within 1000 ms")),
    ],
)
async def test_what_is_no_page_of_a_follower_is_asked_of_the_leader_at_once(cluster: Cluster, answer: Answer) -> None:
    """Followers are left alone for a while, then asked again."""
    cluster.answers["n2"] = cluster.answers["n3"] = answer
    pages = cluster.pages()
    assert await read_all(pages, 4) == 4
    assert cluster.asked[:3] == [("n1", 0), ("n2", 1), ("n1", 1)]
    assert [node for node, _ in cluster.asked[3:]] == ["n1", "n1"]
    cluster.asked.clear()
    cluster.clock.now_s += FOLLOWER_PAUSE_MS / 1000
    assert (await read(pages, 4)).next_offset == 5
    assert len(cluster.asked) == 2
    assert cluster.asked[0] in (("n2", 4), ("n3", 4))  # n3: n2 is avoided
    assert cluster.asked[1] == ("n1", 4)


async def test_followers_that_fail_again_and_again_are_asked_ever_more_seldom(cluster: Cluster) -> None:
    cluster.answers["n2"] = cluster.answers["n3"] = empty
    pages, asked_at_s = cluster.pages(), list[float]()
    for _ in range(10 * FOLLOWER_PAUSE_MAX_MS // (FOLLOWER_PAUSE_MS // 4)):
        cluster.asked.clear()
        await read(pages, 0)
        if len(cluster.asked) == 2:
            asked_at_s.append(cluster.clock.now_s)
        cluster.clock.now_s += FOLLOWER_PAUSE_MS / 4_000
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at_s)]
    assert pauses[0] <= FOLLOWER_PAUSE_MS / 1000 < FOLLOWER_PAUSE_MAX_MS / 2_000 <= pauses[-1]


async def test_a_page_of_a_filter_counts_that_moved_on_without_a_message(cluster: Cluster) -> None:
    selection = Selection(tags="a")
    cluster.answers["n2"] = lambda offset: page(offset, batches=[], next_offset=offset + 7)
    pages = cluster.pages()
    await read(pages, 0, selection)
    assert await read(pages, 1, selection) == Pulled([], 8, 0, ASSIGNED, True)
    assert cluster.asked == [("n1", 0), ("n2", 1)]


async def test_nobody_who_is_behind_the_assignment_is_believed(cluster: Cluster) -> None:
    """Another node may answer for a leader that is slow; a new leader may not have applied everything yet."""
    pages = cluster.pages()
    cluster.answers["n1"] = lambda offset: page(offset, applied=ASSIGNED - 1)
    with pytest.raises(Unavailable) as raised:
        await read(pages, 0)
    assert raised.value.code == "node_behind"
    cluster.answers["n1"] = page
    await read_all(pages, 2)
    pages.require(ASSIGNED + 1)  # a new assignment
    cluster.answers["n1"] = lambda offset: page(offset, applied=ASSIGNED + 1)
    cluster.asked.clear()
    await read(pages, 2)
    assert cluster.asked == [("n2", 2), ("n1", 2)]


async def test_a_page_that_was_asked_for_before_a_new_assignment_counts(cluster: Cluster) -> None:
    """The page may have waited for its first message. Its applied index is that of the time when the node was asked."""
    pages = cluster.pages()

    def assigned_meanwhile(offset: int) -> HttpResponse:
        pages.require(ASSIGNED + 1)
        return page(offset)

    cluster.answers["n1"] = assigned_meanwhile
    assert (await read(pages, 0)).next_offset == 1
