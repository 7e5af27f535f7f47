"""Calls that pages poll: what the principal may do with a resource, and the counters of a node."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster.conftest import Node, node_config, running_node

ADMINISTRATOR = "administrator-of-the-tests-0123456789abcdef"


async def call_as(node: Node, token: str, method: str, path: str, payload: Any = None) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if payload is None else json.dumps(payload)
    async with node.session.request(method, path, data=data, headers=headers) as response:
        return response.status, await response.json()


@pytest.fixture
async def closed(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that enforces permissions."""
    file = tmp_path / "admin-token"
    file.touch(mode=0o600)
    file.write_text(ADMINISTRATOR + "\n")
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, auth="enforce", admin_token_file=str(file)), fatal) as node:
        yield node
    assert not fatal


async def test_a_principal_is_told_what_it_may_do(closed: Node) -> None:
    rules = [
        {"actions": ["send", "read"], "resource": "topic:orders*"},
        {"effect": "deny", "actions": ["send"], "resource": "topic:orders-of-others"},
    ]
    assert (await call_as(closed, ADMINISTRATOR, "PUT", "/v1/users/shop", {"rules": rules}))[0] == 201
    token = (await call_as(closed, ADMINISTRATOR, "POST", "/v1/users/shop/tokens", {}))[1]["token"]
    for resource, actions in (
        ("topic:orders", ["send", "read", "describe"]),
        ("topic:orders-of-others", ["read", "describe"]),
        ("topic:payments", []),
        ("group:orders", []),
        ("cluster", []),
    ):
        status, told = await call_as(closed, token, "GET", f"/v1/principal?resource={resource}")
        assert (status, told["principal"], told["actions"]) == (200, "shop", actions), resource
    _, told = await call_as(closed, ADMINISTRATOR, "GET", "/v1/principal?resource=cluster")
    assert told["actions"] == ["describe", "admin"]
    assert "actions" not in (await call_as(closed, token, "GET", "/v1/principal"))[1]
    status, problem = await call_as(closed, token, "GET", "/v1/principal?resource=nothing:x")
    assert (status, problem["code"]) == (400, "invalid_request")
    status, problem = await call_as(closed, "nobody" * 8, "GET", "/v1/principal?resource=cluster")
    assert (status, problem["code"]) == (401, "unauthenticated")


async def test_counters_are_those_of_the_metrics(node: Node) -> None:
    assert (await node.call("PUT", "/v1/topics/counted", {"queues": 1})).status == 201
    before = (await node.call("GET", "/v1/cluster/counters")).body
    sent = await node.call("POST", "/v1/topics/counted/messages", {"messages": [{"body": "x"}, {"body": "y"}]})
    assert sent.status == 200
    assert (await node.call("GET", "/v1/topics/counted/queues/0/messages?offset=0")).status == 200
    after = (await node.call("GET", "/v1/cluster/counters")).body
    assert {name: after[name] - before[name] for name in ("produced_messages", "pulled_messages")} == {
        "produced_messages": 2,
        "pulled_messages": 2,
    }
    assert after["produced_bytes"] > before["produced_bytes"]
    assert after["pulled_bytes"] > before["pulled_bytes"]
    text = (await node.call("GET", "/metrics")).body.decode()
    assert f"keelmq_produced_messages_total {float(after['produced_messages'])}" in text


async def test_counters_of_the_cluster_are_of_all_that_was_applied(node: Node) -> None:
    """Any node can tell the rates of the cluster: what groups acknowledge is in the log, too."""
    assert (await node.call("PUT", "/v1/topics/counted", {"queues": 1})).status == 201
    before = (await node.call("GET", "/v1/cluster/counters")).body
    messages = {"messages": [{"body": "x"}, {"body": "y"}, {"body": "z"}]}
    assert (await node.call("POST", "/v1/topics/counted/messages", messages)).status == 200
    for offset in (1, 1, 2):
        offsets = {"offsets": [{"topic": "counted", "queue": 0, "offset": offset}]}
        assert (await node.call("PUT", "/v1/groups/counters/offsets", offsets)).status == 200
    refused = {
        "offsets": [{"topic": "counted", "queue": 0, "offset": 3}, {"topic": "no-such", "queue": 0, "offset": 0}]
    }
    assert (await node.call("PUT", "/v1/groups/counters/offsets", refused)).status == 404
    reset = {"topic": "counted", "to": "earliest"}
    assert (await node.call("POST", "/v1/groups/counters/reset", reset)).status == 200
    popped = await node.call("POST", "/v1/groups/poppers/pop", {"topic": "counted", "max_messages": 3})
    handles = [each["receipt_handle"] for each in popped.body["messages"]]
    assert (await node.call("POST", "/v1/groups/poppers/pop/ack", {"receipt_handles": handles[:2]})).status == 200
    after = (await node.call("GET", "/v1/cluster/counters")).body
    assert {name: after[name] - before[name] for name in ("appended_messages", "acknowledged_messages")} == {
        "appended_messages": 3,
        "acknowledged_messages": 2 + 2,
    }
