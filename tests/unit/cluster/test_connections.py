"""Connections beyond a node's limit: which are closed, which get in, and how the log reports them."""

import asyncio
import contextlib
import functools
import itertools
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop

from cluster.budgets.connections import (
    CROWDED_PER_S_MAX,
    HEARD_MAX,
    PROBES_PER_S_MAX,
    RESERVED_CONNECTIONS,
    Connections,
)
from cluster.http.tls_listener import TlsListener
from cluster.process.http_tls import HttpTls, trusting
from cluster.security.client_certificate import certificate_of
from tests.certificates import Authority
from tests.patience import PATIENCE_S

LIMIT = 8
FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


Case = Callable[..., Coroutine[Any, Any, None]]


def on_brokers_loop(case: Case) -> Callable[..., None]:
    """Run the test on the loop of the broker: its transports are others than asyncio's."""

    @functools.wraps(case)
    def test(*arguments: Any, **named: Any) -> None:
        uvloop.run(case(*arguments, **named))

    return test


class Echo(asyncio.Protocol):
    """A protocol that answers `x` with itself; `b` begins a request that does not end."""

    connections: Connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"b":
            connection = self.connections.begin(self)
            assert connection is not None
            self.transport.write(b"r" if connection.in_reserve else b"m")  # type: ignore[attr-defined]
        else:
            self.transport.write(data)  # type: ignore[attr-defined]


class Clients:
    """Connections from several addresses."""

    def __init__(self, connections: Connections, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.connections = connections
        self._tls = tls
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, address: str, first: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Open a connection and send `first`. Returns its reader and the first byte of the answer; b"" if it was
        closed.
        """
        reader = await self.connect(address)
        self._writers[-1].write(first)
        with contextlib.suppress(ConnectionError):
            return reader, await reader.read(1)
        return reader, b""

    @property
    def tls(self) -> ssl.SSLContext:
        assert self._tls is not None
        return self._tls

    async def connect(self, address: str, *, tls: bool = True) -> asyncio.StreamReader:
        """Open a connection that says nothing, without `tls` not even in a handshake."""
        context = self._tls if tls else None
        reader, writer = await asyncio.open_connection(FIRST, self._port, local_addr=(address, 0), ssl=context)
        self._writers.append(writer)
        return reader

    def send(self, data: bytes) -> None:
        """Send on the last connection."""
        self._writers[-1].write(data)

    async def is_closed(self, reader: asyncio.StreamReader) -> bool:
        with contextlib.suppress(ConnectionError):
            return await reader.read(1) == b""
        return True

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


@contextlib.asynccontextmanager
async def serving(share_percent: int, steady_s: Callable[[], float] = lambda: 0.0) -> AsyncIterator[Clients]:
    connections = Connections(LIMIT, share_percent, PATIENCE_S, steady_s)
    Echo.connections = connections
    server = await asyncio.get_running_loop().create_server(partial(connections.protocol_of, Echo), FIRST, 0)
    clients = Clients(connections, server.sockets[0].getsockname()[1])
    async with asyncio.timeout(PATIENCE_S):
        try:
            yield clients
        finally:
            clients.close()
            server.close()
            while connections.open:
                await asyncio.sleep(0)
    assert connections.begin(object()) is None


@on_brokers_loop
async def test_idle_connections_make_room_the_oldest_first() -> None:
    async with serving(100) as clients:
        opened = [await clients.open(FIRST, b"x") for _ in range(LIMIT + 2)]
        assert [answer for _, answer in opened] == [b"x"] * (LIMIT + 2)
        assert clients.connections.open == LIMIT
        assert await clients.is_closed(opened[0][0])
        assert await clients.is_closed(opened[1][0])
        assert clients.connections.closed["idle"] == 2


@on_brokers_loop
async def test_an_address_beyond_its_share_loses_its_own_and_no_other() -> None:
    async with serving(50) as clients:
        other, _ = await clients.open(SECOND, b"x")
        for _ in range(3 * LIMIT):
            assert (await clients.open(FIRST, b"x"))[1] == b"x"
        assert clients.connections.open < LIMIT
        assert not other.at_eof()
        assert (await clients.open(SECOND, b"x"))[1] == b"x"


@on_brokers_loop
async def test_who_opens_connections_without_room_is_soon_closed_unanswered() -> None:
    now_s = [0.0]
    async with serving(50, lambda: now_s[0]) as clients:
        answers = [(await clients.open(FIRST, b"x"))[1] for _ in range(LIMIT + CROWDED_PER_S_MAX + 3)]
        room = answers.index(b"") - CROWDED_PER_S_MAX
        assert 0 < room < LIMIT
        assert answers[room + CROWDED_PER_S_MAX :] == [b""] * (LIMIT + 3 - room)
        assert clients.connections.closed["crowded"] == LIMIT + 3 - room
        assert (await clients.open(SECOND, b"x"))[1] == b"x"
        now_s[0] = 1.0
        assert (await clients.open(FIRST, b"x"))[1] == b"x"


@on_brokers_loop
async def test_who_is_closed_unanswered_is_still_told_his_health() -> None:
    now_s = [0.0]
    async with serving(50, lambda: now_s[0]) as clients:
        crowd = LIMIT + CROWDED_PER_S_MAX
        for _ in range(crowd):
            await clients.open(FIRST, b"x")
        silent = [await clients.connect(FIRST) for _ in range(2 * HEARD_MAX)]
        assert clients.connections.open <= LIMIT + HEARD_MAX
        for _ in range(PROBES_PER_S_MAX):
            assert (await clients.open(FIRST, b"GET /healthz HTTP/1.1"))[1] == b"G"
        assert (await clients.open(FIRST, b"GET /healthz HTTP/1.1"))[1] == b"", "more often than probes ask"
        assert (await clients.open(FIRST, b"GET /v1/topics HTTP/1.1"))[1] == b""
        assert await clients.is_closed(silent[0]), "the oldest made room"
        assert await clients.is_closed(silent[-1]), "heard for so long in vain"
        now_s[0] = 1.0
        assert (await clients.open(FIRST, b"x"))[1] == b"x"


@on_brokers_loop
async def test_the_address_that_holds_most_makes_room_for_others() -> None:
    async with serving(100) as clients:
        greedy = [await clients.open(FIRST, b"x") for _ in range(LIMIT)]
        assert (await clients.open(SECOND, b"x"))[1] == b"x"
        assert (await clients.open(THIRD, b"x"))[1] == b"x"
        assert await clients.is_closed(greedy[0][0])
        assert await clients.is_closed(greedy[1][0])


@on_brokers_loop
async def test_where_none_is_idle_there_is_the_reserve_and_the_newest_are_in_it() -> None:
    async with serving(100, itertools.count().__next__) as clients:  # a second between two of them
        busy = [await clients.open(FIRST, b"b") for _ in range(LIMIT)]
        assert {answer for _, answer in busy} == {b"m"}
        reserved = [await clients.open(SECOND, b"b") for _ in range(RESERVED_CONNECTIONS)]
        assert {answer for _, answer in reserved} == {b"r"}
        lone, answer = await clients.open(THIRD, b"b")
        assert answer == b"r"
        assert await clients.is_closed(reserved[0][0])
        for _ in range(RESERVED_CONNECTIONS):  # whoever has most in the reserve loses there
            assert (await clients.open(SECOND, b"b"))[1] == b"r"
        assert not lone.at_eof()
        assert clients.connections.open == LIMIT + RESERVED_CONNECTIONS
        assert not any(reader.at_eof() for reader, _ in busy)


@on_brokers_loop
async def test_for_want_of_descriptors_a_new_connection_replaces_an_idle_one_or_is_closed() -> None:
    async with serving(100) as clients:
        idle, _ = await clients.open(FIRST, b"x")
        clients.connections.is_short = True
        assert (await clients.open(SECOND, b"b"))[1] == b"m"
        assert await clients.is_closed(idle)
        assert (await clients.open(THIRD, b"x"))[1] == b"", "none is idle"
        assert (clients.connections.closed["idle"], clients.connections.closed["crowded"]) == (1, 1)
        clients.connections.is_short = False
        assert (await clients.open(THIRD, b"x"))[1] == b"x"
        assert clients.connections.close_idle(3)
        assert clients.connections.open == 1
        assert not clients.connections.close_idle(1)


@on_brokers_loop
async def test_what_was_closed_is_logged_once_per_interval(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    caplog.set_level(logging.WARNING)
    async with serving(100, lambda: now_s[0]) as clients:
        for _ in range(LIMIT + 20):
            await clients.open(FIRST, b"x")
        assert len(caplog.records) == 1
        now_s[0] = 60.0
        await clients.open(FIRST, b"x")
    assert [record.args[4] for record in caplog.records if isinstance(record.args, tuple)] == [1, 20]


@contextlib.asynccontextmanager
async def secured(path: Path, make_inner: Callable[[], asyncio.Protocol] = Echo) -> AsyncIterator[Clients]:
    """Serve as `serving` does, under TLS."""
    tls, known = Authority().issue_server(path), Authority("Clients").issue_client(path, "known")
    connections = Connections(LIMIT, 100, PATIENCE_S, lambda: 0.0)
    Echo.connections = connections
    listening = socket.create_server((FIRST, 0))
    clients = Clients(connections, listening.getsockname()[1], trusting(tls.ca_file))
    own = HttpTls(tls.certificate_file, tls.key_file, known.ca_file, [f"https://{FIRST}"])
    listener = TlsListener(connections, make_inner, own, listening)
    async with asyncio.timeout(PATIENCE_S):
        try:
            yield clients
        finally:
            listener.close()
            clients.close()
            while connections.open:
                await asyncio.sleep(0)


@on_brokers_loop
async def test_a_connection_counts_before_its_handshake_and_is_closed_for_others(tmp_path: Path) -> None:
    async with secured(tmp_path) as clients:
        silent = [await clients.connect(FIRST, tls=False) for _ in range(LIMIT)]
        while clients.connections.open < LIMIT:
            await asyncio.sleep(0)
        _, answer = await clients.open(FIRST, b"x")
        assert answer == b"x"
        assert clients.connections.open == LIMIT
        assert await clients.is_closed(silent[0])
        assert clients.connections.closed == {"idle": 1, "reserved": 0, "unread": 0, "crowded": 0, "handshake": 0}


@on_brokers_loop
async def test_an_address_without_room_begins_a_bounded_number_of_handshakes(tmp_path: Path) -> None:
    async with secured(tmp_path) as clients:
        room = [await clients.open(FIRST, b"b") for _ in range(LIMIT)]
        assert [answer for _, answer in room] == [b"m"] * LIMIT
        opened = [await clients.connect(FIRST, tls=False) for _ in range(CROWDED_PER_S_MAX + 3)]
        for reader in opened[CROWDED_PER_S_MAX:]:
            assert await clients.is_closed(reader)
        assert clients.connections.closed["crowded"] == 3
        assert clients.connections.open <= LIMIT + RESERVED_CONNECTIONS


@on_brokers_loop
async def test_handshakes_that_fail_are_counted_and_end(tmp_path: Path) -> None:
    async with secured(tmp_path) as clients:
        for sent in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x01\x00"):
            reader = await clients.connect(FIRST, tls=False)
            clients.send(sent)
            while not await clients.is_closed(reader):
                """An alert may come first."""
        clients.close()
        while clients.connections.open:
            await asyncio.sleep(0)
        assert clients.connections.closed["handshake"] == 2
        await clients.connect(FIRST, tls=False)
        while not clients.connections.open:
            await asyncio.sleep(0)
        # The end of the test closes the listener, which ends this handshake.


class Named(asyncio.Protocol):
    """Sends the name of the client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shown = certificate_of(transport.get_extra_info("ssl_object"))
        name = None if shown is None else shown.name
        transport.write(repr(name).encode())  # type: ignore[attr-defined]


@on_brokers_loop
async def test_a_client_is_known_by_its_verified_certificate_alone(tmp_path: Path) -> None:
    async with secured(tmp_path, Named) as clients:
        assert await (await clients.connect(FIRST)).readexactly(4) == b"None"
        clients.tls.load_cert_chain(tmp_path / "known.crt", tmp_path / "known.key")
        assert await (await clients.connect(FIRST)).readexactly(7) == b"'known'"
        clients.tls.load_cert_chain(tmp_path / "http.crt", tmp_path / "http.key")
        with contextlib.suppress(ConnectionError):
            assert await (await clients.connect(FIRST)).read() == b"", "of another authority"
    assert certificate_of(None) is None
