"""Tests the events of entries, read from real nodes: at a follower, through the death of a leader, after an update."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Self

import msgspec
import pytest

import keelmq
from keelmq.errors import LogRangeRemoved, Unavailable
from keelmq.log.log_events import EntryEvents, EventsPage
from store.index import keys
from store.index.index import Index
from tests.e2e.cluster_process import ClusterProcess
from tests.e2e.fixtures import shared_cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

cluster = shared_cluster()  # whose leader is killed

Rows = list[tuple[str, str]]
"""Event id (`<index>:<n>`) and message id of every message that became visible."""


class Tail:
    """Reads events of one or several nodes, a little at a time, and remembers its position."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.connection = keelmq.Connection(servers, call_timeout_ms=60_000)
        self.admin = keelmq.Admin(self.connection)
        self.rows: Rows = []
        self.cluster_uids: set[str] = set()
        self.next_index = 1
        self.next_event = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    async def read(self, *, wait_ms: int = 0) -> int:
        """Read one page; return the index up to which the answering node had applied the log."""
        page = await self._page(wait_ms)
        self.cluster_uids.add(page.cluster_uid)
        for entry in page.entries():
            self.rows += published(entry)
        self.next_index, self.next_event = page.next_index, page.next_event
        return page.applied_index

    async def _page(self, wait_ms: int) -> EventsPage:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(Unavailable):  # a busy machine takes its time
                    return await self.admin.log_events(
                        self.next_index, from_event=self.next_event, max_bytes=2_000, wait_ms=wait_ms
                    )

    async def read_until(self, count: int) -> None:
        """Read until `count` messages were seen, and everything that the node knows."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.read(wait_ms=200) >= self.next_index or len(self.rows) < count:
                pass


def published(entry: EntryEvents) -> Rows:
    rows: Rows = []
    row = entry.first_row
    for event in entry.events:
        if event.type == "PUBLISH" and event.messages is not None:
            rows += [(f"{entry.index}:{row + n}", each) for n, each in enumerate(event.messages.ids())]
        row += event.rows
    return rows


async def send(producer: keelmq.Producer, count: int) -> list[str]:
    sending = (producer.send("orders", b"x" * 50) for _ in range(count))
    return [result.message_id for result in await asyncio.gather(*sending)]


async def test_a_follower_tells_everything_and_a_dead_leader_stops_nothing(cluster: ClusterProcess) -> None:
    urls = cluster.urls
    with Tail(urls) as tail:
        async with keelmq.Producer(urls, send_timeout_ms=60_000) as producer:
            await tail.admin.put_topic("orders", queues=2)
            sent = await send(producer, 100)
            while len(tail.rows) < 50:
                await tail.read(wait_ms=200)
            leader = cluster.wait_leader()
            leader.kill()
            sent += await send(producer, 100)
            await tail.read_until(len(sent))
    assert sorted(message_id for _, message_id in tail.rows) == sorted(sent)
    assert len({event_id for event_id, _ in tail.rows}) == len(sent)
    leader.start()
    cluster.wait_ready()
    cluster.wait_same_state()
    for node in cluster.nodes.values():
        with Tail([node.url]) as alone:
            while await alone.read() >= alone.next_index:
                pass
        assert alone.rows == tail.rows
        assert alone.cluster_uids == tail.cluster_uids
    assert "" not in tail.cluster_uids
    assert len(tail.cluster_uids) == 1


async def test_what_an_older_version_applied_is_an_error_that_says_what_to_do(single: ClusterProcess) -> None:
    node = single.wait_leader()
    assert node.request("PUT", "/v1/topics/orders", payload={"queues": 1}).status == 201
    node.terminate()
    index = Index.open(str(node.data_dir / "index"))
    applied = msgspec.msgpack.decode(index.get(keys.META_APPLIED) or b"")
    index.put(keys.META_APPLIED, msgspec.msgpack.encode(applied[:8]))
    index.commit()
    index.close()
    node.start()
    single.wait_ready()
    refused = node.request("GET", "/v1/log/events?from_index=1")
    assert (refused.status, refused.json()["code"]) == (410, "log_range_removed")
    first_index = refused.json()["first_index"]
    assert first_index == applied[0] + 1
    assert node.request("GET", f"/v1/log/events?from_index={first_index}").status == 200
    with Tail([node.url]) as tail, pytest.raises(LogRangeRemoved) as caught:
        await tail.read()
    assert caught.value.first_index == first_index
