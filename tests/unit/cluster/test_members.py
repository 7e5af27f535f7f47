"""Adding nodes, as far as one node can tell what is wrong with a request, or with itself."""

from typing import Any

from raft.membership import NODE_ID_MAX
from tests.unit.cluster.conftest import Answer, Node

MEMBERS = "/v1/cluster/members"


async def add(node: Node, **changes: Any) -> Answer:
    new = {"node_id": 4, "peer_address": "10.0.0.4:7091", "http_address": "http://10.0.0.4:7081"}
    return await node.call("POST", MEMBERS, {**new, **changes})


async def test_a_node_id_beyond_the_limit_is_refused(node: Node) -> None:
    refused = await add(node, node_id=NODE_ID_MAX + 1)
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert str(NODE_ID_MAX) in refused.body["detail"]
    assert (await add(node, node_id=NODE_ID_MAX)).status == 200
