"""Three real nodes with certificates of `keelmq cert`, which are renewed while they run; a disk without space."""

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from raft.config import TlsConfig
from raft.messages import Hello, encode
from raft.peers.handshake import NONCE_BYTES, PROTOCOL
from raft.peers.tls import name_of
from tests.e2e.cluster_process import ClusterProcess, ok, wait_for
from tests.e2e.fixtures import KEELMQ
from tests.e2e.small_disk import fill
from tests.e2e.test_http_tls import client_context
from tests.e2e.test_http_tls import flags_of as http_flags_of
from tests.e2e.test_peer_tls import flags_of, read_all, send, shown_certificate
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

CLUSTER: Final = "e2e"


def keelmq(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command of `keelmq cert` in a process of its own, which must end with the exit code."""
    done = subprocess.run([*KEELMQ, "cert", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done


def json_of(*arguments: str | Path) -> Any:
    return json.loads(keelmq(*arguments, "--json").stdout)


def node_arguments(pki: Path, node_id: int) -> list[str | Path]:
    return ["node", pki, "--cluster-id", CLUSTER, "--node-id", str(node_id)]


def files_of(pki: Path, stem: str) -> TlsConfig:
    return TlsConfig(
        certificate_file=str(pki / f"{stem}.crt"), key_file=str(pki / f"{stem}.key"), ca_file=str(pki / "ca.crt")
    )


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Return the directory of an authority and of certificates for three nodes."""
    keelmq("ca", tmp_path / "pki")
    for node_id in (1, 2, 3):
        keelmq(*node_arguments(tmp_path / "pki", node_id))
    return tmp_path / "pki"


@pytest.fixture
def cluster(tmp_path: Path, pki: Path) -> Iterator[ClusterProcess]:
    found = ClusterProcess(tmp_path, tls=client_context(str(pki / "ca.crt")))
    for node in found.nodes.values():
        files = files_of(pki, f"node-{node.node_id}")
        node.arguments += [*flags_of(files), *http_flags_of(files), "--http-tls-client-ca", files.ca_file]
    with found:
        ok(found.wait_leader().request("PUT", "/v1/topics/kept", payload={"queues": 1}))
        yield found


def test_nodes_take_a_renewed_certificate_over_while_they_run(cluster: ClusterProcess, pki: Path) -> None:
    send(cluster.wait_leader(), 0)
    processes = {node.node_id: node.process for node in cluster.nodes.values()}
    node = cluster.follower()
    stem = f"node-{node.node_id}"
    key, before = (pki / f"{stem}.key").read_bytes(), shown_certificate(node, files_of(pki, "node-1"))
    renewed = json_of(*node_arguments(pki, node.node_id), "--renew", "--days", "30")
    after = ssl.PEM_cert_to_DER_cert((pki / f"{stem}.crt").read_text())
    assert before != after
    wait_for(lambda: shown_certificate(node, files_of(pki, "node-1")) == after, "the renewed certificate")
    assert (pki / f"{stem}.key").read_bytes() == key
    metrics = node.request("GET", "/metrics").body.decode()
    (line,) = [
        each for each in metrics.splitlines() if each.startswith("keelmq_peer_certificate_expires_timestamp_seconds ")
    ]
    assert float(line.split()[1]) * 1000 == renewed["valid_until_ms"]
    assert {each.node_id: each.process for each in cluster.alive()} == processes, "no node was restarted"
    # The connections of a node that starts are new ones, in both directions.
    node.kill()
    node.start()
    cluster.wait_ready()
    send(cluster.wait_leader(), 1)
    cluster.wait_same_state()


def test_an_application_sends_with_its_certificate(cluster: ClusterProcess, pki: Path) -> None:
    keelmq("client", pki, "--name", "billing")
    files = files_of(pki, "client-billing")
    options = ["--ca-file", files.ca_file, "--certificate-file", files.certificate_file, "--key-file", files.key_file]
    command = [*KEELMQ, *options, "send", "kept", "hello", "--servers", cluster.servers, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["offset"] == 0


def test_an_application_is_no_node(cluster: ClusterProcess, pki: Path) -> None:
    keelmq("client", pki, "--name", "billing")
    files, node = files_of(pki, "client-billing"), cluster.nodes[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.ca_file)
    context.load_cert_chain(files.certificate_file, files.key_file)
    hello = Hello(CLUSTER, 2, 1, PROTOCOL, "x", "127.0.0.1:1", 1 << 40, nonce=bytes(NONCE_BYTES))
    with (
        socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,  # the certificate names loopback
    ):
        connection.sendall(b"".join(encode(hello)))
        assert read_all(connection) == b""
    expected = f"names no node, expected '{name_of(CLUSTER, 2)}'"
    wait_for(lambda: expected in node.output(), "the log to say why")
    send(cluster.wait_leader(), 0)


def test_without_space_nothing_changes(small_disk: Path, tmp_path: Path) -> None:
    pki = small_disk / "pki"
    keelmq("ca", pki)
    keelmq(*node_arguments(pki, 1))
    before = {path.name: path.read_bytes() for path in pki.iterdir()}
    fill(small_disk / "filler")
    for command in (node_arguments(pki, 2), [*node_arguments(pki, 1), "--renew"], ["ca", small_disk / "other"]):
        assert "free some space, then repeat the command" in keelmq(*command, code=1).stderr
    assert {path.name: path.read_bytes() for path in pki.iterdir()} == before
    assert not list(small_disk.glob("other/*"))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in (node_arguments(pki, 2), [*node_arguments(pki, 1), "--renew"], ["ca", small_disk / "other"]):
        assert "Read-only file system; choose a directory that can be written" in keelmq(*command, code=1).stderr
    assert {path.name: path.read_bytes() for path in pki.iterdir()} == before
