"""Three real nodes whose HTTP API is under TLS: clients verify them, files are replaced, strangers disturb nobody."""

import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.limits import TLS_HANDSHAKE_TIMEOUT_S
from cluster.process.exit_codes import ExitCode
from deploy.local_nodes import free_ports, make_secret
from keelmq import Consumer, Producer, ReceivedMessage, Tls
from keelmq.cli.app import app
from keelmq.errors import KeelMQError, ServerNotTrusted
from raft.config import TlsConfig
from tests.certificates import Authority
from tests.e2e.cluster_process import OPTIONS, ClusterProcess, NodeProcess, ok, until, wait_for
from tests.e2e.fixtures import Shell
from tests.e2e.test_peer_tls import MESSAGES, send
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S

CLOSED = 'keelmq_http_connections_closed_total{reason="handshake"}'


def flags_of(tls: TlsConfig) -> list[str]:
    return ["--http-tls-cert", tls.certificate_file, "--http-tls-key", tls.key_file]


def client_context(ca_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    return context


def connect(node: NodeProcess) -> socket.socket:
    return socket.create_connection((node.host, node.http_port), timeout=PATIENCE_S)


def secured(node: NodeProcess) -> ssl.SSLSocket:
    assert node.tls is not None
    return node.tls.wrap_socket(connect(node), server_hostname=node.host)


def shown(node: NodeProcess) -> bytes:
    """Return the certificate that the node shows on a new connection."""
    with secured(node) as connection:
        return connection.getpeercert(binary_form=True) or b""


def issued(tls: TlsConfig) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(tls.certificate_file).read_text())


def ask(connection: socket.socket) -> bytes:
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return connection.recv(1 << 16)


def metric(node: NodeProcess, name: str) -> float:
    lines = node.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).rpartition(" ")[2])


@pytest.fixture
def cluster(tmp_path: Path, ca: Authority) -> Iterator[ClusterProcess]:
    certificates = [ca.issue_server(tmp_path, f"http-{node_id}") for node_id in (1, 2, 3)]
    found = ClusterProcess(tmp_path, tls=client_context(certificates[0].ca_file))
    for node, tls in zip(found.nodes.values(), certificates, strict=True):
        node.arguments += flags_of(tls)
    with found:
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        yield found


def test_nodes_say_where_they_are_and_redirect_there(cluster: ClusterProcess) -> None:
    leader, follower = cluster.wait_leader(), cluster.follower()
    assert f"serves {leader.url}," in leader.output()
    answer = follower.request("POST", MESSAGES, payload={"messages": [{"body": "x"}]})
    assert (answer.status, answer.headers["location"]) == (307, f"{leader.url}{MESSAGES}")
    with secured(leader) as connection:
        assert connection.version() == "TLSv1.3"
        assert ask(connection).startswith(b"HTTP/1.1 200")


def test_certificates_are_replaced_while_connections_go_on(
    cluster: ClusterProcess, ca: Authority, tmp_path: Path
) -> None:
    node = cluster.wait_leader()
    name = f"http-{node.node_id}"
    with secured(node) as kept:
        assert ask(kept).startswith(b"HTTP/1.1 200")
        tls = ca.issue_server(tmp_path, name)
        wait_for(lambda: shown(node) == issued(tls), "the new certificate")
        assert ask(kept).startswith(b"HTTP/1.1 200")
        assert kept.getpeercert(binary_form=True) != issued(tls)
    Path(tls.key_file).write_text("broken")
    detail = wait_for(lambda: node.alarms().get(("certificate_refused", "clients")), "the alarm")
    assert f"http_tls_key {tls.key_file}: the file has no PRIVATE KEY" in detail
    assert f"the new TLS files are not used: http_tls_key {tls.key_file}" in node.output()
    assert shown(node) == issued(tls), "the former files stay in use"
    ca.issue_server(tmp_path, name)
    wait_for(lambda: ("certificate_refused", "clients") not in node.alarms(), "the end of the alarm")
    assert metric(node, "keelmq_http_certificate_expires_timestamp_seconds") > time.time()
    send(cluster.wait_leader(), 1)


def test_strangers_are_told_nothing_and_shut_nobody_out(cluster: ClusterProcess) -> None:
    node = cluster.wait_leader()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(node)) for _ in range(200)]
        silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")  # a client hello that does not go on
        for sent in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)), b""):
            with connect(node) as plain:
                plain.sendall(sent)
                plain.shutdown(socket.SHUT_WR)
                assert len(read_all(plain)) <= 7, "an alert of TLS at most"
        send(node, 1)
        assert metric(node, "keelmq_http_connections") >= len(silent), "they count during the handshake"
        begun_s = time.monotonic()
        for connection in silent:
            assert len(read_all(connection)) <= 7
        assert time.monotonic() - begun_s < PATIENCE_S + TLS_HANDSHAKE_TIMEOUT_S
    wait_for(lambda: metric(node, CLOSED) >= len(silent), "the connections to be counted")
    wait_for(
        lambda: "127.0.0.1 has no TLS handshake with this node: HTTP_REQUEST" in node.output(), "the log to say so"
    )
    assert "Traceback" not in node.output()
    send(node, 2)


def test_unfinished_handshakes_make_room_for_others(tmp_path: Path, ca: Authority) -> None:
    tls = ca.issue_server(tmp_path)
    found = ClusterProcess(tmp_path, nodes=1, tls=client_context(tls.ca_file))
    found.nodes[1].arguments += [*flags_of(tls), "--max-connections", "8"]
    with found, contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(connect(found.nodes[1]))
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        send(found.nodes[1], 1)
        assert metric(found.nodes[1], 'keelmq_http_connections_closed_total{reason="idle"}') >= 72


def test_a_new_node_joins_by_https(cluster: ClusterProcess, ca: Authority, tmp_path: Path) -> None:
    leader = cluster.wait_leader()
    node = NodeProcess(4, tmp_path, *free_ports(2))
    node.tls = leader.tls
    (tmp_path / "foreign").mkdir()
    foreign = Authority("Foreign").issue_server(tmp_path / "foreign")
    tls = ca.issue_server(tmp_path, "http-4")
    node.arguments = ["--cluster-id", "e2e", "--node-id", "4", "--data-dir", str(node.data_dir), "--join", leader.url]
    node.arguments += ["--peer-secret-file", str(make_secret(tmp_path)), "--segment-bytes", str(4 << 20), *OPTIONS]
    node.arguments += ["--http-url", node.url, "--http-listen", f"{node.host}:{node.http_port}", *flags_of(tls)]
    node.arguments += ["--peer-listen", f"{node.host}:{node.peer_port}", "--min-free-bytes", "0"]
    try:
        node.start(extra=["--http-ca", foreign.ca_file])
        assert node.wait_exit() == ExitCode.BAD_CONFIG
        assert f"join: the certificate of {leader.url} cannot be verified" in node.output()
        assert f"http_ca {foreign.ca_file}" in node.output(), "the next step"
        node.start(extra=["--http-ca", tls.ca_file])
        member = {"node_id": 4, "peer_address": f"{node.host}:{node.peer_port}", "http_address": node.url}
        ok(leader.request("POST", "/v1/cluster/members", payload=member))
        wait_for(node.ready, "the new node to be ready")
    finally:
        node.kill()


async def test_clients_send_and_receive_by_way_of_a_follower(cluster: ClusterProcess) -> None:
    tls = Tls(ca_file=str(cluster.directory / "http-1.ca"))
    async with Producer(cluster.follower().url, tls=tls) as producer:
        sent = [await producer.send("kept", str(number).encode()) for number in range(10)]
    assert [each.offset for each in sent] == list(range(10))
    received: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        received.append(message.body)

    async with Consumer(cluster.follower().url, "readers", "kept", handle, start="earliest", tls=tls):
        await until(lambda: len(received) == 10)
    assert received == [str(number).encode() for number in range(10)]


async def test_servers_that_are_not_trusted_are_refused_at_once(cluster: ClusterProcess, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    foreign = Authority("Foreign").issue_server(tmp_path / "foreign")
    for servers, tls in (
        (cluster.urls, Tls(ca_file=foreign.ca_file)),
        (cluster.urls, Tls(ca_file=None)),
        ([cluster.urls[0].replace("127.0.0.1", "localhost")], Tls(ca_file=str(cluster.directory / "http-1.ca"))),
    ):
        async with Producer(servers, send_timeout_ms=3_600_000, tls=tls) as producer:
            with pytest.raises(ServerNotTrusted, match=r"the server's certificate cannot be verified .* give ca_file"):
                await producer.send("kept", b"x")


async def test_a_plain_client_is_told_to_speak_tls(cluster: ClusterProcess) -> None:
    url = cluster.wait_leader().url.replace("https", "http")
    async with Producer(url, retries=0, send_timeout_ms=CALL_PATIENCE_MS) as producer:
        with pytest.raises(KeelMQError) as raised:
            await producer.send("kept", b"x")
    assert "https" in raised.value.detail or "closed by the server" in raised.value.detail


def test_the_command_line_has_options_and_variables_for_it(cluster: ClusterProcess, ca: Authority) -> None:
    ca_file = str(cluster.directory / "http-1.ca")
    shell = Shell(cluster)
    assert "certificate cannot be verified" in shell("topic", "list", code=1).stderr
    shell("--ca-file", ca_file, "topic", "list")
    shell.environment["KEELMQ_CA_FILE"] = ca_file
    assert [each["node_id"] for each in shell.json("cluster", "status")["nodes"]] == [1, 2, 3]
    rebuild = ["cluster", "rebuild", str(cluster.follower().node_id)]  # goes to the node itself, whatever the servers
    runner = CliRunner(env=shell.environment)
    wait_for(lambda: runner.invoke(app, rebuild).exit_code == 0, "enough voters to let it go")
    cluster.wait_ready()
    assert "No such file" in shell("--ca-file", "/none", "topic", "list", code=2).stderr


async def test_clients_are_known_by_their_certificate_or_refused(tmp_path: Path, ca: Authority) -> None:
    clients = Authority("Clients")
    tls, known = ca.issue_server(tmp_path), clients.issue_client(tmp_path, "known")
    (tmp_path / "foreign").mkdir()
    foreign = Authority("Foreign").issue_client(tmp_path / "foreign", "known")
    found = ClusterProcess(tmp_path, nodes=1, tls=client_context(tls.ca_file))
    found.nodes[1].arguments += [*flags_of(tls), "--http-tls-client-ca", known.ca_file]
    with found:
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        files = Tls(tls.ca_file, known.certificate_file, known.key_file)
        async with Producer(found.urls, tls=files) as producer:
            assert (await producer.send("kept", b"x")).offset == 0
        files = Tls(tls.ca_file, foreign.certificate_file, foreign.key_file)
        async with Producer(found.urls, retries=0, tls=files) as producer:
            with pytest.raises(KeelMQError, match="perhaps it does not accept this client's certificate"):
                await producer.send("kept", b"x")
        assert "Traceback" not in found.nodes[1].output()


def read_all(connection: socket.socket) -> bytes:
    """Return what arrives until the node closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received
