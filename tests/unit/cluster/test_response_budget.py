"""Clients that ask for much and read nothing: what they may hold, and for how long."""

import asyncio
import socket
from pathlib import Path

import pytest

from cluster import response_writer
from cluster.limits import LOG_BYTES_MAX, PULL_BYTES_MAX
from cluster.problems import Problem
from cluster.response_writer import FILES_RESERVED, HTTP_CONNECTIONS_MAX, ResponseBudget, connections_max
from tests.unit.cluster.conftest import Node

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-api.md"
PULL = "/v1/topics/large/queues/0/messages?offset=0&max_bytes=16777216&max_messages=100"


@pytest.fixture(autouse=True)
def patient_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pull on a busy machine would answer with a part of the messages after a quarter of a second."""
    monkeypatch.setattr("cluster.pages.SCAN_S_MAX", 60.0)


async def fill(node: Node) -> None:
    """12 MiB that a pull finds at once."""
    await node.call("PUT", "/v1/topics/large", {"queues": 1})
    for _ in range(16):
        answer = await node.call("POST", "/v1/topics/large/messages", {"messages": [{"body": "x" * (768 << 10)}]})
        assert answer.status == 200


def hungry(node: Node, target: str) -> socket.socket:
    """A client that asks and does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    address = node.broker.config.http_address()
    client.connect((address.host, address.port))
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
    return client


@pytest.mark.parametrize("target", [PULL, "/v1/log?from_index=1&max_bytes=16777216"])
async def test_responses_that_nobody_reads_are_bounded_and_given_back(node: Node, target: str) -> None:
    await fill(node)
    budget = node.core.response_budget
    clients = [hungry(node, target) for _ in range(5)]

    async def all_held() -> bool:
        return budget.held_bytes > 5 * (12 << 20)

    await node.wait(all_held)
    refused = await node.call("GET", target)
    assert (refused.status, refused.body["code"], refused.headers["Retry-After"]) == (429, "overloaded", "1")
    assert budget.held_bytes <= response_writer.RESPONSE_BYTES_MAX
    for client in clients:
        client.close()

    async def given_back() -> bool:
        return budget.held_bytes == 0

    await node.wait(given_back)
    assert (await node.call("GET", target)).status == 200


async def test_a_large_response_arrives_whole(node: Node) -> None:
    await fill(node)
    answer = await node.call("GET", PULL)
    assert answer.status == 200
    assert len(answer.body["messages"]) == 16
    assert answer.headers["KeelMQ-Applied-Index"]
    assert int(answer.headers["Content-Length"]) > 12 << 20


async def test_a_client_that_does_not_take_its_response_is_disconnected(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(node)
    monkeypatch.setattr("cluster.api.response_timeout_s", lambda core: 0.05)
    with hungry(node, PULL) as client:

        async def held() -> bool:
            return node.core.response_budget.held_bytes > 0

        async def dropped() -> bool:
            return node.core.response_budget.held_bytes == 0

        await node.wait(held)
        await node.wait(dropped)

        def rest() -> int:
            client.settimeout(60)
            count = 0
            try:
                while part := client.recv(1 << 20):
                    count += len(part)
            except ConnectionResetError:
                pass
            return count

        assert await asyncio.to_thread(rest) < 12 << 20


def test_the_budget_is_exact() -> None:
    budget = ResponseBudget(10)
    budget.require_room(10)
    with budget.held(10), pytest.raises(Problem):
        budget.require_room()
    with budget.held(4):
        budget.require_room(6)
        with pytest.raises(Problem):
            budget.require_room(7)
    assert budget.held_bytes == 0
    assert max(PULL_BYTES_MAX, LOG_BYTES_MAX) < response_writer.RESPONSE_BYTES_MAX


@pytest.mark.parametrize(
    ("soft", "expected"), [(1024, 1024 - FILES_RESERVED), (1 << 20, HTTP_CONNECTIONS_MAX), (-1, HTTP_CONNECTIONS_MAX)]
)
def test_connections_leave_files_to_the_log(monkeypatch: pytest.MonkeyPatch, soft: int, expected: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, soft))
    assert connections_max() == expected


def test_the_limits_are_documented() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"{response_writer.RESPONSE_BYTES_MAX >> 20} MiB of responses" in text
    assert f"{HTTP_CONNECTIONS_MAX:,} connections" in text
