"""What a node of the simulation speaks to its peers through."""

from typing import TYPE_CHECKING, Any

from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport

from raft.errors import ProtocolError
from raft.membership import Membership
from raft.messages import FRAME, decode, encode

if TYPE_CHECKING:
    from .replica import Replica


class SimTransport(Transport):  # type: ignore[misc]  # untyped library
    """`TcpTransport` without sockets: the frames are the real ones, encoded and decoded."""

    def __init__(self, replica: "Replica") -> None:
        super().__init__(None, None, None)
        self._replica = replica
        self._network = replica.network
        self._node_id = replica.node_id
        self.peers = {peer: LibraryNode(peer) for peer in replica.network.node_ids if peer != replica.node_id}
        self.removed_by: int | None = None

    def set_membership(self, membership: Membership) -> None:
        """Here everybody is connected to everybody, and who was removed is heard: safety must not need a handshake."""

    async def start(self) -> None:
        self._network.attach(self._node_id, self._replica)

    async def stop(self) -> None:
        self._network.detach(self._node_id)

    def is_connected(self, peer: int) -> bool:
        return self._network.connected(self._node_id, peer)

    def send(self, peer: int, message: Any) -> bool:
        if not self._replica.alive or not self._network.connected(self._node_id, peer):
            return False
        self._replica.observer.on_send(self._replica, peer, message)
        return self._network.send(self._node_id, peer, b"".join(encode(message)))

    def deliver(self, source: int, frame: bytes) -> None:
        _, header_length, header_crc = FRAME.unpack_from(frame)
        try:
            message = decode(memoryview(frame)[FRAME.size :], header_length, header_crc)
            self._replica.observer.on_receive(self._replica, source, message)
            self._onMessageReceived(self.peers[source], message)
        except ProtocolError:
            self._network.reset(source, self._node_id)

    def peer_up(self, peer: int, incarnation: str) -> None:
        self.peers[peer].incarnation = incarnation
        self._onNodeConnected(self.peers[peer])

    def peer_down(self, peer: int) -> None:
        self._onNodeDisconnected(self.peers[peer])

    def destroy(self) -> None:
        """The library's way out; `stop` does the work."""
