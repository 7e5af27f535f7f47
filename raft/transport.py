"""TCP between peers: one connection for each direction, opened by the sender.

A connection starts with Hello and Welcome; who is not a configured peer of this cluster, or means another node, is
refused with a reason and never reaches the handlers (row 9). Sending never blocks and may drop: Raft repeats what
matters.
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
from raft.messages import MAX_FRAME_BYTES, Append, Hello, Message, Welcome, encode

log = logging.getLogger(__name__)

PROTOCOL = 1
KEEPALIVE_IDLE_S = 10
"""A connection on which nothing comes is probed after this: the other end of a receiver's only speaks when it sends."""
HANDSHAKE_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_MS = 1_000
"""A new attempt begins with a new packet; the kernel's repetitions of the old one come ever more rarely, and a network
that is whole again would wait for them."""
RECONNECT_MS = 200
HANDSHAKE_FRAME_BYTES = 4096
"""What a stranger may make this node keep before it has said who it is."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""Beyond this much in a connection's buffer, messages to that peer are dropped."""
USER_TIMEOUT_MS = 2_000
"""Sent bytes that stay unacknowledged by the peer's kernel for this long break the connection: for the same reason."""


class TcpTransport(LibraryTransport):  # type: ignore[misc]  # the library is untyped
    """Hands messages of handshaken, configured peers to the callback PySyncObj has set, on the loop."""

    def __init__(self, config: RaftConfig) -> None:
        super().__init__(None, None, None)
        self._config = config
        self._peers = {peer: LibraryNode(peer) for peer in config.peers}
        self._outgoing: dict[int, FrameProtocol] = {}
        self._incoming: set[FrameProtocol] = set()
        self._senders: dict[int, FrameProtocol] = {}  # per peer, the incoming connection it uses
        self._server: asyncio.Server | None = None
        self._dialers: list[asyncio.Task[None]] = []
        self._client_tls = make_client_tls(config.tls) if config.tls else None
        self._server_tls = make_server_tls(config.tls) if config.tls else None

    async def start(self) -> None:
        """Listens and starts dialling. Raises OSError when the address cannot be bound."""
        loop = asyncio.get_running_loop()
        if self._config.peers:
            self._server = await loop.create_server(
                self._accept, self._config.listen.host, self._config.listen.port, ssl=self._server_tls
            )
        for peer, address in self._config.peers.items():
            self._dialers.append(asyncio.create_task(self._keep_dialling(peer, address)))

    async def stop(self) -> None:
        for dialer in self._dialers:
            dialer.cancel()
        await asyncio.gather(*self._dialers, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in [*self._outgoing.values(), *self._incoming]:
            connection.close()

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
            except (OSError, TimeoutError, ProtocolError) as error:
                failure = str(error) or type(error).__name__
                if failure != last_failure:  # once per reason, not five times a second
                    log.warning("no connection to node %d at %s:%d: %s", peer, address.host, address.port, failure)
                last_failure = failure
            await asyncio.sleep(RECONNECT_MS / 1000)

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
            own = self._config
            connection.write(encode(Hello(own.cluster_id, own.node_id, peer, PROTOCOL, own.incarnation)))
            welcome = await self._await_welcome(peer, connection, welcomed)
            self._outgoing[peer] = connection
            self._peers[peer].incarnation = welcome.incarnation
            log.info("connected to node %d", peer)
            self._onNodeConnected(self._peers[peer])
            await connection.closed
        finally:
            connection.close()
            if self._outgoing.get(peer) is connection:
                del self._outgoing[peer]
                self._onNodeDisconnected(self._peers[peer])

    async def _await_welcome(self, peer: int, connection: FrameProtocol, welcomed: asyncio.Future[Welcome]) -> Welcome:
        connection.closed.add_done_callback(lambda _: welcomed.cancel())
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_MS / 1000):
                welcome = await welcomed
        except asyncio.CancelledError:
            if connection.closed.done():
                raise ProtocolError("the connection was closed during the handshake") from None
            raise
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
        return connection

    def _forget(self, connection: FrameProtocol) -> None:
        self._incoming.discard(connection)
        if connection.handshake_timer is not None:
            connection.handshake_timer.cancel()

    def _on_first_message(self, connection: FrameProtocol, message: Message | Append) -> None:
        if not isinstance(message, Hello):
            raise ProtocolError("a connection starts with Hello")
        refusal = self._refusal(message)
        connection.write(encode(Welcome(self._config.node_id, refusal, self._config.incarnation)))
        if refusal:
            log.warning("refused a peer connection: %s", refusal)
            connection.close()
            return
        if connection.handshake_timer is not None:
            connection.handshake_timer.cancel()
        keep_alive(connection)
        connection.max_frame_bytes = MAX_FRAME_BYTES
        peer = self._peers[message.node_id]
        self._supersede(peer.id, connection)
        connection.on_message = lambda _, received: self._deliver(peer, message.incarnation, received)

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
        if hello.node_id not in self._peers:
            return f"node {hello.node_id} is not a configured peer"
        return ""

    def _deliver(self, peer: LibraryNode, incarnation: str, message: Message | Append) -> None:
        if isinstance(message, Hello | Welcome):
            raise ProtocolError("a second handshake")
        if getattr(peer, "incarnation", incarnation) != incarnation:
            return  # of a disk that is gone, or of one whose Welcome is still to come
        self._onMessageReceived(peer, message)


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
