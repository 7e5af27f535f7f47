"""TCP between peers: one connection for each direction, opened by the sender.

A connection starts with Hello and Welcome; who is of another cluster, or means another node, or is not in the
configuration and cannot know a later one, is refused with a reason and never reaches the handlers (row 9). Who knows a
later configuration may be its leader: it is heard, and dialled at the address it gives. Sending never blocks and may
drop: Raft repeats what matters.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any

from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport as LibraryTransport

from raft.config import PeerAddress, RaftConfig, TlsConfig
from raft.errors import ProtocolError
from raft.frames import FrameProtocol
from raft.membership import Membership
from raft.messages import MAX_FRAME_BYTES, Append, Hello, Message, Welcome, encode

log = logging.getLogger(__name__)

PROTOCOL = 2
KEEPALIVE_IDLE_S = 10
"""A connection on which nothing comes is probed after this: the other end of a receiver's only speaks when it sends."""
HANDSHAKE_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_MS = 1_000
"""A new attempt begins with a new packet; the kernel's repetitions of the old one come ever more rarely, and a network
that is whole again would wait for them."""
RECONNECT_MS = 200
REMOVED_RECONNECT_MS = 2_000
"""A node that was removed goes on asking, but not so often, whether it is wanted again."""
HANDSHAKE_FRAME_BYTES = 4096
"""What a stranger may make this node keep before it has said who it is."""
REFUSED_MAX = 64
"""Nodes whose last refusal is remembered."""
PORT_DIGITS_MAX, PORT_MAX = 5, 65535
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Beyond this much in a connection's buffer, messages to that peer are dropped."""
USER_TIMEOUT_MS = 2_000
"""Sent bytes that stay unacknowledged by the peer's kernel for this long break the connection: for the same reason."""


class TcpTransport(LibraryTransport):  # type: ignore[misc]  # the library is untyped
    """Hands messages of handshaken peers to the callback PySyncObj has set, on the loop.

    `set_membership` is called before anything else.
    """

    def __init__(self, config: RaftConfig) -> None:
        super().__init__(None, None, None)
        self._config = config
        self._membership: Membership | None = None
        self._addresses: dict[int, PeerAddress] = {}
        self.removed_by: int | None = None
        """The node that said last that this one was removed from the cluster, until a leader is heard again."""
        self._peers: dict[int, LibraryNode] = {}
        self._outgoing: dict[int, FrameProtocol] = {}
        self._incoming: set[FrameProtocol] = set()
        self._senders: dict[int, FrameProtocol] = {}  # per peer, the incoming connection it uses
        self._server: asyncio.Server | None = None
        self._dialers: dict[int, asyncio.Task[None]] = {}
        self._dialled: dict[int, PeerAddress] = {}
        self._guests: dict[int, PeerAddress] = {}  # not in the configuration, and heard all the same
        self._refused: dict[int, str] = {}
        self._started = False
        self._client_tls = make_client_tls(config.tls) if config.tls else None
        self._server_tls = make_server_tls(config.tls) if config.tls else None

    async def start(self) -> None:
        """Listens and starts dialling. Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        self._started = True
        if self._config.serves_peers:
            self._server = await loop.create_server(
                self._accept, self._config.listen.host, self._config.listen.port, ssl=self._server_tls
            )
        self._dial_members()

    async def stop(self) -> None:
        self._started = False
        dialers = list(self._dialers.values())
        for dialer in dialers:
            dialer.cancel()
        await asyncio.gather(*dialers, return_exceptions=True)
        if self._server is not None:
            await stop_listening(self._server)
        for connection in [*self._outgoing.values(), *self._incoming]:
            connection.close()

    def set_membership(self, membership: Membership) -> None:
        """Called again whenever it changes: connections to who is new are opened, those of who was removed closed as
        soon as that is committed.
        """
        self._membership = membership
        self._addresses = membership.addresses
        self._addresses.pop(self._config.node_id, None)
        for peer in self._addresses:
            self._guests.pop(peer, None)
        if membership.current.find(self._config.node_id) is not None:
            self.removed_by = None
        for peer in [*self._senders]:
            if membership.is_stranger(peer, membership.settled.index) and peer not in self._guests:
                connection = self._senders.pop(peer)
                if connection.transport is not None:
                    connection.transport.abort()
        self._dial_members()

    def _dial_members(self) -> None:
        if not self._started:
            return
        wanted = {**self._guests, **self._addresses}
        for peer in [*self._dialers]:
            if self._dialled.get(peer) != wanted.get(peer):
                self._dialers.pop(peer).cancel()
                del self._dialled[peer]
        for peer, address in wanted.items():
            if peer not in self._dialers:
                self._dialled[peer] = address
                self._dialers[peer] = asyncio.create_task(self._keep_dialling(peer, address))

    def _node(self, peer: int) -> LibraryNode:
        return self._peers.setdefault(peer, LibraryNode(peer))

    def is_connected(self, peer: int) -> bool:
        return peer in self._outgoing

    def send(self, peer: int, message: Message | Append) -> bool:
        """Whether the message was handed to the connection; the payloads stay the caller's, unchanged until sent."""
        connection = self._outgoing.get(peer)
        if connection is None or connection.unsent_bytes > MAX_UNSENT_BYTES:
            return False
        connection.write(encode(message))
        return True

    def destroy(self) -> None:
        """PySyncObj's way out; `stop` does the work."""

    # --- outgoing ----------------------------------------------------------------------------------------------

    async def _keep_dialling(self, peer: int, address: PeerAddress) -> None:
        last_failure = ""
        while True:
            try:
                await self._dial(peer, address)
                last_failure = ""
            except (OSError, TimeoutError, ProtocolError, UnicodeError) as error:  # the last: no name of a host
                failure = str(error) or type(error).__name__
                if failure != last_failure:  # once per reason, not five times a second
                    log.warning("no connection to node %d at %s:%d: %s", peer, address.host, address.port, failure)
                last_failure = failure
            await asyncio.sleep((REMOVED_RECONNECT_MS if self.removed_by == peer else RECONNECT_MS) / 1000)

    async def _dial(self, peer: int, address: PeerAddress) -> None:
        """Connects, and returns when that connection has ended."""
        welcomed: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()

        def on_message(_: FrameProtocol, message: Message | Append) -> None:
            if isinstance(message, Welcome) and not welcomed.done():
                welcomed.set_result(message)
            else:
                raise ProtocolError("only Welcome comes back on a sender's connection")

        async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: FrameProtocol(on_message), address.host, address.port, ssl=self._client_tls
            )
        try:
            keep_alive(connection)
            connection.write(encode(self._hello(peer)))
            welcome = await self._await_welcome(peer, connection, welcomed)
            self._outgoing[peer] = connection
            self._node(peer).incarnation = welcome.incarnation
            log.info("connected to node %d", peer)
            self._onNodeConnected(self._node(peer))
            await connection.closed
        finally:
            connection.close()
            if self._outgoing.get(peer) is connection:
                del self._outgoing[peer]
                self._onNodeDisconnected(self._node(peer))

    def _hello(self, peer: int) -> Hello:
        own, membership = self._config, self._membership
        assert membership is not None
        member = membership.current.find(own.node_id)
        address = member.address if member is not None else own.advertised or own.listen
        return Hello(
            own.cluster_id,
            own.node_id,
            peer,
            PROTOCOL,
            own.incarnation,
            f"{address.host}:{address.port}",
            membership.index,
            membership.current.origin,
        )

    async def _await_welcome(self, peer: int, connection: FrameProtocol, welcomed: asyncio.Future[Welcome]) -> Welcome:
        connection.closed.add_done_callback(lambda _: welcomed.cancel())
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_MS / 1000):
                welcome = await welcomed
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connection.closed.done() and not (task is not None and task.cancelling()):
                raise ProtocolError("the connection was closed during the handshake") from None
            raise
        if welcome.removed:
            if self.removed_by is None:
                log.error("node %d says that this node was removed from the cluster", peer)
            self.removed_by = peer
        if welcome.refusal:
            raise ProtocolError(f"refused: {welcome.refusal}")
        if welcome.node_id != peer:
            raise ProtocolError(f"node {welcome.node_id} answers there")
        return welcome

    # --- incoming ----------------------------------------------------------------------------------------------

    def _accept(self) -> FrameProtocol:
        connection = FrameProtocol(self._on_first_message)
        connection.max_frame_bytes = HANDSHAKE_FRAME_BYTES
        self._incoming.add(connection)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(HANDSHAKE_TIMEOUT_MS / 1000, connection.close)
        connection.handshake_timer = timer
        connection.closed.add_done_callback(lambda _: self._forget(connection))
        if not self._started:  # accepted by the kernel before the end
            connection.close()
        return connection

    def _forget(self, connection: FrameProtocol) -> None:
        self._incoming.discard(connection)
        if connection.handshake_timer is not None:
            connection.handshake_timer.cancel()

    def _on_first_message(self, connection: FrameProtocol, message: Message | Append) -> None:
        if not isinstance(message, Hello):
            raise ProtocolError("a connection starts with Hello")
        refusal = self._refusal(message)
        removed = bool(refusal) and self._was_removed(message)
        connection.write(encode(Welcome(self._config.node_id, refusal, self._config.incarnation, removed)))
        if refusal:
            self._log_refusal(message.node_id, refusal)
            connection.close()
            return
        self._refused.pop(message.node_id, None)
        if connection.handshake_timer is not None:
            connection.handshake_timer.cancel()
        keep_alive(connection)
        connection.max_frame_bytes = MAX_FRAME_BYTES
        peer = self._node(message.node_id)
        self._supersede(peer.id, connection)
        if peer.id not in self._addresses:
            self._welcome_guest(peer.id, message.address, connection)
        connection.on_message = lambda _, received: self._deliver(peer, message.incarnation, received)

    def _log_refusal(self, node_id: int, refusal: str) -> None:
        """Once per node and reason: it asks again for ever."""
        if self._refused.get(node_id) != refusal:
            log.warning("refused a peer connection: %s", refusal)
            if len(self._refused) >= REFUSED_MAX:
                self._refused.clear()
            self._refused[node_id] = refusal

    def _welcome_guest(self, peer: int, address: str, connection: FrameProtocol) -> None:
        """Who is not in the configuration here is dialled as long as its own connection stands."""
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= PORT_DIGITS_MAX) or int(port) > PORT_MAX:
            return
        self._guests[peer] = PeerAddress(host, int(port))
        self._dial_members()

        def leaves(_: object) -> None:
            if self._senders.get(peer) is connection:
                self._senders.pop(peer)
                self._guests.pop(peer, None)
                self._dial_members()

        connection.closed.add_done_callback(leaves)

    def _supersede(self, peer: int, connection: FrameProtocol) -> None:
        """A peer that dials anew has given its earlier connection up; what may still come out of it is stale."""
        earlier = self._senders.get(peer)
        self._senders[peer] = connection
        if earlier is not None and earlier.transport is not None:
            earlier.transport.abort()

    def _refusal(self, hello: Hello) -> str:
        own = self._config
        if hello.cluster_id != own.cluster_id:
            return f"this is cluster {own.cluster_id!r}, not {hello.cluster_id!r}"
        if hello.target_node_id != own.node_id:
            return f"this is node {own.node_id}, not {hello.target_node_id}"
        if hello.protocol != PROTOCOL:
            return f"this node speaks protocol {PROTOCOL}, not {hello.protocol}"
        membership = self._membership
        assert membership is not None
        if membership.current.is_of_another_cluster(hello.origin):
            return (
                f"nodes {own.node_id} and {hello.node_id} are of two clusters named {own.cluster_id!r}: one of them "
                "began anew on an empty disk; empty its data directory again and start it with --join"
            )
        if hello.node_id == own.node_id or membership.is_stranger(hello.node_id, hello.configuration_index):
            if self._was_removed(hello):
                return f"node {hello.node_id} was removed from the cluster"
            return f"node {hello.node_id} is not a configured peer"
        return ""

    def _was_removed(self, hello: Hello) -> bool:
        """By a configuration that is committed and that the opener does not know."""
        own, membership = self._config, self._membership
        assert membership is not None
        return (
            (hello.cluster_id, hello.target_node_id) == (own.cluster_id, own.node_id)
            and hello.node_id != own.node_id
            and membership.is_stranger(hello.node_id, hello.configuration_index)
            and hello.configuration_index < membership.settled.index
        )

    def _deliver(self, peer: LibraryNode, incarnation: str, message: Message | Append) -> None:
        if isinstance(message, Hello | Welcome):
            raise ProtocolError("a second handshake")
        if getattr(peer, "incarnation", incarnation) != incarnation:
            return  # of a disk that is gone, or of one whose Welcome is still to come
        self._onMessageReceived(peer, message)


async def stop_listening(server: asyncio.Server) -> None:
    """Takes nothing more for one step, and then closes: what asyncio accepts in the step in which a server is closed it
    neither hands over nor closes.
    """
    loop = asyncio.get_running_loop()
    for listening in server.sockets:
        loop.remove_reader(listening.fileno())
    await asyncio.sleep(0)
    server.close()


def keep_alive(connection: FrameProtocol) -> None:
    """Small messages leave at once; a peer that vanished without a word is noticed."""
    sock: Any = connection.transport.get_extra_info("socket") if connection.transport else None
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def make_client_tls(tls: TlsConfig) -> ssl.SSLContext:
    """Presents our certificate; the peer's must be signed by the CA and name the host we dial."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=tls.ca_file)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def make_server_tls(tls: TlsConfig) -> ssl.SSLContext:
    """Demands a certificate signed by the CA from every peer."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls.ca_file)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    return context
