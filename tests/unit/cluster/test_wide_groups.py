"""A group has a limited number of queues in all, because a rebalance visits all of them in one step of the loop."""

import pytest

from cluster.groups import offset_clones
from cluster.limits import GROUP_QUEUES_MAX, GROUP_TOPICS_MAX, QUEUES_MAX
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
