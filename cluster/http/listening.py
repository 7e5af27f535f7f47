"""Listens for clients: binds the addresses of the HTTP API, and accepts connections, under TLS if the node has it."""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from aiohttp import web

from cluster.budgets.connections import Connections
from cluster.http.protocol import HttpProtocol
from cluster.http.tls_listener import TlsListener
from cluster.process.addresses import Address
from cluster.process.exit_codes import ExitCode, StartupError
from cluster.process.http_tls import HttpTls

HTTP_BACKLOG: Final = 1024


class Listener(Protocol):
    """Accepts connections until it is closed."""

    def close(self) -> None: ...


class HttpServer:
    """Owns one listener of the HTTP API and the runner of its application. Use it on the event loop only."""

    def __init__(self, option: str, address: Address, connections: Connections, runner: web.AppRunner) -> None:
        """Bind the address that the option has. Raises StartupError when it is not available."""
        self._listener: Listener = bind(address, option)
        self._connections = connections
        self._runner = runner

    async def prepare(self) -> None:
        await self._runner.setup()

    async def serve(self, tls: HttpTls | None) -> None:
        """Accept connections from here on. Call it once, after `prepare`."""
        assert self._runner.server is not None
        assert isinstance(self._listener, socket.socket)
        make_protocol = partial(HttpProtocol, self._runner.server)
        self._listener = await serve_http(self._connections, make_protocol, tls, self._listener)

    def close(self) -> None:
        """Accept no further connections. Those that are open go on."""
        self._listener.close()

    async def end(self) -> None:
        """Accept no further connections, answer the requests under way, and close the connections."""
        self.close()
        await self._runner.cleanup()


async def serve_http(
    connections: Connections,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: HttpTls | None,
    listening: socket.socket,
) -> Listener:
    """Accept connections at the socket, which belongs to the result. `make_protocol` returns the protocol of the HTTP
    server for a new connection.
    """
    if tls is not None:
        return TlsListener(connections, make_protocol, tls, listening)
    return await asyncio.get_running_loop().create_server(
        lambda: connections.protocol_of(make_protocol), sock=listening, backlog=HTTP_BACKLOG
    )


def bind(address: Address, option: str) -> socket.socket:
    """Return a socket bound to `address`, so that a taken port is noticed before anything else begins.

    Raises StartupError, which names the option, when the address is not available.
    """
    listener = None
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        # With SO_REUSEADDR two sockets may be bound to one port as long as neither listens.
        listener.listen(HTTP_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise unavailable(option, address, error) from None
    return listener


def unavailable(option: str, address: Address, error: OSError) -> StartupError:
    """Return the error of an address at which this node cannot listen."""
    return StartupError(
        ExitCode.ADDRESS_UNAVAILABLE,
        f"{option} {address}: {error.strerror or error}; stop the process that listens there or choose another address",
    )
