"""Consumer groups on a real node: what is refused before anything is proposed."""

from cluster.limits import OFFSETS_MAX, QUEUES_MAX
from tests.unit.cluster.conftest import Node


async def test_a_reset_of_an_unknown_group_is_refused_before_anything_is_built(node: Node) -> None:
    name = "t" * 127
    await node.call("PUT", f"/v1/topics/{name}", {"queues": QUEUES_MAX})
    index = node.core.raft.applied_index
    answer = await node.call("POST", "/v1/groups/nobody/reset", {"topic": name, "to": "latest"})
    assert (answer.status, answer.body["code"]) == (404, "group_not_found")
    assert node.core.raft.applied_index == index, "refused without an entry"


async def test_a_reset_sets_at_most_as_many_offsets_as_a_topic_has_queues(node: Node) -> None:
    assert QUEUES_MAX <= OFFSETS_MAX
    await node.call("PUT", "/v1/topics/wide", {"queues": QUEUES_MAX})
    offsets = [{"topic": "wide", "queue": 0, "offset": 0}]
    assert (await node.call("PUT", "/v1/groups/g/offsets", {"offsets": offsets})).status == 200
    answer = await node.call("POST", "/v1/groups/g/reset", {"topic": "wide", "to": "earliest"})
    assert (answer.status, len(answer.body["offsets"])) == (200, QUEUES_MAX)
