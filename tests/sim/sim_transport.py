"""The transport through which a node of the simulation speaks to its peers."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport

from raft.config import PeerAddress
from raft.errors import ProtocolError
from raft.feature_levels import own_build
from raft.membership import Membership
from raft.messages import FRAME, Arrived, Build, PreVote, decode, encode
from raft.peers.lanes import ARRIVED_BYTES, CONTROL, DATA, DataLane, Part, lane_of

from .addresses import PLACES

if TYPE_CHECKING:
    from .replica import Replica


class Piece(NamedTuple):
    """A piece of the byte stream on a thin link's data lane, which carries bytes as a TCP connection does."""

    data: bytes


class _Arriving:
    """The receiving end of a data lane."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.total_bytes = self.reported_bytes = 0


class SimTransport(Transport):  # type: ignore[misc]  # untyped library
    """`TcpTransport` without sockets: the frames are the real ones, encoded and decoded.

    Where links are thin the data lanes are the real ones too, with their pace.
    """

    on_data_arrives: Callable[[int], int | None]

    def __init__(self, replica: "Replica") -> None:
        super().__init__(None, None, None)
        self._replica = replica
        self._network = replica.network
        self._node_id = replica.node_id
        self.peers = {peer: LibraryNode(peer) for peer in replica.network.node_ids if peer != replica.node_id}
        self.removed_by: int | None = None
        self.tls = None
        self._lanes: dict[int, DataLane] = {}
        self._arriving: dict[int, _Arriving] = {}
        self._builds: dict[int, Build] = {}

    def set_membership(self, membership: Membership) -> None:
        """Do nothing: here every node is connected to every other, and a removed node is heard. Safety must not need a
        handshake.
        """

    async def start(self) -> None:
        self._network.attach(self._node_id, self._replica)

    async def stop(self) -> None:
        self._network.detach(self._node_id)

    def is_connected(self, peer: int) -> bool:
        return self._network.connected(self._node_id, peer)

    async def check_answers(self, node_id: int, address: PeerAddress) -> None:
        """Check the port, which is the number of the node plus a multiple of PLACES here."""
        if address.port % PLACES != node_id:
            raise ProtocolError(f"node {address.port % PLACES} answers there")

    def why_unconnected(self, peer: int) -> str:
        return ""

    def build_of(self, peer: int) -> Build | None:
        return own_build() if self.is_connected(peer) else None

    def last_build_of(self, peer: int) -> Build | None:
        return self._builds.get(peer)

    def send(self, peer: int, message: Any) -> bool:
        return self._send(peer, message, lane_of(message))

    def send_behind(self, peer: int, message: Any) -> bool:
        return self._send(peer, message, DATA)

    def _send(self, peer: int, message: Any, lane: int) -> bool:
        if not self._replica.alive or not self._network.connected(self._node_id, peer):
            return False
        self._replica.observer.on_send(self._replica, peer, message)
        parts = encode(message)
        if lane == DATA and self._network.profile.is_thin:
            if peer not in self._lanes:
                return False
            self._lanes[peer].send(parts)
            return True
        frame = b"".join(parts)
        return self._network.send(self._node_id, peer, frame, lane, len(frame))

    def data_waits(self, peer: int) -> bool:
        return peer in self._lanes and self._lanes[peer].waiting_bytes > 0

    def is_full(self, peer: int) -> bool:
        return peer in self._lanes and self._lanes[peer].is_full

    def drop_waiting(self, peer: int) -> None:
        if peer in self._lanes:
            self._lanes[peer].drop_waiting()

    def deliver(self, source: int, sent: "bytes | Piece", *, forged: bool = False) -> None:
        """Deliver a frame. `forged` says that the source has not sent it, whatever the frame says."""
        try:
            if isinstance(sent, Piece):
                self._take_piece(source, sent.data)
            else:
                self._take_frame(source, sent, forged=forged)
        except ProtocolError:
            self._network.reset(source, self._node_id)

    def _take_piece(self, source: int, data: bytes) -> None:
        arriving = self._arriving[source]
        arriving.buffer += data
        arriving.total_bytes += len(data)
        if arriving.total_bytes - arriving.reported_bytes >= ARRIVED_BYTES:
            arriving.reported_bytes = arriving.total_bytes
            term = self.on_data_arrives(source)
            if term is not None:
                self._send(source, Arrived(term, arriving.total_bytes), CONTROL)
        while len(arriving.buffer) >= FRAME.size:
            end = FRAME.size + FRAME.unpack_from(arriving.buffer)[0]
            if len(arriving.buffer) < end:
                return
            frame = bytes(arriving.buffer[:end])
            del arriving.buffer[:end]
            self._take_frame(source, frame)

    def _take_frame(self, source: int, frame: bytes, *, forged: bool = False) -> None:
        _, header_length, header_crc = FRAME.unpack_from(frame)
        message = decode(memoryview(frame)[FRAME.size :], header_length, header_crc)
        if isinstance(message, Arrived) and source in self._lanes:
            self._lanes[source].arrived(message.total_bytes)
        if not forged:
            self._replica.observer.on_receive(self._replica, source, message)
        elif isinstance(message, PreVote) and message.term <= self._replica.raft.state.term:
            return  # the node was frozen, and elections went on: by now a member may say it
        self._onMessageReceived(self.peers[source], message)

    def peer_up(self, peer: int, incarnation: str) -> None:
        self.peers[peer].incarnation = incarnation
        self._builds[peer] = own_build()
        self._arriving[peer] = _Arriving()
        if self._network.profile.is_thin:
            self._lanes[peer] = DataLane(
                lambda parts: self._write(peer, parts), self._replica.settings.election_timeout_ms
            )
        self._onNodeConnected(self.peers[peer])

    def _write(self, peer: int, parts: Sequence[Part]) -> None:
        data = b"".join(parts)
        self._network.send(self._node_id, peer, Piece(data), DATA, len(data))

    def peer_down(self, peer: int) -> None:
        self._lanes.pop(peer, None)
        self._onNodeDisconnected(self.peers[peer])

    def destroy(self) -> None:
        """Do nothing: the library calls this on its way out, and `stop` does the work."""
