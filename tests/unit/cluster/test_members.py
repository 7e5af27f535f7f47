"""Adding nodes: one node refuses wrong requests, and requests that it cannot carry out itself."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local_nodes import free_ports
from raft.config import NODE_ID_MAX
from tests.unit.cluster.conftest import Answer, Node, node_config, running_node

MEMBERS = "/v1/cluster/members"


async def add(node: Node, **changes: Any) -> Answer:
    new = {"node_id": 4, "peer_address": "10.0.0.4:7091", "http_address": "http://10.0.0.4:7081"}
    return await node.call("POST", MEMBERS, {**new, **changes})


async def test_a_node_id_beyond_the_limit_is_refused(node: Node) -> None:
    refused = await add(node, node_id=NODE_ID_MAX + 1)
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert str(NODE_ID_MAX) in refused.body["detail"]
    assert (await add(node, node_id=NODE_ID_MAX)).status == 200


UNSPECIFIED = ["0.0.0.0", "[::]", "[0:0::0]", "[::ffff:0.0.0.0]"]


@pytest.mark.parametrize("host", [*UNSPECIFIED, "0", "0x0", "h h", "a..b", "1.2.3", "é", "-a", "a" * 64])
async def test_a_node_is_not_added_at_an_address_where_nobody_reaches_it(node: Node, host: str) -> None:
    for field, value in (("peer_address", f"{host}:7091"), ("http_address", f"http://{host}:7081")):
        refused = await add(node, **{field: value})
        assert (refused.status, refused.body["code"]) == (400, "invalid_request"), value
        assert field in refused.body["detail"]
    assert len((await node.call("GET", "/v1/cluster")).body["nodes"]) == 1


@pytest.mark.parametrize("host", ["10.0.0.4", "[fd00::4]", "node-4", "node_4.shop.example", "4.example."])
async def test_a_node_is_added_at_any_address_that_may_be_one(node: Node, host: str) -> None:
    added = await add(node, peer_address=f"{host}:7091", http_address=f"http://{host}:7081")
    assert added.status == 200, added.body
    shown = (await node.call("GET", "/v1/cluster")).body["nodes"]
    for members in (added.body["members"], shown):
        assert [each["peer_address"] for each in members if each["node_id"] == 4] == [f"{host}:7091"]


@pytest.mark.parametrize("listening", ["peer_listen", "http_listen"])
async def test_a_node_that_the_others_could_not_reach_adds_none_and_says_what_to_do(
    tmp_path: Path, listening: str
) -> None:
    port = free_ports(1)[0]
    config = node_config(tmp_path, **{listening: f"127.0.0.1:{port}"})
    unspecified = {"peer_listen": {"peer_listen": f"0.0.0.0:{port}"}, "http_listen": {"http_url": "http://0.0.0.0:1"}}
    fatal: list[str] = []
    async with running_node(msgspec.structs.replace(config, **unspecified[listening]), fatal) as node:
        before = node.core.raft.configuration_index
        refused = await add(node)
        assert (refused.status, refused.body["code"]) == (409, "no_peer_address")
        assert ("--peer-listen" if listening == "peer_listen" else "--http-url") in refused.body["detail"]
        assert node.core.raft.configuration_index == before, "nothing was changed"
    async with running_node(config, fatal) as node:

        async def is_added() -> bool:  # once the node has written its new addresses into the log
            added = await add(node)
            assert added.status == 200 or added.body["code"] == "change_in_progress"
            return added.status == 200

        await node.wait(is_added)
    assert not fatal
