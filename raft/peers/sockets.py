"""The sockets below peer connections: listening, dialling, and the TLS handshake of either."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from raft.config import PeerAddress
from raft.peers.accepting import Accepting, reason_of
from raft.peers.frames import FrameProtocol
from raft.peers.lanes import CONTROL, DATA
from raft.peers.refusals import Refusals
from raft.peers.tls import PeerTls

log = logging.getLogger(__name__)

BACKLOG: Final = 100
TLS_HANDSHAKE_TIMEOUT_S: Final = 5.0
KEEPALIVE_IDLE_S: Final = 10
"""Seconds of silence after which a connection is probed: the other end of an incoming one speaks only when it sends."""
USER_TIMEOUT_MS: Final = {CONTROL: 2_000, DATA: 15_000}
"""Milliseconds for which the peer's kernel may leave sent bytes unacknowledged before the connection breaks. A new
attempt begins with a new packet; the kernel repeats the old one ever more rarely, so that a network that is whole again
would wait for the repetition. Data may be late on a slow link; a dead network breaks the control lane, and with it the
data lane.
"""


class Listener:
    """Accepts connections, and makes each one a connection of `make_connection()`, under TLS once its handshake has
    succeeded. Use it on the event loop only.

    Owns the listening sockets. A connection that closes ends its TLS handshake.
    """

    def __init__(self, make_connection: Callable[[], FrameProtocol], tls: PeerTls | None, refusals: Refusals) -> None:
        self._make_connection = make_connection
        self._tls = tls
        self._refusals = refusals
        self._accepting = Accepting(self._accept, "peer")
        self._connecting: set[asyncio.Task[None]] = set()

    async def open(self, address: PeerAddress) -> None:
        """Bind to all addresses of the host and listen. Raises OSError when that is impossible."""
        found = await asyncio.get_running_loop().getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        missing: OSError | None = None
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, where in dict.fromkeys(found):
                try:
                    sockets.append(_listening(family, where))
                except OSError as error:
                    if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                        raise
                    missing = error  # a machine without IPv6 may resolve names to addresses of it
            if missing is not None and not sockets:
                raise missing
        except OSError:
            for each in sockets:
                each.close()
            raise
        self._accepting.begin(sockets)

    async def close(self) -> None:
        """Stop listening, and end the TLS handshakes that are under way."""
        self._accepting.end()
        connecting = [*self._connecting]
        for task in connecting:
            task.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)

    def _accept(self, accepted: socket.socket, address: Any) -> None:
        connection = self._make_connection()
        task = asyncio.create_task(self._connect(accepted, connection, address[0]))
        self._connecting.add(task)

        def ended(_: object) -> None:
            self._connecting.discard(task)
            if not task.cancelled() and task.exception() is not None:
                log.error("an accepted peer connection was lost", exc_info=task.exception())
            if connection.transport is None:  # nobody else owns the socket
                accepted.close()
                connection.connection_lost(None)

        task.add_done_callback(ended)
        connection.closed.add_done_callback(lambda _: task.cancel())

    async def _connect(self, accepted: socket.socket, connection: FrameProtocol, host: str) -> None:
        loop = asyncio.get_running_loop()
        if self._tls is None or (self._tls.plain_too and not await _begins_tls(accepted)):
            await loop.connect_accepted_socket(lambda: connection, accepted)
            return
        try:
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls.server, ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S
            )
        except OSError as error:  # ssl.SSLError is one
            self._refusals.note(f"{host} has no TLS handshake with this node: {reason_of(error)}")


async def _begins_tls(accepted: socket.socket) -> bool:
    """Return whether the other side speaks TLS, once it has said something, which is left where it is.

    A record of TLS begins with 22, 3 and a number that is not 0; a frame with its length, little-endian, of which the
    third byte is 0 in a handshake.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted, note)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
    try:
        head = accepted.recv(3, socket.MSG_PEEK)
    except OSError:
        return False
    return head[:1] == b"\x16" and head[2:] != b"\0"


async def dial(
    make_connection: Callable[[], FrameProtocol], address: PeerAddress, tls: PeerTls | None, node_id: int
) -> FrameProtocol:
    """Return a connection to that node; under TLS its certificate names the node. While peers may have no TLS, a node
    that ends the handshake is connected to without it. Raises OSError when there is no connection, ProtocolError when a
    certificate names another node, UnicodeError when the host is no name.
    """
    loop = asyncio.get_running_loop()
    if tls is None:
        return (await loop.create_connection(make_connection, address.host, address.port))[1]
    try:
        _, connection = await loop.create_connection(
            make_connection, address.host, address.port, ssl=tls.client, server_hostname=""
        )
    except OSError as error:
        if not tls.plain_too or isinstance(error, ConnectionRefusedError | ssl.SSLCertVerificationError):
            raise
        return (await loop.create_connection(make_connection, address.host, address.port))[1]
    try:
        tls.check(connection, node_id)
    except BaseException:
        connection.abort()
        raise
    return connection


def keep_alive(connection: FrameProtocol, lane: int) -> None:
    """Send small messages at once, and notice a peer that vanished without a word."""
    sock: Any = connection.transport.get_extra_info("socket") if connection.transport else None
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS[lane])


def _listening(family: int, where: Any) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setblocking(False)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        listening.bind(where)
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening
