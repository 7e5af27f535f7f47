"""Accepts the connections of clients under TLS.

A server of asyncio makes a connection known only after its handshake, has one context for its life, and does not tell
why a handshake failed. Here a connection counts from its beginning (cluster/budgets/connections.py), and the next one
uses the certificate that is on the disk.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from cluster.budgets.connections import Connection, Connections
from cluster.budgets.handshake_pace import HandshakePace
from cluster.limits import TLS_HANDSHAKE_TIMEOUT_S, TLS_SHUTDOWN_TIMEOUT_S
from cluster.process.http_tls import HttpTls
from raft.peers.accepting import Accepting, reason_of

logger = logging.getLogger(__name__)


class TlsListener:
    """Owns a listening socket and the handshakes under way. Use it on the event loop only."""

    def __init__(
        self,
        connections: Connections,
        make_protocol: Callable[[], asyncio.Protocol],
        tls: HttpTls,
        listening: socket.socket,
    ) -> None:
        """Accept connections from here on. `make_protocol` returns the HTTP server's protocol of one."""
        self._connections = connections
        self._make_protocol = make_protocol
        self._tls = tls
        self._handshakes: set[asyncio.Task[None]] = set()
        self._pace = HandshakePace()
        self._accepting = Accepting(self._accept, "HTTP")
        listening.setblocking(False)
        self._accepting.begin([listening])

    def close(self) -> None:
        """Stop listening, and end the handshakes that are under way. Connections go on."""
        self._accepting.end()
        for task in self._handshakes:
            task.cancel()

    def _accept(self, accepted: socket.socket, address: Any) -> None:
        connection = self._connections.protocol_of(self._make_protocol)
        task = asyncio.create_task(self._shake_hands(accepted, connection))
        self._handshakes.add(task)

        def ended(_: object) -> None:
            self._handshakes.discard(task)
            if not task.cancelled() and task.exception() is not None:
                logger.error("an accepted connection was lost", exc_info=task.exception())
            if not connection.is_open:  # nobody else owns the socket
                accepted.close()
                connection.has_no_handshake()

        task.add_done_callback(ended)
        if not connection.arrive(address, task.cancel):
            task.cancel()

    async def _shake_hands(self, accepted: socket.socket, connection: Connection) -> None:
        wait_s = self._pace.wait_s(connection.address)
        if wait_s is None:
            logger.info("%s begins more TLS handshakes than it may, and is not answered", connection.address)
            return
        try:
            if wait_s:
                await asyncio.sleep(wait_s)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls.server,
                ssl_handshake_timeout=TLS_HANDSHAKE_TIMEOUT_S,
                ssl_shutdown_timeout=TLS_SHUTDOWN_TIMEOUT_S,
            )
        except ssl.SSLError as error:
            logger.info("%s has no TLS handshake with this node: %s", connection.address, reason_of(error))
        except OSError as error:  # it left, as probes of the port do, or took too long
            logger.debug("%s has no TLS handshake with this node: %s", connection.address, error)
