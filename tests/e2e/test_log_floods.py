"""Tests that strangers cannot fill the log of a node: a line for each of their requests or connections is too much."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.process.line_pace import LINES_PER_PLACE_MAX
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

TIMES = 5 * LINES_PER_PLACE_MAX
LINES_MAX = 3 * LINES_PER_PLACE_MAX
"""Number of lines when a busy machine takes more than two intervals for the flood."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with ClusterProcess(tmp_path, nodes=1) as running:
        yield running.wait_leader()


def answer_to(port: int, sent: bytes) -> bytes:
    """Return everything that is answered until the node closes the connection."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(sent)
        while part := connection.recv(65_536):
            answer += part
    return answer


def test_requests_that_are_no_http(node: NodeProcess) -> None:
    for _ in range(TIMES):
        answer = answer_to(node.http_port, b"GET /x HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 400")
        assert b"x-content-type-options: nosniff" in answer.lower()
    assert 0 < node.output().count("Error handling request") <= LINES_MAX
    assert "Traceback" not in node.output()


def test_frames_of_strangers_at_the_peer_port(node: NodeProcess) -> None:
    for _ in range(TIMES):
        assert answer_to(node.peer_port, b"\xff" * 64) == b""
    wait_for(lambda: "closing a peer connection" in node.output(), "the line")
    assert node.output().count("closing a peer connection") <= LINES_MAX
