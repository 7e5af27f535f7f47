"""Tests clients that are slow, large or broken: each is answered or cut off, and no other client notices."""

import json
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.process

REQUEST_TIMEOUT_MS = 500
MAX_REQUEST_BYTES = 1 << 20
PATH = "/v1/topics/limits/messages"


@contextmanager
def limited(directory: Path, request_timeout_ms: int) -> Iterator[NodeProcess]:
    options = (
        *("--election-timeout-ms", "300", "--heartbeat-ms", "50"),
        *("--request-timeout-ms", str(request_timeout_ms), "--max-request-bytes", str(MAX_REQUEST_BYTES)),
    )
    with ClusterProcess(directory, nodes=1, options=options) as running:
        node = running.wait_leader()
        assert node.request("PUT", "/v1/topics/limits", payload={"queues": 1}).status == 201
        yield node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Return a node that gives up nobody whom a busy machine holds up."""
    with limited(tmp_path_factory.mktemp("limits"), CALL_PATIENCE_MS) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Return a node that gives up soon."""
    with limited(tmp_path_factory.mktemp("impatient"), REQUEST_TIMEOUT_MS) as running:
        yield running


@contextmanager
def opened(node: NodeProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", node.http_port), timeout=PATIENCE_S) as connection:
        yield connection


@pytest.fixture
def connection(node: NodeProcess) -> Iterator[socket.socket]:
    with opened(node) as connection:
        yield connection


def head(method: str = "POST", path: str = PATH, **headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{k.replace('_', '-')}: {v}" for k, v in headers.items()),
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def rest(connection: socket.socket) -> bytes:
    """Return everything received until the node closes the connection."""
    received = b""
    try:
        while part := connection.recv(65536):
            received += part
    except ConnectionResetError:
        pass
    return received


def problem_code(response: bytes) -> str:
    body = response.split(b"\r\n\r\n", 1)[1]
    return str(json.loads(body)["code"])


def serves(node: NodeProcess) -> bool:
    return node.request("POST", PATH, payload={"messages": [{"body": "x"}]}).status == 200


def test_a_slow_body_is_given_up_and_others_are_served_meanwhile(impatient: NodeProcess) -> None:
    with opened(impatient) as connection:
        begun_s = time.monotonic()
        connection.sendall(head(Content_Type="application/json", Content_Length="100") + b'{"messages":')
        wait_for(lambda: serves(impatient), "another client to be served")
        response = rest(connection)
        waited_ms = (time.monotonic() - begun_s) * 1000
    assert response.startswith(b"HTTP/1.1 408 ")
    assert problem_code(response) == "request_timeout"
    assert waited_ms >= REQUEST_TIMEOUT_MS
    wait_for(lambda: serves(impatient), "another client to be served")


def test_a_body_that_trickles_in_is_given_up_too(impatient: NodeProcess) -> None:
    response = b""
    with opened(impatient) as connection:
        connection.sendall(head(Content_Type="application/json", Content_Length="1000000"))
        connection.settimeout(0.05)
        deadline_s = time.monotonic() + PATIENCE_S
        while not response and time.monotonic() < deadline_s:
            connection.sendall(b" ")
            try:
                response = connection.recv(65536)
            except TimeoutError:
                continue
    assert response.startswith(b"HTTP/1.1 408 ")


def test_a_half_closed_client_is_let_go(node: NodeProcess, connection: socket.socket) -> None:
    before = node.request("GET", "/v1/topics/limits").json()
    connection.sendall(head(Content_Type="application/json", Content_Length="100") + b'{"messages":')
    connection.shutdown(socket.SHUT_WR)
    rest(connection)
    assert node.request("GET", "/v1/topics/limits").json() == before
    assert serves(node)


def test_a_client_that_never_reads_its_answer_hurts_nobody(node: NodeProcess) -> None:
    for _ in range(8):
        assert node.request("POST", PATH, payload={"messages": [{"body": "x" * 900_000, "queue": 0}]}).status == 200
    request = head("GET", "/v1/topics/limits/queues/0/messages?offset=0&max_bytes=16000000&max_messages=1000")
    clients = [socket.create_connection(("127.0.0.1", node.http_port)) for _ in range(4)]
    try:
        for client in clients:
            client.sendall(request)
        assert serves(node)
    finally:
        for client in clients:
            client.close()


def test_an_announced_body_that_is_too_large_is_refused_unread(connection: socket.socket) -> None:
    connection.sendall(head(Content_Type="application/json", Content_Length=str(MAX_REQUEST_BYTES + 1)))
    received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in received


def test_a_chunked_body_is_cut_off_at_the_limit(connection: socket.socket) -> None:
    connection.sendall(head(Content_Type="application/json", Transfer_Encoding="chunked"))
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    try:
        for _ in range(MAX_REQUEST_BYTES // 0x10000 + 1):
            connection.sendall(chunk)
    except (BrokenPipeError, ConnectionResetError):
        pass
    received = connection.recv(65536)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"request_too_large" in received


def test_a_small_body_that_unpacks_to_a_large_one_is_refused(node: NodeProcess) -> None:
    packed = zlib.compress(b" " * (8 * MAX_REQUEST_BYTES))
    assert len(packed) < 20_000
    reply = node.request("POST", PATH, packed, headers={"Content-Encoding": "deflate"})
    assert (reply.status, reply.json()["code"]) == (413, "request_too_large")


def test_a_body_that_is_not_what_its_encoding_says_is_refused(node: NodeProcess) -> None:
    reply = node.request("POST", PATH, b'{"messages":[]}', headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01\x00" * 10, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", bytes(1000) + b"\r\n\r\n"],
    ids=["tls", "no-path", "version", "zeros"],
)
def test_what_is_not_http_is_refused(node: NodeProcess, connection: socket.socket, garbage: bytes) -> None:
    connection.sendall(garbage)
    connection.shutdown(socket.SHUT_WR)
    received = rest(connection)
    assert received == b"" or received.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    assert serves(node)


def test_an_endless_header_is_refused(node: NodeProcess, connection: socket.socket) -> None:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n")
    assert rest(connection)[9:12] == b"400"
    assert serves(node)


def test_idle_connections_cost_nobody_anything(node: NodeProcess) -> None:
    idle = [socket.create_connection(("127.0.0.1", node.http_port)) for _ in range(200)]
    try:
        for each in idle:
            each.sendall(b"POST " + PATH.encode())
        assert serves(node)
    finally:
        for each in idle:
            each.close()


def test_a_write_that_is_abandoned_is_still_whole(node: NodeProcess) -> None:
    """A client hangs up right after its request: the message is there once, or not at all."""
    path = "/v1/topics/limits/queues/0/offsets?at=latest"
    before = node.request("GET", path).json()["offset"]
    body = b'{"messages":[{"body":"abandoned","queue":0}]}'
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", node.http_port)) as connection:
            request = head(Content_Type="application/json", Content_Length=str(len(body)))
            connection.sendall(request + body)
    assert serves(node)
    wait_for(lambda: b"keelmq_in_flight_bytes 0.0" in node.request("GET", "/metrics").body, "writes to end")
    after = node.request("GET", path).json()["offset"]
    assert before < after <= before + 21
