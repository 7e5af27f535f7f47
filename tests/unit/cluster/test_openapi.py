"""/openapi.json describes exactly the routes that are served, and their real answers."""

import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import cluster
from cluster.problems import KINDS
from store.commands.transactions import Discard
from tests.unit.cluster.conftest import Node, node_config, running_node
from tests.unit.cluster.schema_check import violations

Schema = dict[str, Any]
Call = tuple[str, str, str, Any, int]


@pytest.fixture
async def schema(node: Node) -> Schema:
    answer = await node.call("GET", "/openapi.json")
    assert answer.status == 200
    body: Schema = answer.body
    return body


def served(node: Node) -> Iterator[tuple[str, str]]:
    application: web.Application = node.broker.services.application
    for resource in application.router.resources():
        for route in resource:
            yield route.method.lower(), resource.canonical


async def test_every_served_route_is_described_and_nothing_else(node: Node, schema: Schema) -> None:
    described = {(method, path) for path, methods in schema["paths"].items() for method in methods}
    assert described == set(served(node))


async def test_the_document_lists_the_calls_that_are_served(node: Node) -> None:
    """docs/http-api.md lists method and path of every call."""
    text = (Path(__file__).parents[3] / "docs" / "http-api.md").read_text()
    table = text.split("## Calls")[1].split("\n### ")[0]
    shapes = {(method, re.sub(r"{\w+}", "{}", path)) for method, path in served(node)}
    calls: list[tuple[str, str]] = []
    for row in re.findall(r"^\| (`(?:PUT|GET|POST|DELETE)[^|]*) \|", table, re.MULTILINE):
        last = ""
        for cell in re.findall(r"`([^`]+)`", row):
            methods, _, path = cell.rpartition(" ")
            path = path if methods else last.rpartition("/")[0] + path
            calls += [(method.lower(), re.sub(r"{\w+}", "{}", path)) for method in (methods or "POST").split("/")]
            last = path
    assert set(calls) == shapes


def named_api() -> Iterator[type]:
    """Yield every class of the broker that has routes."""
    for each in pkgutil.walk_packages(cluster.__path__, "cluster."):
        if not each.name.endswith("__main__"):
            module = import_module(each.name)
            yield from (
                value
                for value in vars(module).values()
                if isinstance(value, type)
                and value.__module__ == each.name
                and callable(getattr(value, "routes", None))
            )


async def test_every_class_with_routes_serves_them(node: Node) -> None:
    serving = {type(getattr(route.handler, "__self__", None)) for route in node.broker.services.routes}
    found = {*named_api()}
    assert len(found) > 20
    assert sorted(each.__name__ for each in found - serving) == []


async def test_every_part_of_a_node_with_background_work_is_started_and_stopped(node: Node) -> None:
    services = node.broker.services
    parts = {
        name
        for name, part in vars(services).items()
        if name != "core" and hasattr(part, "start") and iscoroutinefunction(getattr(part, "stop", None))
    }
    assert {name for name in parts if getattr(services, name) not in services.at_work} == set()
    assert len(parts) == len(services.at_work)


async def test_operations_are_unique_and_errors_are_known(schema: Schema) -> None:
    operations = [operation for methods in schema["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        for status, response in operation["responses"].items():
            content = response.get("content", {}).get("application/problem+json")
            if content is not None:
                codes = content["schema"]["allOf"][1]["properties"]["code"]["enum"]
                assert all(KINDS[code].status == int(status) for code in codes)


async def test_references_lead_somewhere(schema: Schema) -> None:
    text = str(schema)
    names = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert names
    assert names <= schema["components"]["schemas"].keys()


def given_back(topic: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"topic": topic, "queue": 0, "offset": 0, "reason": "broken", **fields}]}


async def test_real_answers_follow_the_schema(node: Node, schema: Schema) -> None:
    topic, queue = "/v1/topics/{topic}", "/v1/topics/{topic}/queues/{queue}"
    group, transaction = "/v1/groups/{group}", "/v1/transactions/{transaction_id}"
    message = {"body": "x", "tag": "A", "keys": ["k"], "properties": {"p": "v"}, "queue": 0}
    half = {"transaction_id": "t1", "producer_group": "g", "messages": [{"topic": "a", "body": "h"}]}
    other = {"transaction_id": "t3", "producer_group": "g", "messages": [{"topic": "none", "body": "h"}]}
    together, decisions, told = "/v1/transactions/batch", "/v1/transactions/decisions", {"decision": "commit"}
    calls: list[Call] = [
        ("PUT", topic, "/v1/topics/a", {"queues": 1}, 201),
        ("PUT", topic, "/v1/topics/a", {}, 200),
        ("PUT", topic, "/v1/topics/a", {"queues": 0}, 400),
        ("GET", topic, "/v1/topics/a", None, 200),
        ("GET", topic, "/v1/topics/none", None, 404),
        ("GET", "/v1/topics", "/v1/topics?system=true", None, 200),
        ("POST", f"{topic}/messages", "/v1/topics/a/messages", {"messages": [message]}, 200),
        ("POST", f"{topic}/messages", "/v1/topics/none/messages", {"messages": [message]}, 404),
        ("POST", f"{topic}/messages", "/v1/topics/a/messages", {"messages": []}, 400),
        ("GET", f"{queue}/messages", "/v1/topics/a/queues/0/messages?offset=0", None, 200),
        ("GET", f"{queue}/messages", "/v1/topics/a/queues/0/messages?offset=9", None, 416),
        ("GET", f"{queue}/messages", "/v1/topics/a/queues/0/messages?offset=0&filter=p%20IS%20NULL", None, 200),
        ("GET", f"{queue}/messages", "/v1/topics/a/queues/0/messages?offset=0&filter=p%20IS", None, 400),
        ("GET", f"{queue}/offsets", "/v1/topics/a/queues/0/offsets?at=0", None, 200),
        ("GET", f"{queue}/offsets", "/v1/topics/a/queues/0/offsets?at=latest", None, 200),
        ("POST", "/v1/transactions", "/v1/transactions", half, 201),
        ("POST", f"{transaction}/unknown", "/v1/transactions/t1/unknown", None, 200),
        ("POST", f"{transaction}/commit", "/v1/transactions/t1/commit", {"client_id": "c"}, 200),
        ("POST", f"{transaction}/rollback", "/v1/transactions/t1/rollback", None, 409),
        ("GET", transaction, "/v1/transactions/t1", None, 200),
        ("POST", together, together, {"transactions": [{**half, "transaction_id": "t2"}, other]}, 200),
        ("POST", together, together, {"transactions": []}, 400),
        ("POST", decisions, decisions, {"decisions": [{**told, "transaction_id": each} for each in ("t2", "t3")]}, 200),
        ("POST", decisions, decisions, {"decisions": []}, 400),
        ("GET", "/v1/transactions", "/v1/transactions?limit=1", None, 200),
        ("PUT", "/v1/producer-groups/{group}", "/v1/producer-groups/g", {"check_url": None}, 200),
        ("GET", "/v1/producer-groups", "/v1/producer-groups?limit=1", None, 200),
        ("GET", "/v1/producer-groups/{group}/checks", "/v1/producer-groups/g/checks", None, 200),
        ("POST", f"{group}/members", "/v1/groups/g/members", {"topics": ["a"], "member_id": "m"}, 201),
        ("POST", f"{group}/members", "/v1/groups/h/members", {"topics": ["a"], "filters": {"a": "p = 1"}}, 201),
        ("POST", f"{group}/members", "/v1/groups/h/members", {"topics": ["a"], "filters": {"a": "p ="}}, 400),
        ("POST", f"{group}/members", "/v1/groups/h/members", {"topics": ["a"], "tags": {"a": "A"}}, 409),
        ("POST", f"{group}/members/{{member_id}}/heartbeat", "/v1/groups/g/members/m/heartbeat", None, 200),
        ("POST", f"{group}/members/{{member_id}}/heartbeat", "/v1/groups/g/members/n/heartbeat", None, 404),
        (
            "PUT",
            f"{group}/offsets",
            "/v1/groups/g/offsets",
            {"member_id": "m", "generation": 1, "offsets": [{"topic": "a", "queue": 0, "offset": 1}]},
            200,
        ),
        ("GET", f"{group}/offsets", "/v1/groups/g/offsets", None, 200),
        ("POST", f"{group}/reset", "/v1/groups/g/reset", {"topic": "a", "to": "earliest"}, 200),
        ("POST", f"{group}/pause", "/v1/groups/g/pause", {"operator": "ann", "reason": "why"}, 200),
        ("POST", f"{group}/members", "/v1/groups/g/members", {"topics": ["a"], "member_id": "m"}, 201),
        ("GET", f"{queue}/messages", "/v1/topics/a/queues/0/messages?offset=0&group=g", None, 200),
        ("GET", group, "/v1/groups/g", None, 200),
        ("POST", f"{group}/resume", "/v1/groups/g/resume", None, 200),
        ("POST", f"{group}/resume", "/v1/groups/none/resume", None, 404),
        ("GET", f"{group}/members", "/v1/groups/g/members?limit=1", None, 200),
        ("GET", "/v1/groups", "/v1/groups?limit=1", None, 200),
        ("DELETE", f"{group}/members/{{member_id}}", "/v1/groups/g/members/m", None, 204),
        ("GET", "/v1/cluster", "/v1/cluster", None, 200),
        ("GET", "/healthz", "/healthz", None, 200),
        ("GET", "/readyz", "/readyz", None, 200),
        ("DELETE", topic, "/v1/topics/a", None, 204),
    ]
    await check_answers(node, schema, calls)


async def test_answers_to_operators_follow_the_schema(node: Node, schema: Schema) -> None:
    transaction = "/v1/transactions/{transaction_id}"
    half = {"transaction_id": "t1", "producer_group": "g", "messages": [{"topic": "a", "body": "h"}]}
    who = {"operator": "ann", "reason": "why"}
    force = {**who, "source": "operator", "force": True}
    settings = "/v1/cluster/settings"
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    await node.call("POST", "/v1/transactions", half)
    await node.core.propose(Discard(("t1",)))
    pull = "/v1/topics/{topic}/queues/{queue}/messages"
    calls: list[Call] = [
        ("POST", f"{transaction}/commit", "/v1/transactions/t1/commit", who, 400),
        ("POST", f"{transaction}/resume", "/v1/transactions/t1/resume", who, 200),
        ("POST", f"{transaction}/commit", "/v1/transactions/t1/commit", force, 200),
        ("POST", f"{transaction}/resume", "/v1/transactions/t1/resume", who, 409),
        ("GET", transaction, "/v1/transactions/t1", None, 200),
        ("PUT", settings, settings, {"reject_transactions": True}, 200),
        ("PUT", settings, settings, {"reject_transactions": 1}, 400),
        ("GET", settings, settings, None, 200),
        ("POST", "/v1/transactions", "/v1/transactions", {**half, "transaction_id": "t2"}, 403),
        *(
            ("GET", pull, f"/v1/topics/{topic}/queues/0/messages?offset=0", None, 200)
            for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
        ),
    ]
    await check_answers(node, schema, calls)


async def check_answers(node: Node, schema: Schema, calls: list[Call]) -> None:
    """Check the status and the body of each call against the description. A call is method, template, path, payload and
    status.
    """
    for method, template, path, payload, status in calls:
        answer = await node.call(method, path, payload)
        assert answer.status == status, (method, path, answer)
        operation = schema["paths"][template][method.lower()]
        content = operation["responses"][str(status)].get("content", {})
        if status == 204:
            assert content == {}
            continue
        media = answer.headers["Content-Type"].partition(";")[0]
        assert media in content, (method, path, media)
        found = violations(answer.body, content[media]["schema"], schema)
        assert not found, (method, path, found)


async def test_answers_about_retries_follow_the_schema(node: Node, schema: Schema) -> None:
    group, queue = "/v1/groups/{group}", "/v1/topics/{topic}/queues/{queue}"
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    await node.call("POST", "/v1/topics/a/messages", {"messages": [{"body": "x"}]})
    calls: list[Call] = [
        ("PUT", group, "/v1/groups/r", {"retry_max_attempts": 1, "retry_delays_ms": [0]}, 201),
        ("PUT", group, "/v1/groups/r", {}, 200),
        ("POST", f"{group}/retries", "/v1/groups/r/retries", given_back("a", delay_ms=0), 200),
        ("POST", f"{group}/retries", "/v1/groups/r/retries", given_back("%RETRY%r"), 200),
        ("POST", f"{group}/retries", "/v1/groups/r/retries", given_back("none"), 404),
        ("GET", f"{group}/dead-letters", "/v1/groups/r/dead-letters", None, 200),
        ("POST", f"{group}/dead-letters/replay", "/v1/groups/r/dead-letters/replay", {"offsets": [0]}, 200),
        ("GET", f"{group}/dead-letters", "/v1/groups/r/dead-letters", None, 200),
        ("GET", f"{queue}/messages", "/v1/topics/%25RETRY%25r/queues/0/messages?offset=0", None, 200),
    ]
    await check_answers(node, schema, calls)


def test_the_checker_finds_what_is_wrong() -> None:
    root: Schema = {"components": {"schemas": {"Name": {"type": "string", "enum": ["a"]}}}}
    schema = {
        "type": "object",
        "properties": {"name": {"$ref": "#/components/schemas/Name"}, "size": {"type": "integer", "minimum": 0}},
        "required": ["name"],
    }
    assert not violations({"name": "a", "size": 1}, schema, root)
    name = {"name": "a"}
    wrongs: list[Any] = [{}, {"name": "b"}, {**name, "size": -1}, {**name, "size": "1"}, {**name, "more": 1}, []]
    for wrong in wrongs:
        assert violations(wrong, schema, root), wrong


async def test_an_error_that_is_not_described_fails_the_test_of_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.cluster.conftest.codes_of", lambda route: ())
    with pytest.raises(AssertionError, match=r"/v1/topics/\{topic\}', 'topic_not_found'"):
        async with running_node(node_config(tmp_path), []) as node:
            assert (await node.call("GET", "/v1/topics/none")).status == 404
