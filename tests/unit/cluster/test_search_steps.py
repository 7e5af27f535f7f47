"""Searches and traces go in steps, however many topics and groups there are."""

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.budgets.pace import Pace
from cluster.limits import INT64_MAX
from cluster.messages import message_finder
from cluster.messages.message_finder import MessageFinder
from store.commands.retention import ExpireMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.messages.message_index import KeyedMessage
from store.messages.topics import Topic
from store.state.message_search import MessageSearch
from tests.unit.cluster.conftest import Node

MANY = 12


async def send(node: Node, topic: str, message_id: str) -> None:
    assert (await node.call("PUT", f"/v1/topics/{topic}", {"queues": 1})).status == 201
    messages = [{"body": "x", "message_id": message_id}]
    assert (await node.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})).status == 200


async def found(node: Node, path: str) -> dict[str, Any]:
    answer = await node.call("GET", path)
    assert answer.status == 200, answer.body
    body: dict[str, Any] = answer.body
    return body


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of topics whose settings each step has looked at; every step is the last before a rest."""
    looked: list[int] = [0]
    info, rest = Topic.info, Pace.rest

    def counted_info(topic: Topic) -> Any:
        looked[-1] += 1
        return info(topic)

    async def counted_rest(pace: Pace) -> None:
        looked.append(0)
        await rest(pace)

    monkeypatch.setattr(Topic, "info", counted_info)
    monkeypatch.setattr(Pace, "rest", counted_rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    return looked


async def test_a_search_by_id_reads_the_topics_page_by_page(
    node: Node, rests: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_finder, "TOPICS_PER_READ", 3)
    for number in range(MANY):
        await send(node, f"t{number:02}", f"id-{number}")
    pages, among = list[int](), MessageSearch.among

    def counted(search: MessageSearch, topics: Sequence[Topic], message_id: str) -> list[Topic]:
        pages.append(len(topics))
        return among(search, topics, message_id)

    monkeypatch.setattr(MessageSearch, "among", counted)
    rests[:] = [0]
    body = await found(node, f"/v1/messages/id-{MANY - 1}")
    assert [each["topic"] for each in body["messages"]] == [f"t{MANY - 1:02}"]
    assert (max(pages), sum(pages)) == (3, MANY)
    assert len(rests) > MANY / 3
    assert sum(rests) <= 2, "the settings of topics that cannot have the message are not looked at"


async def test_a_trace_reads_the_groups_one_by_one(node: Node, rests: list[int]) -> None:
    await send(node, "orders", "id")
    for number in range(MANY):
        offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}
        assert (await node.call("PUT", f"/v1/groups/g{number:02}/offsets", offsets)).status == 200
    rests[:] = [0]
    body = await found(node, "/v1/messages/id/trace?topic=orders")
    (trace,) = body["traces"]
    assert [each["event"] for each in trace["events"]] == ["produced", *["consumed"] * MANY]
    assert [each["raft_index"] for each in trace["events"]] == sorted(each["raft_index"] for each in trace["events"])
    assert len(rests) > MANY


async def test_a_group_that_is_deleted_during_a_trace_is_left_out(node: Node) -> None:
    await send(node, "orders", "id")
    for group in ("a", "b"):
        offsets = {"offsets": [{"topic": "orders", "queue": 0, "offset": 1}]}
        assert (await node.call("PUT", f"/v1/groups/{group}/offsets", offsets)).status == 200
    (place,) = node.core.state.message_places("orders", "id", 9)
    steps = node.core.state.trace_steps(place)
    first = [next(steps), next(steps)]
    assert (await node.call("DELETE", "/v1/groups/b")).status == 204
    rest = [event for event in (*first, *steps) if event is not None]
    assert [(event.event, event.group) for event in rest] == [("produced", None), ("consumed", "a")]


async def test_a_listing_by_time_goes_on_behind_messages_that_are_removed_meanwhile(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 2, "retention_ms": 1_000})
    for number in range(6):
        messages = [{"body": f"m{number}", "queue": number % 2}]
        assert (await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})).status == 200
        node.clock.now_ms += 10
    bodies: list[bytes] = []
    async with contextlib.aclosing(
        MessageFinder(node.core).by_time("orders", KeyedMessage(0, 0, 0), INT64_MAX)
    ) as found:
        async for stored in found:
            if not bodies:
                node.clock.now_ms += 1_000 - 30  # what is older than m4 is over
                await node.core.propose(ExpireMessages((("orders", 0), ("orders", 1)), 100))
            bodies.append(stored.found.message.body)
    assert bodies == [b"m0", b"m4", b"m5"]


@pytest.mark.parametrize(
    "path", ["/v1/topics/orders", *(f"/v1/topics/orders/messages?{by}" for by in ("limit=9", "key=k"))]
)
async def test_a_topic_that_is_made_anew_with_fewer_queues_meanwhile_is_not_found(
    node: Node, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 2})
    messages = [{"body": "m", "queue": number % 2, "keys": ["k"]} for number in range(4)]
    assert (await node.call("POST", "/v1/topics/orders/messages", {"messages": messages})).status == 200

    async def rest(_: Pace) -> None:
        monkeypatch.setattr(Pace, "is_tired", False)
        await node.core.propose(DeleteTopic("orders"))
        await node.core.propose(PutTopic("orders", 1))

    monkeypatch.setattr(Pace, "rest", rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    answer = await node.call("GET", path)
    assert (answer.status, answer.body["code"]) == (404, "topic_not_found")
