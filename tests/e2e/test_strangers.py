"""Tests strangers to a cluster: nodes of another one with the same name, and anybody who reaches the peer port."""

import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from raft.messages import (
    FRAME,
    Append,
    Build,
    Challenge,
    Hello,
    Message,
    PreVote,
    Proof,
    RequestVote,
    Welcome,
    decode,
    encode,
    make_append,
)
from raft.peers.handshake import NONCE_BYTES, PROTOCOL, opener_statement
from raft.peers.secret import prove
from store.features import FEATURES
from store.log.record import KIND_ENTRY, Entry
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.patience import PATIENCE_S

TERM_MAX: Final = (1 << 63) - 1
FAR_INDEX: Final = 1 << 40
PATH: Final = "/v1/topics/kept/messages"


def send(node: NodeProcess, count: int) -> None:
    for number in range(count):
        assert node.send(PATH, f"k{number}").status == 200


def unreachable(node: NodeProcess, peer: int) -> str:
    """Return the detail of this node's alarm about that other node; empty without one."""
    return node.alarms().get(("node_unreachable", str(peer)), "")


# Another cluster of the same name


@pytest.fixture
def two_clusters(tmp_path: Path) -> Iterator[tuple[ClusterProcess, ClusterProcess]]:
    """Return two clusters, which even share a secret."""
    (tmp_path / "one").mkdir()
    with ClusterProcess(tmp_path / "one") as one:
        (tmp_path / "other").mkdir()
        shutil.copy(tmp_path / "one" / "peer_secret", tmp_path / "other" / "peer_secret")
        with ClusterProcess(tmp_path / "other") as other:
            yield one, other


def test_a_node_of_another_cluster_is_not_taken_in(two_clusters: tuple[ClusterProcess, ClusterProcess]) -> None:
    one, other = two_clusters
    for cluster, count in ((one, 5), (other, 12)):
        send(cluster.make_topic("kept"), count)
        cluster.wait_same_state()
    other.stop()
    third = one.nodes[3]
    third.terminate()
    shutil.rmtree(third.data_dir)
    shutil.copytree(other.nodes[3].data_dir, third.data_dir)
    third.start()
    wait_for(lambda: "are of two clusters named 'e2e'" in third.output(), "the node to say so")
    assert "or empty it and start it with --join" in third.output(), "the next step"
    leader = one.wait_leader(among=[one.nodes[1], one.nodes[2]])
    wait_for(lambda: "are of two clusters named 'e2e'" in unreachable(leader, 3), "an alarm that says why")
    send(leader, 7)
    assert third.known_status()["role"] != "leader"
    assert not third.ready()
    assert leader.max_offset("kept") == 7
    # Without the foreign data, the node belongs to its cluster again.
    third.terminate()
    shutil.rmtree(third.data_dir)
    third.start()
    one.wait_same_state()
    assert one.wait_leader().max_offset("kept") == 7


def test_files_of_two_clusters_in_one_directory_are_refused(
    two_clusters: tuple[ClusterProcess, ClusterProcess],
) -> None:
    one, other = two_clusters
    for cluster in (one, other):
        cluster.make_topic("kept")
        cluster.wait_same_state()
        cluster.stop()
    third = one.nodes[3]
    shutil.copy(other.nodes[3].data_dir / "identity", third.data_dir / "identity")
    third.start()
    assert third.wait_exit() in (4, 6), "at its start, or when it has applied again what names the cluster"
    assert "files of two clusters were mixed" in third.output()


# Strangers


class Stranger:
    """A connection to the peer port of a node."""

    def __init__(self, node: NodeProcess) -> None:
        self._socket = socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S)

    def introduce(self, hello: Hello, secret: bytes) -> Welcome:
        self._socket.sendall(b"".join(encode(hello)))
        challenge = self._receive()
        assert isinstance(challenge, Challenge)
        self._socket.sendall(b"".join(encode(Proof(prove(secret, opener_statement(hello, challenge))))))
        welcome = self._receive()
        assert isinstance(welcome, Welcome)
        return welcome

    def speak(self, messages: Sequence[Message | Append]) -> None:
        """Send the messages, and read until the node has closed the connection."""
        with self._socket:
            try:
                for message in messages:
                    self._socket.sendall(b"".join(encode(message)))
                self._socket.shutdown(socket.SHUT_WR)
                while self._socket.recv(1 << 16):
                    pass
            except OSError:
                pass

    def _receive(self) -> Message | Append:
        head = self._exactly(FRAME.size)
        body_length, header_length, header_crc = FRAME.unpack(head)
        return decode(memoryview(self._exactly(body_length)), header_length, header_crc)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the node has closed the connection"
            data += part
        return data


def forgeries(term: int, applied: int) -> list[Message | Append]:
    """Return messages that ended nodes, or would have; each is sent over a connection of its own."""
    forged = Entry(b"forged", applied + 1, term, KIND_ENTRY, -1)
    return [
        PreVote(TERM_MAX, FAR_INDEX, TERM_MAX, False),
        RequestVote(TERM_MAX, FAR_INDEX, TERM_MAX, False),
        make_append(term, 0, 0, 0, ()),
        make_append(term, applied, term + 7 if applied else 0, applied, ()),
        make_append(TERM_MAX, applied, term, applied, [forged]),
    ]


@pytest.mark.parametrize("secret", ["unknown", "none"])
def test_a_stranger_changes_nothing(tmp_path: Path, secret: str) -> None:
    """`none`: the cluster has no secret, as on loopback, and the stranger claims to know a later configuration."""
    cluster = ClusterProcess(tmp_path, options=("--election-timeout-ms", "2000", "--heartbeat-ms", "100"))
    if secret == "none":
        for node in cluster.nodes.values():
            at = node.arguments.index("--peer-secret-file")
            del node.arguments[at : at + 2]
    with cluster:
        leader = cluster.make_topic("kept")
        send(leader, 5)
        cluster.wait_same_state()
        before = leader.known_status()
        for node in cluster.nodes.values():
            for message in forgeries(before["term"], before["applied_index"]):
                who = leader.node_id if secret == "unknown" and node is not leader else 9
                hello = Hello(
                    "e2e",
                    who,
                    node.node_id,
                    PROTOCOL,
                    "x",
                    "127.0.0.1:1",
                    FAR_INDEX,
                    nonce=bytes(NONCE_BYTES),
                    build=Build("9.1.0", FEATURES.minimum, FEATURES.maximum),
                )
                stranger = Stranger(node)
                welcome = stranger.introduce(hello, b"" if secret == "none" else b"s" * 32)
                assert bool(welcome.refusal) == (secret == "unknown")
                if welcome.refusal:
                    assert (welcome.node_id, welcome.incarnation) == (0, "")
                stranger.speak([message])
        send(cluster.wait_leader(), 8)
        for node in cluster.nodes.values():
            assert node.known_status()["term"] - before["term"] < 100, "an election or two; no leap"
        cluster.wait_leader().kill()
        assert cluster.wait_leader(among=cluster.alive()).max_offset("kept") == 8
