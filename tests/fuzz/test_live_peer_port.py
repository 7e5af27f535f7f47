"""Fuzzes the Raft port of a real node: strangers and broken peers are cut off, and the node goes on."""

import socket
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raft.errors import ProtocolError
from raft.messages import FRAME, Challenge, Hello, Welcome, decode
from raft.peers.handshake import NONCE_BYTES, PROTOCOL
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for
from tests.fuzz.budget import fuzz
from tests.fuzz.test_peer_frames import frame_of, hostile_frames
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

CLUSTER_ID: Final = "e2e"
NODE: Final = 1
PEER: Final = 2
INCARNATION: Final = "0123456789abcdef"
NONCE: Final = bytes(NONCE_BYTES)
OLD_HELLO: Final = Hello(CLUSTER_ID, PEER, NODE, PROTOCOL - 1, INCARNATION)
HELLOS: Final = (
    Hello(CLUSTER_ID, PEER, NODE, PROTOCOL, INCARNATION, nonce=NONCE),
    Hello("other", PEER, NODE, PROTOCOL, INCARNATION, nonce=NONCE),
    Hello(CLUSTER_ID, 9, NODE, PROTOCOL + 1, INCARNATION, nonce=NONCE),
    OLD_HELLO,
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """Return one of three nodes; the others are never there."""
    cluster = ClusterProcess(tmp_path_factory.mktemp("peers"), nodes=3)
    try:
        node = cluster.nodes[NODE]
        node.start()
        wait_for(lambda: node.status() is not None, "the node to answer")
        yield node
        assert node.running()
        assert "Traceback" not in node.output()
    finally:
        cluster.stop()


def is_refused(frame: bytes) -> bool:
    """Return whether the frame must be refused: a frame that is a message belongs to Raft, which has its own tests."""
    if len(frame) < FRAME.size:
        return True
    body_length, header_length, header_crc = FRAME.unpack_from(frame)
    if FRAME.size + body_length != len(frame) or header_length > body_length:
        return True
    try:
        decode(memoryview(frame)[FRAME.size :], header_length, header_crc)
    except ProtocolError:
        return True
    return False


def talk(node: NodeProcess, stream: bytes) -> bytes:
    """Return the node's answer to `stream` before it closes the connection, as it must when we have ended ours."""
    with socket.create_connection(("127.0.0.1", node.peer_port), timeout=PATIENCE_S) as connection:
        answer = b""
        try:
            connection.sendall(stream)
            connection.shutdown(socket.SHUT_WR)
            while part := connection.recv(1 << 16):
                answer += part
        except (ConnectionResetError, BrokenPipeError):
            pass
    return answer


@fuzz(150)
@given(hello=st.none() | st.sampled_from(HELLOS), frames=st.lists(hostile_frames().filter(is_refused), max_size=3))
def test_whoever_does_not_speak_the_protocol_is_cut_off(
    node: NodeProcess, hello: Hello | None, frames: list[bytes]
) -> None:
    answer = talk(node, (frame_of(hello) if hello else b"") + b"".join(frames))
    if answer:  # also to a Hello among the frames
        body_length, header_length, header_crc = FRAME.unpack_from(answer)
        first = decode(memoryview(answer)[FRAME.size : FRAME.size + body_length], header_length, header_crc)
        if hello is not None and hello.protocol >= PROTOCOL:
            assert isinstance(first, Challenge), "whoever it is, and whomever it means"
        else:
            assert isinstance(first, Challenge | Welcome)
            assert isinstance(first, Challenge) or (first.refusal and not first.incarnation)
    assert node.status() is not None
