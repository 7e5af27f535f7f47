"""A group has a limited number of queues in all, because a rebalance visits all of them in one step of the loop."""

import asyncio
from typing import Any

import pytest

from cluster.core.entry_work import further_work_bytes
from cluster.groups import offset_clones
from cluster.limits import GROUP_QUEUES_MAX, GROUP_TOPICS_MAX, QUEUES_MAX
from cluster.messages import topic_growth
from raft.proposals import ENTRY_WORK_BYTES
from store.commands.groups import CloneOffsets, QueueOffset, ResetOffsets
from store.commands.topics import DeleteTopic, PutTopic
from store.messages.topics import Topic, Topics
from tests.unit.cluster.conftest import Answer, Node

WIDE = GROUP_QUEUES_MAX // QUEUES_MAX
"""Number of the widest topics that a group may read."""


async def put(node: Node, topic: str, queues: int) -> Answer:
    return await node.call("PUT", f"/v1/topics/{topic}", {"queues": queues})


@pytest.fixture
async def topics(node: Node) -> list[str]:
    """Return the names of topics that have together as many queues as a group may read."""
    names = [f"wide-{number}" for number in range(WIDE)]
    for name in names:
        assert (await put(node, name, QUEUES_MAX)).status == 201
    return names


async def test_a_member_cannot_join_with_more_queues(node: Node, topics: list[str]) -> None:
    assert WIDE < GROUP_TOPICS_MAX
    await put(node, "one", 1)
    refused = await node.call("POST", "/v1/groups/g/members", {"topics": [*topics, "one"]})
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert str(GROUP_QUEUES_MAX) in refused.body["detail"]
    assert (await node.call("GET", "/v1/groups/g")).status == 404
    joined = await node.call("POST", "/v1/groups/g/members", {"topics": topics})
    assert joined.status == 201


async def test_nor_does_a_topic_grow_beyond_it_under_its_readers(node: Node, topics: list[str]) -> None:
    await put(node, "one", 1)
    member = {"topics": [*topics[1:], "one"], "member_id": "m"}
    assert (await node.call("POST", "/v1/groups/g/members", member)).status == 201
    await put(node, "two", 1)
    member["topics"] = [*member["topics"], "two"]
    assert (await node.call("POST", "/v1/groups/g/members", member)).status == 201
    refused = await put(node, "two", QUEUES_MAX)
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert (await node.call("GET", "/v1/topics/two")).body["queues"] == 1
    assert (await put(node, "two", QUEUES_MAX - 1)).status == 200, "as many as a group may read"


async def test_offsets_of_many_queues_are_cloned_by_several_entries(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_clones, "CLONED_AT_ONCE", 3)
    places = [(topic, queue) for topic, queues in (("a", 2), ("b", 2), ("c", 1)) for queue in range(queues)]
    for topic, queues in (("a", 2), ("b", 2), ("c", 1)):
        await put(node, topic, queues)
    offsets = [{"topic": topic, "queue": queue, "offset": 0} for topic, queue in places]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    first = node.core.raft.applied_index + 1
    cloned = await node.call("POST", "/v1/groups/copy/clone-offsets", {"source": "g"})
    assert cloned.status == 200
    assert [(each["topic"], each["queue"], each["offset"]) for each in cloned.body["offsets"]] == [
        (*place, 0) for place in places
    ]
    group = (await node.call("GET", "/v1/groups/copy")).body
    assert cloned.body["generation"] == group["generation"]
    assert [(each["topic"], each["queue"]) for each in group["offsets"]] == places
    outcomes = node.core.state.outcomes(first, node.core.raft.applied_index, 9)
    assert [len(each.outcome.events) for each in outcomes] == [2, 3]
    one = await node.call("POST", "/v1/groups/other/clone-offsets", {"source": "g", "topic": "a"})
    assert len(one.body["offsets"]) == 2
    missing = await node.call("POST", "/v1/groups/other/clone-offsets", {"source": "none"})
    assert (missing.status, missing.body["code"]) == (404, "group_not_found")


async def test_two_clones_onto_a_group_come_one_after_the_other(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the group could get some topics of one source, and some of the other."""
    monkeypatch.setattr(offset_clones, "CLONED_AT_ONCE", 3)
    topics = ("a", "b", "c")
    for topic in topics:
        await put(node, topic, 2)
        for queue in range(2):
            body = {"messages": [{"body": "x", "queue": queue}]}
            assert (await node.call("POST", f"/v1/topics/{topic}/messages", body)).status == 200
    for offset in (0, 1):
        offsets = [{"topic": topic, "queue": queue, "offset": offset} for topic in topics for queue in range(2)]
        assert (await node.call("PUT", f"/v1/groups/at-{offset}/offsets", {"offsets": offsets})).status == 200
    first = node.core.raft.applied_index + 1
    clones = (node.call("POST", "/v1/groups/copy/clone-offsets", {"source": f"at-{offset}"}) for offset in (0, 1))
    assert [answer.status for answer in await asyncio.gather(*clones)] == [200, 200]
    outcomes = node.core.state.outcomes(first, node.core.raft.applied_index, 9)
    cloned = [event.offset_end for each in outcomes for event in each.outcome.events]
    assert cloned == [0] * 6 + [1] * 6


async def read(node: Node, group: str, topic: str, queues: int) -> None:
    offsets = [{"topic": topic, "queue": queue, "offset": 0} for queue in range(queues)]
    assert (await node.call("PUT", f"/v1/groups/{group}/offsets", {"offsets": offsets})).status == 200


async def test_a_topic_that_many_groups_read_grows_by_several_entries(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_growth, "GROWN_ROWS_MAX", 6)
    monkeypatch.setattr(topic_growth, "GROWN_QUEUES_MIN", 1)
    assert (await put(node, "orders", 1)).status == 201
    for number in range(3):
        await read(node, f"g{number}", "orders", 1)
    before = node.core.raft.applied_index
    answer = await node.call("PUT", "/v1/topics/orders", {"queues": 8, "retention_ms": 60_000})
    assert (answer.status, answer.body["queues"], answer.body["retention_ms"]) == (200, 8, 60_000)
    assert node.core.raft.applied_index == before + 4, "each of them adds two queues for three groups"
    for number in range(3):
        assert len((await node.call("GET", f"/v1/groups/g{number}/offsets")).body["offsets"]) == 8
    refused = await put(node, "orders", 7)
    assert (refused.status, refused.body["code"]) == (409, "topic_exists_with_more_queues")


async def test_a_topic_that_grows_twice_at_a_time_gets_all_queues(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_growth, "GROWN_ROWS_MAX", 1)
    monkeypatch.setattr(topic_growth, "GROWN_QUEUES_MIN", 1)
    await put(node, "orders", 1)
    await read(node, "g", "orders", 1)
    answers = await asyncio.gather(put(node, "orders", 9), put(node, "orders", 9))
    assert [(answer.status, answer.body["queues"]) for answer in answers] == [(200, 9)] * 2


async def test_costly_changes_of_groups_share_no_entry(node: Node) -> None:
    await put(node, "wide", QUEUES_MAX)
    await put(node, "orders", 1)
    for number in range(4):
        await read(node, f"g{number}", "wide", QUEUES_MAX)
    state = node.core.state
    reset = ResetOffsets("g0", tuple(QueueOffset("wide", queue, 0) for queue in range(QUEUES_MAX)))
    for command in (DeleteTopic("wide"), CloneOffsets("copy", "g0", "wide"), CloneOffsets("copy", "g0"), reset):
        assert further_work_bytes(command, state) > ENTRY_WORK_BYTES // 3, command
    for cheap in (DeleteTopic("orders"), CloneOffsets("copy", "g0", "orders"), PutTopic("wide", retention_ms=1)):
        assert further_work_bytes(cheap, state) == 0, cheap
    await read(node, "g0", "orders", 1)
    assert further_work_bytes(PutTopic("orders", QUEUES_MAX), state) > ENTRY_WORK_BYTES // 10


@pytest.mark.parametrize("made_anew", [False, True])
async def test_a_topic_that_is_deleted_while_it_grows_is_not_made_again(
    node: Node, monkeypatch: pytest.MonkeyPatch, made_anew: bool
) -> None:
    monkeypatch.setattr(topic_growth, "GROWN_ROWS_MAX", 1)
    monkeypatch.setattr(topic_growth, "GROWN_QUEUES_MIN", 1)
    await put(node, "orders", 1)
    await read(node, "g", "orders", 1)
    part, looks = topic_growth._part, 0

    def deleting(*arguments: Any) -> PutTopic:
        nonlocal looks
        looks += 1
        if looks == 2:  # between the first entry and the second
            commands: list[PutTopic | DeleteTopic] = [
                DeleteTopic("orders"),
                *([PutTopic("orders", 1)] if made_anew else []),
            ]
            changing.extend(asyncio.ensure_future(node.core.propose(command)) for command in commands)
        return part(*arguments)

    changing: list[asyncio.Future[Any]] = []
    monkeypatch.setattr(topic_growth, "_part", deleting)
    answer = await put(node, "orders", 9)
    await asyncio.gather(*changing)
    assert (answer.status, answer.body["code"]) == (404, "topic_not_found")
    left = await node.call("GET", "/v1/topics/orders")
    assert left.status == (200 if made_anew else 404)
    if made_anew:
        assert left.body["queues"] == 1


async def test_a_clone_looks_at_each_topic_alone(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighing and carrying out the clone of one topic must not walk through all topics that the group has read."""
    monkeypatch.setattr(offset_clones, "CLONED_AT_ONCE", 4)
    topics = [f"t-{number}" for number in range(40)]
    for topic in topics:
        await put(node, topic, 1)
        await read(node, "source", topic, 1)
    looked_at = 0
    by_id = Topics.by_id

    def counted(topics: Topics, topic_id: int) -> Topic | None:
        nonlocal looked_at
        looked_at += 1
        return by_id(topics, topic_id)

    monkeypatch.setattr(Topics, "by_id", counted)
    answer = await node.call("POST", "/v1/groups/target/clone-offsets", {"source": "source"})
    assert (answer.status, len(answer.body["offsets"])) == (200, 40)
    assert looked_at <= 3 * len(topics)


async def test_a_wide_group_is_not_cloned_onto_itself(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_clones, "CLONED_AT_ONCE", 1)
    for topic in ("a", "b"):
        await put(node, topic, 1)
        await read(node, "g", topic, 1)
    before = node.core.raft.applied_index
    refused = await node.call("POST", "/v1/groups/g/clone-offsets", {"source": "g"})
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert node.core.raft.applied_index <= before + 2, "each topic is tried once"
