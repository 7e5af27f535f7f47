"""Requests can be answered before their body has arrived."""

import asyncio
import socket

import pytest

from cluster.budgets.time_shares import WAITED_S
from tests.unit.cluster.conftest import Node

BODY_BYTES = 4 << 20
OTHER = "192.0.2.1"


def address_of(node: Node) -> list[str]:
    return (node.core.config.http_listen or "").split(":")


def send_all_then_read(node: Node) -> bytes:
    """Send a whole request to a missing topic before reading anything, and return the start of the answer."""
    host, port = address_of(node)
    with socket.create_connection((host, int(port)), timeout=60) as client:
        head = f"POST /v1/topics/none/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {BODY_BYTES}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        client.sendall(bytes(BODY_BYTES))
        return client.recv(1024)


async def test_a_client_that_sends_before_it_reads_sees_why_it_is_refused(node: Node) -> None:
    answer = await asyncio.to_thread(send_all_then_read, node)
    assert answer.startswith(b"HTTP/1.1 404"), answer
    assert b"Connection: close" in answer


async def test_reading_a_refused_body_is_charged_to_its_address(node: Node) -> None:
    async def others_wait() -> None:
        while True:
            node.core.time_shares.count_wait(OTHER, WAITED_S)
            await asyncio.sleep(0.1)

    def rested_s() -> float:
        return sum(sample.value for metric in node.core.time_shares.counters() for sample in metric.samples)

    waiting = asyncio.create_task(others_wait())
    await asyncio.to_thread(send_all_then_read, node)
    waiting.cancel()
    assert rested_s() > 0


@pytest.mark.parametrize("follows", [b"", b" "])
async def test_a_connection_ends_when_its_body_does_not(node: Node, follows: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address_of(node))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n" + follows)
    assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    await reader.read()
    assert reader.at_eof()
    writer.close()
