"""Three real nodes under TLS: certificates are replaced while they run, and other nodes and strangers are refused."""

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from raft.config import TlsConfig
from raft.messages import Hello, encode
from raft.peers.handshake import NONCE_BYTES, PROTOCOL
from raft.peers.tls import name_of
from tests.certificates import Authority
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, ok, wait_for
from tests.patience import PATIENCE_S

CLUSTER = "e2e"
MESSAGES = "/v1/topics/kept/messages"


def flags_of(tls: TlsConfig) -> list[str]:
    return ["--tls-cert", tls.certificate_file, "--tls-key", tls.key_file, "--tls-ca", tls.ca_file]


def without_tls(node: NodeProcess) -> None:
    at = node.arguments.index("--tls-cert")
    del node.arguments[at : at + 6]


def send(node: NodeProcess, number: int) -> None:
    ok(node.send(MESSAGES, f"k{number}", str(number)))


def shown_certificate(node: NodeProcess, tls: TlsConfig) -> bytes:
    """Return the certificate that the node shows on a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    with (
        socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        assert connection.version() == "TLSv1.3"
        return connection.getpeercert(binary_form=True) or b""


@pytest.fixture
def cluster(tmp_path: Path, ca: Authority) -> Iterator[ClusterProcess]:
    found = ClusterProcess(tmp_path)
    for node in found.nodes.values():
        node.arguments += flags_of(ca.issue(tmp_path, node.node_id, CLUSTER))
    with found:
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        yield found


def test_certificates_are_replaced_while_the_nodes_run(cluster: ClusterProcess, ca: Authority, tmp_path: Path) -> None:
    send(cluster.wait_leader(), 0)
    (tmp_path / "own").mkdir()
    own = ca.issue(tmp_path / "own", 9, CLUSTER)
    for node in cluster.nodes.values():
        before = shown_certificate(node, own)
        ca.issue(tmp_path, node.node_id, CLUSTER)
        wait_for(lambda node=node, before=before: shown_certificate(node, own) != before, "the new certificate")  # type: ignore[misc]
    # The connections of a node that starts are new ones, in both directions.
    restarted = cluster.follower()
    restarted.kill()
    restarted.start()
    cluster.wait_ready()
    send(cluster.wait_leader(), 1)
    cluster.wait_same_state()


def test_a_running_cluster_gets_tls_node_by_node(tmp_path: Path, ca: Authority) -> None:
    """Each node is restarted once, and writes go on meanwhile. Afterwards nobody is heard without TLS."""
    cluster = ClusterProcess(tmp_path)
    with cluster:
        ok(cluster.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        for number, node in enumerate(cluster.nodes.values()):
            node.terminate()
            send(cluster.wait_leader(), 2 * number)
            node.arguments += [*flags_of(ca.issue(tmp_path, node.node_id, CLUSTER)), "--peers-without-tls"]
            node.start()
            cluster.wait_ready()
            send(cluster.wait_leader(), 2 * number + 1)
            if number < 2:
                wait_for(lambda node=node: "insecure" in alarms_of(node), "the alarm")  # type: ignore[misc]
        for node in cluster.nodes.values():
            wait_for(lambda node=node: "insecure" not in alarms_of(node), "the end of the alarm")  # type: ignore[misc]
            assert "all nodes have TLS: connections without it are refused from now on" in node.output()
        cluster.wait_same_state()
        (offsets,) = ok(cluster.wait_leader().request("GET", "/v1/topics/kept"))["queue_offsets"]
        assert offsets["max_offset"] == 6
        late = cluster.follower()
        late.terminate()
        without_tls(late)
        late.arguments.remove("--peers-without-tls")
        late.start()
        wait_for(lambda: "no connection to node" in late.output(), "the others to refuse it")
        send(cluster.wait_leader(), 6)


def alarms_of(node: NodeProcess) -> set[str]:
    return {each["code"] for each in ok(node.request("GET", "/v1/cluster"))["alarms"]}


def test_a_node_with_the_certificate_of_another_is_refused(
    cluster: ClusterProcess, ca: Authority, tmp_path: Path
) -> None:
    third = cluster.nodes[3]
    third.terminate()
    without_tls(third)
    second = flags_of(ca.issue(tmp_path, 2, CLUSTER))
    third.start(extra=second)
    assert third.wait_exit() == ExitCode.BAD_CONFIG
    assert f"names {name_of(CLUSTER, 2)}; it must have exactly one URI" in third.output()
    assert f"URI:{name_of(CLUSTER, 3)}" in third.output(), "the next step"
    # A node that does not check itself, and calls itself by another number than its certificate.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(second[1], second[3])
    first = cluster.nodes[1]
    hello = Hello(CLUSTER, 3, 1, PROTOCOL, "x", "127.0.0.1:1", 1 << 40, nonce=bytes(NONCE_BYTES))
    with (
        socket.create_connection(("127.0.0.1", first.peer_port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"".join(encode(hello)))
        assert read_all(connection) == b""
    expected = f"names '{name_of(CLUSTER, 2)}', expected '{name_of(CLUSTER, 3)}'"
    wait_for(lambda: expected in first.output(), "the log to say why")
    third.start(extra=flags_of(ca.issue(tmp_path, 3, CLUSTER)))
    cluster.wait_ready()
    cluster.wait_same_state()


def test_a_stranger_is_told_nothing(cluster: ClusterProcess, tmp_path: Path) -> None:
    node = cluster.nodes[1]
    hello = Hello(CLUSTER, 2, 1, PROTOCOL, "x", "127.0.0.1:1", 1 << 40, nonce=bytes(NONCE_BYTES))
    for sent in (b"".join(encode(hello)), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S) as plain:
            plain.sendall(sent)
            assert len(read_all(plain)) <= 7, "an alert of TLS at most"
    (tmp_path / "foreign").mkdir()
    foreign = Authority("Foreign").issue(tmp_path / "foreign", 2, CLUSTER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(foreign.certificate_file, foreign.key_file)
    with (
        socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain) as connection,
    ):
        connection.sendall(b"".join(encode(hello)))
        assert read_all(connection) == b""
    wait_for(lambda: "127.0.0.1 has no TLS handshake with this node" in node.output(), "the log to say so")
    send(cluster.wait_leader(), 0)


def read_all(connection: socket.socket) -> bytes:
    """Return what arrives until the node closes the connection, alerts of TLS left out."""
    received = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while part := connection.recv(1 << 16):
            received += part
    return received
