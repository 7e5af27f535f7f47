"""Lists of topics, groups, members and offsets are read page by page, and the SDK follows the pages."""

import asyncio
from typing import Any
from urllib.parse import urlencode

import pytest

from cluster.budgets.pace import Pace
from cluster.groups import lists as group_lists
from cluster.limits import LIST_MAX
from cluster.messages import topic_api
from keelmq import Admin, Connection
from store.commands.topics import DeleteTopic, PutTopic
from tests.unit.cluster.conftest import Node


@pytest.fixture
def admin(node: Node) -> Admin:
    return Admin(Connection(node.core.config.advertised_url()))


async def pages(node: Node, path: str, name: str) -> list[list[Any]]:
    """Return the list `name` of every page."""
    found: list[list[Any]] = []
    after = ""
    while True:
        answer = await node.call("GET", path + after)
        assert answer.status == 200, answer.body
        found.append(answer.body[name])
        if answer.body["next"] is None:
            return found
        after = f"&after={answer.body['next']}"


async def join(node: Node, group: str, member_id: str, topics: list[str]) -> None:
    body = {"topics": topics, "member_id": member_id, "session_timeout_ms": 1_800_000}
    assert (await node.call("POST", f"/v1/groups/{group}/members", body)).status == 201


async def test_topics_are_listed_page_by_page(node: Node, admin: Admin) -> None:
    for number in range(5):
        await node.call("PUT", f"/v1/topics/t{number}", {"queues": 2})
    found = await pages(node, "/v1/topics?limit=2", "topics")
    assert [[each["topic"] for each in page] for page in found] == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    named = [each["topic"] for page in await pages(node, "/v1/topics?system=true&limit=3", "topics") for each in page]
    assert named == sorted(named)
    assert len(named) == 5 + 3
    assert [each.topic for each in await admin.topics()] == [f"t{number}" for number in range(5)]
    refused = await node.call("GET", f"/v1/topics?limit={LIST_MAX + 1}")
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")


async def test_a_page_of_topics_ends_with_its_rows_and_the_sdk_goes_on(
    node: Node, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_api, "LIST_ROWS_MAX", 8)
    for number in range(5):
        await node.call("PUT", f"/v1/topics/t{number}", {"queues": 4})
    assert [len(page) for page in await pages(node, "/v1/topics?limit=1000", "topics")] == [2, 2, 1]
    assert len(await admin.topics()) == 5
    assert len(await admin.topics(system=True)) == 8


async def test_a_topic_that_is_deleted_during_a_listing_is_left_out(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        await node.call("PUT", f"/v1/topics/t{number}", {"queues": 2})
    rests = 0

    async def rest(_: Pace) -> None:
        nonlocal rests
        rests += 1
        if rests == 2:
            await node.core.propose(DeleteTopic("t2"))
            await node.core.propose(PutTopic("t3", 3))

    monkeypatch.setattr(Pace, "rest", rest)
    monkeypatch.setattr(Pace, "is_tired", True)
    listed = (await node.call("GET", "/v1/topics")).body
    assert [(each["topic"], each["queues"], len(each["queue_offsets"])) for each in listed["topics"]] == [
        ("t0", 2, 2),
        ("t1", 2, 2),
        ("t3", 3, 3),
    ]


async def test_groups_members_and_offsets_are_listed_page_by_page(
    node: Node, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 3})
    await node.call("PUT", "/v1/topics/b", {"queues": 2})
    for member in ("m1", "m2", "m3"):
        await join(node, "g1", member, ["a", "b"])
    offsets = [
        {"topic": topic, "queue": queue, "offset": 0}
        for topic, queues in (("b", 2), ("a", 3))
        for queue in range(queues)
    ]
    assert (await node.call("PUT", "/v1/groups/g2/offsets", {"offsets": offsets})).status == 200
    await node.call("PUT", "/v1/groups/g3", {})
    listed = await pages(node, "/v1/groups?limit=2", "groups")
    assert [[each["group"] for each in page] for page in listed] == [["g1", "g2"], ["g3"]]
    whole = (await node.call("GET", "/v1/groups/g1")).body
    assert (whole["members_next"], whole["offsets_next"]) == (None, None)
    members = await pages(node, "/v1/groups/g1/members?limit=2", "members")
    assert [len(page) for page in members] == [2, 1]
    assert [each for page in members for each in page] == whole["members"]
    paged = await pages(node, "/v1/groups/g2/offsets?limit=2", "offsets")
    assert [[(each["topic"], each["queue"]) for each in page] for page in paged] == [
        [("a", 0), ("a", 1)],
        [("a", 2), ("b", 0)],
        [("b", 1)],
    ]
    of_topic = await pages(node, "/v1/groups/g2/offsets?topic=b&limit=1", "offsets")
    assert [each["queue"] for page in of_topic for each in page] == [0, 1]
    for after in ("a", "a/", "/x", "a/-1"):
        refused = await node.call("GET", f"/v1/groups/g2/offsets?after={after}")
        assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert (await node.call("GET", "/v1/groups/none/members")).body["code"] == "group_not_found"

    monkeypatch.setattr(group_lists, "LIST_ROWS_MAX", 2)
    monkeypatch.setattr(group_lists, "LIST_MAX", 2)
    assert [len(page) for page in await pages(node, "/v1/groups?limit=9", "groups")] == [1, 1, 1]
    short = (await node.call("GET", "/v1/groups/g2")).body
    assert (len(short["offsets"]), short["offsets_next"]) == (2, "a/1")
    assert [each.group for each in await admin.groups()] == ["g1", "g2", "g3"]
    assert [each.document for each in (await admin.group("g1")).members] == whole["members"]
    assert len((await admin.group("g2")).offsets) == 5


async def test_all_offsets_are_given_to_whoever_asks_for_no_page_and_others_get_their_turn(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that took a missing offset for one that nobody committed would begin elsewhere."""
    monkeypatch.setattr(group_lists, "OFFSETS_PER_STEP", 10)
    await node.call("PUT", "/v1/topics/wide", {"queues": 200})
    offsets = [{"topic": "wide", "queue": queue, "offset": 0} for queue in range(200)]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    pauses, sleep = 0, asyncio.sleep

    async def counted(delay: float) -> None:
        nonlocal pauses
        pauses += delay == 0
        await sleep(delay)

    monkeypatch.setattr("cluster.groups.lists.asyncio.sleep", counted)
    answer = await node.call("GET", "/v1/groups/g/offsets")
    assert (len(answer.body["offsets"]), answer.body["next"]) == (200, None)
    assert pauses >= 200 // 10 - 1


async def test_offsets_name_the_entry_that_is_applied_in_part_and_other_answers_do_not(node: Node) -> None:
    """The offsets may be of a topic that this entry makes, and pages of before it of another topic of that name."""
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    offsets = {"offsets": [{"topic": "a", "queue": 0, "offset": 0}]}
    assert (await node.call("PUT", "/v1/groups/g/offsets", offsets)).status == 200
    paths = ["/v1/groups/g/offsets", "/v1/groups/g", "/v1/topics/a/queues/0/messages?offset=0"]
    applied = node.core.raft.applied_index
    for shown in (applied, applied + 1):
        node.core.state.shown_index = shown
        indexes = [int((await node.call("GET", path)).headers["KeelMQ-Applied-Index"]) for path in paths]
        assert indexes == [shown, shown, applied]


async def test_a_cursor_that_no_page_gave_is_a_place_in_the_order_or_refused_as_a_cursor(node: Node) -> None:
    await node.call("PUT", "/v1/topics/orders", {"queues": 1})
    await join(node, "g", "m", ["orders"])
    await node.call("PUT", "/v1/producer-groups/shop", {"check_url": "http://127.0.0.1:1/check"})
    listings = [
        route.path.format(topic="orders", group="g", message_id="m")
        for route in node.broker.services.routes
        if route.query is not None and "after" in route.query.__struct_fields__
    ]
    assert len(listings) >= 8
    required = {"quotas": {"kind": "user"}, "caused": {"topic": "orders"}}
    for path in listings:
        for cursor in ("", "a b", "é", "x" * 300, "\0", "-1", "{}"):
            query = {"after": cursor} | required.get(path.rpartition("/")[2], {})
            answer = await node.call("GET", f"{path}?{urlencode(query)}")
            assert answer.status == 200 or answer.body["code"] == "invalid_request", (path, cursor, answer)
