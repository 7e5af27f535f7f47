"""Clients that ask for much and read nothing may hold only so much memory, for a limited time."""

import asyncio
import resource
import socket
from pathlib import Path

import pytest

from cluster.budgets.connection_limits import FILES_RESERVED, FILES_WANTED, connections_max, raise_limit_of_files
from cluster.budgets.connections import HEARD_MAX, RESERVED_CONNECTIONS
from cluster.budgets.holdings import ADMINISTRATION_BYTES
from cluster.budgets.turns import BODY_TURN_BYTES, PAGE_TURN_BYTES
from cluster.http.request_body import ADMINISTRATION_BODY_BYTES_MAX, SMALL_BODY_BYTES_MAX, WITHOUT_TURN_BYTES_MAX
from cluster.limits import HTTP_CONNECTIONS_MAX, LOG_BYTES_MAX, PULL_BYTES_MAX, RESPONSE_BYTES_MAX
from tests.unit.cluster.conftest import Node

DOCUMENT = Path(__file__).parents[3] / "docs" / "http-api.md"
PULL = "/v1/topics/large/queues/0/messages?offset=0&max_bytes=16777216&max_messages=100"


async def fill(node: Node) -> None:
    """Store 12 MiB that one pull finds at once."""
    await node.call("PUT", "/v1/topics/large", {"queues": 1})
    for _ in range(16):
        answer = await node.call("POST", "/v1/topics/large/messages", {"messages": [{"body": "x" * (768 << 10)}]})
        assert answer.status == 200


def hungry(node: Node, target: str) -> socket.socket:
    """Return a client that sends a request and does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    address = node.broker.config.http_address()
    client.connect((address.host, address.port))
    client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


@pytest.mark.parametrize("target", [PULL, "/v1/log?from_index=1&max_bytes=16777216"])
async def test_responses_that_nobody_reads_are_bounded_and_given_back(node: Node, target: str) -> None:
    await fill(node)
    budget = node.core.response_budget
    clients = [hungry(node, target) for _ in range(2)]

    async def all_held() -> bool:
        return budget.held > 2 * (12 << 20)

    await node.wait(all_held)
    refused = await node.call("GET", target)
    assert (refused.status, refused.body["code"], refused.headers["Retry-After"]) == (429, "overloaded", "1")
    assert budget.held <= RESPONSE_BYTES_MAX / 2
    for client in clients:
        client.close()

    async def given_back() -> bool:
        return budget.held == 0

    await node.wait(given_back)
    assert (await node.call("GET", target)).status == 200


@pytest.mark.parametrize("target", [PULL, "/v1/log?from_index=1&max_bytes=16777216"])
async def test_pages_of_one_address_are_put_together_in_turns(node: Node, target: str) -> None:
    """Pages take turns before they count as unread: many that wait for the disk together would be in memory
    together.
    """
    await fill(node)
    core = node.core
    turns = core.log_page_turns if target.startswith("/v1/log") else core.queue_page_turns
    await turns.take("127.0.0.1", PAGE_TURN_BYTES)
    asked = [asyncio.create_task(node.call("GET", target)) for _ in range(2)]

    async def both_wait() -> bool:
        return sum(map(len, turns._waiting.values())) == 2

    await node.wait(both_wait)
    small = await node.call("GET", "/v1/topics/large")
    assert small.status == 200
    turns.give_back("127.0.0.1", PAGE_TURN_BYTES)
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200, 200]
    assert turns.taken_max == PAGE_TURN_BYTES


async def test_a_turn_that_does_not_come_in_time_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await node.call("PUT", "/v1/topics/large", {"queues": 1})).status == 201
    monkeypatch.setattr(node.core, "_timeout_s", lambda: 0.01)
    await node.core.queue_page_turns.take("127.0.0.1", PAGE_TURN_BYTES)
    answer = await node.call("GET", PULL)
    assert (answer.status, answer.body["code"]) == (429, "overloaded")
    node.core.queue_page_turns.give_back("127.0.0.1", PAGE_TURN_BYTES)
    assert (await node.call("GET", PULL)).status == 200
    assert not node.core.queue_page_turns._waiting


async def test_small_bodies_are_taken_beside_large_ones_of_their_address(node: Node) -> None:
    """A heartbeat or a commit is no less urgent because somebody behind the same proxy sends much."""
    await node.call("PUT", "/v1/topics/t", {"queues": 1})
    budget, held = node.core.request_budget, 64 << 20
    budget.take("127.0.0.1", held)
    join = {"topics": ["t"], "member_id": "m"}
    assert (await node.call("POST", "/v1/groups/g/members", join)).status == 201
    assert (await node.call("POST", "/v1/groups/g/members/m/heartbeat", {"generation": 1})).status == 200
    messages = {"messages": [{"body": "x" * SMALL_BODY_BYTES_MAX}]}
    refused = await node.call("POST", "/v1/topics/t/messages", messages)
    assert (refused.status, refused.body["code"]) == (429, "overloaded")
    budget.give_back("127.0.0.1", held)
    assert (await node.call("POST", "/v1/topics/t/messages", messages)).status == 200
    assert budget.held == 0


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
    monkeypatch.setattr("cluster.http.app.response_timeout_s", lambda core: 0.05)
    with hungry(node, PULL) as client:

        async def held() -> bool:
            return node.core.response_budget.held > 0

        async def dropped() -> bool:
            return node.core.response_budget.held == 0

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


def test_the_largest_response_fits_the_share_of_one_address() -> None:
    assert 2 * max(PULL_BYTES_MAX, LOG_BYTES_MAX) <= RESPONSE_BYTES_MAX


@pytest.mark.parametrize(
    ("soft", "expected"),
    [
        (1024, 1024 - FILES_RESERVED - RESERVED_CONNECTIONS - HEARD_MAX),
        (1 << 20, HTTP_CONNECTIONS_MAX),
        (-1, HTTP_CONNECTIONS_MAX),
    ],
)
def test_connections_leave_files_to_the_log(monkeypatch: pytest.MonkeyPatch, soft: int, expected: int) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (soft, soft))
    assert connections_max(HTTP_CONNECTIONS_MAX) == expected


def test_a_node_raises_its_limit_of_files_as_far_as_it_may() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        raise_limit_of_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(before[1], FILES_WANTED), before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limits_are_documented() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"{RESPONSE_BYTES_MAX >> 20} MiB of responses" in text
    assert f"{HTTP_CONNECTIONS_MAX:,} connections" in text
    assert f"leaves beside {FILES_RESERVED + RESERVED_CONNECTIONS + HEARD_MAX}" in text
    assert f"{RESERVED_CONNECTIONS} of these may be open at a time" in text
    assert f"at most {ADMINISTRATION_BODY_BYTES_MAX >> 10} KiB" in text
    assert f"{ADMINISTRATION_BYTES >> 20} MiB more" in text
    assert f"Bodies over {WITHOUT_TURN_BYTES_MAX >> 10} KiB of one address" in text
    assert f"by turns, {BODY_TURN_BYTES >> 20} MiB" in text
    assert f"Bodies of up to {SMALL_BODY_BYTES_MAX >> 10} KiB are never refused" in text
    assert f"more than {PAGE_TURN_BYTES >> 20} MiB of pages together" in text
