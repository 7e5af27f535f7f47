"""A node that is drained over the API: what it says, and that a node which no other can replace goes on leading."""

import pytest

from tests.unit.cluster.conftest import Node

PATH = "/v1/cluster/drain"


async def test_a_drained_node_says_so_and_leads_while_no_other_can(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await node.call("GET", PATH)).body == {"node_id": 1, "drained": False, "leads": True}
    for _ in range(2):  # a repetition changes nothing
        assert (await node.call("PUT", PATH, {"drained": True})).body == {"node_id": 1, "drained": True, "leads": True}
    assert (await node.call("PUT", "/v1/topics/orders", {"queues": 1})).status == 201
    assert (await node.call("GET", "/readyz?for=writes")).status == 200
    node.broker.services.alarms.look()
    status = (await node.call("GET", "/v1/cluster")).body
    assert [each["drained"] for each in status["nodes"]] == [True]
    (alarm,) = status["alarms"]
    assert (alarm["code"], alarm["severity"]) == ("node_drained", "warning")
    assert "keelmq node undrain 1" in alarm["detail"]
    assert b"keelmq_node_drained 1.0" in (await node.call("GET", "/metrics")).body
    assert caplog.text.count("this node is drained") == 1
    assert not (await node.call("PUT", PATH, {"drained": False})).body["drained"]
    node.broker.services.alarms.look()
    assert (await node.call("GET", "/v1/cluster")).body["alarms"] == []


@pytest.mark.parametrize("body", [{}, {"drained": "yes"}, {"drained": True, "for": 5}, []])
async def test_what_is_not_right_changes_nothing(node: Node, body: object) -> None:
    refused = await node.call("PUT", PATH, body)
    assert (refused.status, refused.body["code"]) == (400, "invalid_request")
    assert not (await node.call("GET", PATH)).body["drained"]
