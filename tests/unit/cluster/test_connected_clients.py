"""The list of a node's clients: connections with principal, user agent, requests and groups."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cluster.budgets.client_notes import (
    AGENT_CHARACTERS_MAX,
    CHECKING,
    CONSUMING,
    GROUPS_NOTED_MAX,
    LEAVING,
    ClientNotes,
)
from cluster.limits import CLIENTS_MAX
from tests.unit.cluster.conftest import Node, running_node
from tests.unit.cluster.test_administration import two_listeners, url_of

PATH = "/v1/cluster/clients"


async def of_agent(node: Node, agent: str) -> list[dict[str, Any]]:
    url = node.core.config.advertised_admin_url() or ""
    answer = await node.call("GET", f"{url}{PATH}?limit={CLIENTS_MAX}")
    assert answer.status == 200
    return [each for each in answer.body["clients"] if each["user_agent"] == agent]


def client(node: Node, agent: str, url: str | None = None) -> aiohttp.ClientSession:
    """Return a session with one connection of its own: to the URL, by default to the listener of clients."""
    url = url or f"http://{node.broker.config.http_listen}"
    return aiohttp.ClientSession(url, headers={"User-Agent": agent}, connector=aiohttp.TCPConnector(limit=1))


async def test_a_connection_is_listed_while_it_is_open(node: Node) -> None:
    async with client(node, "shop/1") as session:
        await (await session.get("/v1/topics")).read()
        await (await session.get("/v1/topics")).read()
        (found,) = await of_agent(node, "shop/1")
        assert (found["requests"], found["in_flight"], found["principal"]) == (2, 0, None)
        assert found["address"].startswith("127.0.0.1:")
        assert found["connected_ms"] >= 0
        assert (found["consumer_groups"], found["producer_groups"]) == ([], [])

    async def is_gone() -> bool:
        return not await of_agent(node, "shop/1")

    await node.wait(is_gone)


async def test_a_request_that_waits_is_in_flight(node: Node) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    async with client(node, "waiter") as session:
        pull = asyncio.create_task(session.get("/v1/topics/a/queues/0/messages?offset=0&wait_ms=30000"))

        async def is_waiting() -> bool:
            return [each["in_flight"] for each in await of_agent(node, "waiter")] == [1]

        await node.wait(is_waiting)
        await node.call("POST", "/v1/topics/a/messages", {"messages": [{"body": "x", "queue": 0}]})
        await (await pull).read()
        assert [each["in_flight"] for each in await of_agent(node, "waiter")] == [0]


async def test_groups_are_those_of_requests_that_were_answered(node: Node) -> None:
    await groups_are_noted(node, node.core.config.advertised_url())


async def test_groups_of_requests_at_both_listeners_are_noted(tmp_path: Path) -> None:
    fatal: list[str] = []
    async with running_node(two_listeners(tmp_path), fatal) as node:
        for url in (url_of(node), node.core.config.advertised_url()):
            await groups_are_noted(node, url)
    assert not fatal


async def groups_are_noted(node: Node, url: str) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    agent = f"worker of {url}"
    async with client(node, agent, url) as session:

        async def post(path: str, body: dict[str, Any]) -> int:
            async with session.post(path, json=body) as response:
                await response.read()
                return response.status

        assert await post("/v1/groups/g/members", {"topics": ["a"], "member_id": "m1"}) == 201
        assert await post("/v1/groups/g/members/m1/heartbeat", {}) == 200
        assert await post("/v1/groups/g/members/other/heartbeat", {}) == 404
        assert await post("/v1/groups/p/pop", {"topic": "a"}) == 200
        assert await post("/v1/groups/none/pop", {"topic": "none"}) == 404
        half = {"producer_group": "shop", "messages": [{"topic": "a", "body": "h"}]}
        assert await post("/v1/transactions", half) == 201
        assert await post("/v1/transactions/batch", {"transactions": [{**half, "producer_group": "two"}]}) == 200
        async with session.get("/v1/producer-groups/checked/checks") as response:
            assert response.status == 200
        (found,) = await of_agent(node, agent)
        assert found["consumer_groups"] == [{"group": "g", "member_id": "m1"}, {"group": "p", "member_id": None}]
        assert found["producer_groups"] == ["shop", "two", "checked"]
        async with session.delete("/v1/groups/g/members/m1") as response:
            assert response.status < 300
        (found,) = await of_agent(node, agent)
        assert [each["group"] for each in found["consumer_groups"]] == ["p"]


async def test_halves_that_were_refused_name_no_producer_group(node: Node) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    async with client(node, "shop") as session:

        async def send(*halves: dict[str, Any]) -> list[str]:
            async with session.post("/v1/transactions/batch", json={"transactions": halves}) as response:
                assert response.status == 200
                return ["problem" if "problem" in each else "ok" for each in (await response.json())["results"]]

        def half(group: str, topic: str = "a") -> dict[str, Any]:
            return {"transaction_id": "t", "producer_group": group, "messages": [{"topic": topic, "body": "h"}]}

        assert await send({**half("nowhere", "none"), "transaction_id": "u"}, half("shop")) == ["problem", "ok"]
        assert await send(half("another")) == ["problem"], "the id belongs to another transaction"
        (found,) = await of_agent(node, "shop")
        assert found["producer_groups"] == ["shop"]


async def test_a_client_that_lists_members_consumes_nothing(node: Node) -> None:
    await node.call("PUT", "/v1/topics/a", {"queues": 1})
    await node.call("POST", "/v1/groups/g/members", {"topics": ["a"], "member_id": "m1"})
    async with client(node, "operator") as session:
        async with session.get("/v1/groups/g/members") as response:
            assert response.status == 200
        (found,) = await of_agent(node, "operator")
        assert found["consumer_groups"] == []


async def test_the_calls_that_name_groups_are_routes(node: Node) -> None:
    paths = (await node.call("GET", "/openapi.json")).body["paths"]
    routes = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert {*CONSUMING, CHECKING, LEAVING} - routes == set()


async def test_the_list_has_pages(node: Node) -> None:
    sessions = [client(node, f"c{number}") for number in range(3)]
    try:
        for session in sessions:
            await (await session.get("/healthz")).read()
        after, numbers = 0, list[int]()
        while True:
            page = (await node.call("GET", f"{PATH}?limit=1&after={after}")).body
            numbers += [each["connection"] for each in page["clients"]]
            if page["next"] is None:
                break
            after = page["next"]
        whole = (await node.call("GET", PATH)).body
        assert whole["next"] is None
        assert numbers == [each["connection"] for each in whole["clients"]] == sorted(numbers)
        assert len(numbers) >= 4
    finally:
        for session in sessions:
            await session.close()
    for query in ("limit=0", f"limit={CLIENTS_MAX + 1}", "after=-1", "page=2"):
        assert (await node.call("GET", f"{PATH}?{query}")).status == 400


async def test_a_user_agent_is_cut(node: Node) -> None:
    async with client(node, "x" * 4_000) as session:
        await (await session.get("/v1/topics")).read()
        assert len(await of_agent(node, "x" * AGENT_CHARACTERS_MAX)) == 1


def test_few_groups_are_noted_of_one_connection() -> None:
    notes = ClientNotes()
    for number in range(GROUPS_NOTED_MAX + 2):
        notes.produces(f"g{number}")
    assert list(notes.producer_groups) == [f"g{number}" for number in range(2, GROUPS_NOTED_MAX + 2)]


@pytest.mark.parametrize("now_s", [0.0, 1.0, 2.5])
def test_credentials_are_looked_at_once_a_second(now_s: float) -> None:
    notes = ClientNotes()
    assert notes.is_look_due(now_s)
    assert not notes.is_look_due(now_s + 0.9)
    assert notes.is_look_due(now_s + 1.0)
