"""The HTTP connections of a node: how many there are, whose they are, and which of them is closed when they run out.

A connection is *idle* while no request of it is being handled: it is new, sends a head, or waits for its next request.
When there is no room for a new connection (client_budget.py), idle connections of the address that holds most are
closed for it, the longest idle first. An address never takes room from one that holds less; only its own idle
connections are closed then. Without an idle connection to close, the new one is taken into the *reserve*: there it may
ask for health, metrics and administration, and every other request is answered with `overloaded`. When the reserve is
full, the oldest connection of the address that has most in the reserve is closed. So every client is answered, whatever
the others hold. The one exception is an address without room that opens more than CROWDED_PER_S_MAX connections a
second, because a connection costs more than many requests. The further ones are only *heard*: each gets no protocol,
and is closed unless the first bytes that it sends ask for health, which is answered PROBES_PER_S_MAX times a second.

The listener of administration, if a node has one, has connections of its own, by the same rules: clients of the other
listener take none of them.

Under TLS (cluster/http/tls_listener.py) a connection counts before its handshake, during which it is idle. What an
address without room opens beyond CROWDED_PER_S_MAX is closed at once: to hear what it asks for would take a handshake,
which costs more than the answer.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final, cast

from aiohttp import web

from cluster.budgets.client_budget import ClientBudget, address_of
from cluster.budgets.client_notes import ClientNotes
from cluster.budgets.connection_pool import ConnectionPool
from cluster.budgets.holdings import Holdings, Listener
from cluster.problems import Problem

logger = logging.getLogger(__name__)

RESERVED_CONNECTIONS: Final = 64
"""Connections beyond the limit, for health, metrics and administration, and to answer others with `overloaded`."""
CLOSED_FOR_ONE_MAX: Final = 4
"""Maximum number of idle connections closed for a new one: each closed connection of another address enlarges the share
by less than one."""
CROWDED_PER_S_MAX: Final = 100
"""Maximum number of connections that an address without room may open in a second."""
NEW_PER_LOOK: Final = 4
"""Number of new connections after which the file descriptors are looked at: a quarter of those kept for RocksDB."""
HEARD_MAX: Final = 256
"""Maximum number of connections that are heard; for the next one, the oldest of the address that has most is closed."""
HEARD_S: Final = 1.0
"""Seconds for which a connection is heard; it is closed after up to twice this time."""
PROBES: Final = (b"GET /healthz", b"GET /readyz")
"""Beginnings of the requests that are answered on a connection that is heard."""
PROBES_PER_S_MAX: Final = 20
"""Maximum number of connections of one address in a second that are answered after they were heard."""
REPORT_INTERVAL_S: Final = 60.0
"""Seconds between two log lines that count the connections closed for lack of room."""


class Connections:
    """Counts HTTP connections, and closes some when the limit is reached. Use on the event loop only."""

    def __init__(
        self,
        limit: int,
        share_percent: int,
        write_timeout_s: float,
        steady_s: Callable[[], float] = time.monotonic,
        numbers: Iterator[int] | None = None,
        listener: Listener = "http_listen",
    ) -> None:
        """Create the counters. A client that reads nothing of its answers for `write_timeout_s` is disconnected. Each
        connection gets the next one of `numbers`, which grow. Log lines name the `listener` by its option.
        """
        self.listener: Listener = listener
        self.write_timeout_s = write_timeout_s
        self.limit = limit
        self.is_short = False
        """True while the process has hardly a descriptor left: a new connection then has to replace an idle one."""
        self.look_at_descriptors: Callable[[], object] = lambda: None
        """Called at every NEW_PER_LOOK-th new connection: a second later a burst of them may have taken what is kept
        for RocksDB. It sets `is_short`, and is not called while that is true."""
        self._new_since_look = 0
        self._main = ConnectionPool[Connection](ClientBudget(limit, share_percent))
        self._reserve = ConnectionPool[Connection](ClientBudget(RESERVED_CONNECTIONS, 100))
        self._of_protocol: dict[asyncio.Protocol, Connection] = {}
        self._steady_s = steady_s
        self._numbers = itertools.count(1) if numbers is None else numbers
        self._reported_s = -REPORT_INTERVAL_S
        self._unreported = {"idle": 0, "reserved": 0, "unread": 0, "crowded": 0, "handshake": 0}
        self.closed = dict.fromkeys(self._unreported, 0)
        """Number of connections that this node closed since its start, by reason: `idle` and `reserved` to make room,
        `unread` when the client read nothing of its answers, `crowded` for new ones beyond CROWDED_PER_S_MAX,
        `handshake` when TLS did not begin.
        """
        self._heard = ConnectionPool[Connection](ClientBudget(HEARD_MAX, 100))
        self._heard_before: list[Connection] = []
        """Connections that were heard from at the last look."""
        self._is_hearing = False
        self._crowded: dict[str, int] = {}
        """Number of new connections without room in the present second, by address."""
        self._probes: dict[str, int] = {}
        """Number of probes of connections that were heard in the present second, by address."""
        self._crowded_s = -1.0
        self.reserved = 0
        """Number of connections taken into the reserve since the start."""

    @property
    def open(self) -> int:
        return self._main.budget.held + self._reserve.budget.held + self._heard.budget.held

    def protocol_of(self, make_protocol: Callable[[], asyncio.Protocol]) -> "Connection":
        """Return the protocol of a new connection, which wraps the protocol of the HTTP server."""
        return Connection(self, make_protocol)

    def begin(self, protocol: object) -> "Connection | None":
        """Mark the connection of the server's `protocol` as busy with a request, and return it; None for a connection
        that is not counted here.
        """
        connection = self._of_protocol.get(cast("asyncio.Protocol", protocol))
        if connection is None:
            return None
        connection.notes.requests += 1
        connection.notes.under_way += 1
        if not connection.in_reserve:
            self._main.is_busy(connection)
        return connection

    def end(self, connection: "Connection | None") -> None:
        """Mark the connection as idle again: the request that `begin` marked is answered."""
        if connection is None:
            return
        connection.notes.under_way -= 1
        if not connection.in_reserve and connection.is_open:
            self._main.is_idle(connection)

    def is_look_due(self, connection: "Connection") -> bool:
        """Return whether to note again who is at the other end of the connection."""
        return connection.notes.is_look_due(self._steady_s())

    def count_for(
        self, connection: "Connection", holder: str, holdings: Holdings, beside: "Connections | None" = None
    ) -> None:
        """Count the connection for who sends its requests now, and close an idle one of the same holder if there is no
        room, also of the listener `beside` if its quota, which holds for both, is used up. Raises Problem.
        """
        try:
            connection.notes.counts_for(holder, holdings, self.listener)
        except Problem as problem:
            counted = (self,) if beside is None or problem.code != "quota_exceeded" else (self, beside)
            if not any(each.close_idle_of(holder) for each in counted):
                raise
            connection.notes.counts_for(holder, holdings, self.listener)

    def close_idle_of(self, holder: str) -> bool:
        """Close an idle connection of the holder; return whether there was one."""
        idle = self._main.idle_of(holder)
        if idle is not None:
            self._close_idle(idle, "idle")
        return idle is not None

    def note_producer(self, protocol: object, group: str) -> None:
        """Note that the client of the server's `protocol`, if it is counted here, sends transactions of the group."""
        connection = self._of_protocol.get(cast("asyncio.Protocol", protocol))
        if connection is not None:
            connection.notes.produces(group)

    def after(self, number: int, limit: int) -> list["Connection"]:
        """Return the first `limit` open connections with a larger number, in the order of their numbers."""
        later = (each for each in self._of_protocol.values() if each.notes.number > number and each.is_open)
        return list(itertools.islice(later, limit))

    def age_ms(self, connection: "Connection") -> int:
        """Return how long ago the connection began to be served."""
        return round((self._steady_s() - connection.notes.opened_s) * 1000)

    def is_crowded(self, address: str) -> bool:
        """Return whether only to hear a new connection of the address. Counts it if the address has no room."""
        if self._main.budget.has_room(address, 1):
            return False
        now_s = self._steady_s()
        if now_s - self._crowded_s >= 1:
            self._crowded, self._probes, self._crowded_s = {}, {}, now_s
        self._crowded[address] = self._crowded.get(address, 0) + 1
        return self._crowded[address] > CROWDED_PER_S_MAX

    def hear(self, connection: "Connection") -> None:
        """Keep a connection that may ask for health, for a while."""
        if not self._is_hearing:
            self._is_hearing = True
            asyncio.get_running_loop().call_later(HEARD_S, self._end_hearing)
        if self._heard.budget.held >= HEARD_MAX:
            self._close_idle(self._heard.idle_of_largest(), "crowded")
        self._heard.add(connection)

    def may_probe(self, connection: "Connection", first: bytes) -> bool:
        """Stop hearing the connection. Return whether to answer the `first` bytes that it has sent."""
        self._heard.remove(connection)
        address = connection.address
        probes = self._probes[address] = self._probes.get(address, 0) + first.startswith(PROBES)
        return first.startswith(PROBES) and probes <= PROBES_PER_S_MAX

    def forget_heard(self, connection: "Connection") -> None:
        self._heard.remove(connection)

    def _end_hearing(self) -> None:
        for connection in self._heard_before:
            if connection.is_heard:
                connection.give_up("crowded")
        self._heard_before = self._heard.idle
        self._is_hearing = bool(self._heard_before)
        if self._is_hearing:
            asyncio.get_running_loop().call_later(HEARD_S, self._end_hearing)

    def has_descriptor(self) -> bool:
        """Return whether a new connection may stay; for want of descriptors an idle one is closed for it."""
        self._new_since_look += 1
        if self._new_since_look >= NEW_PER_LOOK and not self.is_short:
            self._new_since_look = 0
            self.look_at_descriptors()
        return not self.is_short or self.close_idle(1)

    def close_idle(self, count: int) -> bool:
        """Close up to `count` idle connections of the addresses that have most. Return False if there is none."""
        has_idle = self._main.idle_of_largest() is not None
        for _ in range(count):
            self._close_idle(self._main.idle_of_largest(), "idle")
        return has_idle

    def serves(self, connection: "Connection", inner: asyncio.Protocol) -> None:
        """Note that the server's protocol serves the connection from now on. Later ones get larger numbers."""
        connection.notes.number, connection.notes.opened_s = next(self._numbers), self._steady_s()
        self._of_protocol[inner] = connection

    def admit(self, connection: "Connection") -> None:
        """Count the connection, and make room for it."""
        for _ in range(CLOSED_FOR_ONE_MAX):
            if self._main.budget.has_room(connection.address, 1):
                break
            self._close_idle(self._main.idle_of_largest(connection.address), "idle")
        if self._main.budget.has_room(connection.address, 1):
            self._main.add(connection)
            return
        self.reserved += 1
        if self._reserve.budget.held >= RESERVED_CONNECTIONS:
            self._close_idle(self._reserve.idle_of_largest(), "reserved")
        connection.in_reserve = True
        self._reserve.add(connection)

    def forget(self, connection: "Connection", inner: asyncio.Protocol | None) -> None:
        """Stop counting a closed connection."""
        if inner is not None:
            self._of_protocol.pop(inner, None)
        connection.notes.ends()
        (self._reserve if connection.in_reserve else self._main).remove(connection)

    def note_closed(self, reason: str) -> None:
        self.closed[reason] += 1
        if reason == "handshake":  # probes that only connect are no reason for a warning
            return
        self._unreported[reason] += 1
        now_s = self._steady_s()
        if now_s - self._reported_s < REPORT_INTERVAL_S:
            return
        self._reported_s = now_s
        logger.warning(
            "%d HTTP connections are open at %s, %d of them of %s; closed since the last such line: %d idle ones and "
            "%d in the reserve to make room, %d whose client read nothing for %.0f s, %d that an address without room "
            "opened faster than %d a second",
            self.open,
            self.listener,
            self._main.budget.held_by(self._main.budget.largest_holder()),
            self._main.budget.largest_holder() or "nobody",
            self._unreported["idle"],
            self._unreported["reserved"],
            self._unreported["unread"],
            self.write_timeout_s,
            self._unreported["crowded"],
            CROWDED_PER_S_MAX,
        )
        self._unreported = dict.fromkeys(self._unreported, 0)

    def _close_idle(self, chosen: "Connection | None", reason: str) -> None:
        if chosen is not None:
            chosen.give_up(reason)


class Connection(asyncio.Protocol):
    """Passes all events on to the HTTP server's protocol, and reports the beginning and end of the connection."""

    def __init__(self, connections: Connections, make_inner: Callable[[], asyncio.Protocol]) -> None:
        self._connections = connections
        self._make_inner = make_inner
        self._inner: asyncio.Protocol | None = None
        """Protocol of the HTTP server; None until the connection is admitted, because creating it costs most."""
        self._transport: asyncio.Transport | None = None
        self._end_handshake: Callable[[], object] | None = None
        """Ends the TLS handshake; None when none is under way."""
        self._unread_timer: asyncio.TimerHandle | None = None
        self.address = ""
        self.in_reserve = False
        self.is_heard = False
        self._is_admitted = False
        self._is_given_up = False
        self.notes = ClientNotes()

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    @property
    def peer(self) -> str:
        """Address and port of the client; empty when the connection no longer knows its peer."""
        peername = None if self._transport is None else self._transport.get_extra_info("peername")
        if not isinstance(peername, tuple) or len(peername) < 2:
            return ""
        host, port = str(peername[0]), peername[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def arrive(self, peername: object, end_handshake: Callable[[], object]) -> bool:
        """Count the connection before its TLS handshake, which `end_handshake` ends. Return False when its address may
        not begin one, because it has no room and opens too many.
        """
        self.address = address_of(peername)
        if self._connections.is_crowded(self.address) or not self._connections.has_descriptor():
            self._connections.note_closed("crowded")
            return False
        self._end_handshake = end_handshake
        self._admit()
        return True

    def has_no_handshake(self) -> None:
        """Stop counting the connection if its handshake has not succeeded."""
        if self._end_handshake is not None:
            self._end_handshake = None
            self._connections.note_closed("handshake")
            self._ends()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._is_given_up:  # in the moment in which its handshake succeeded
            cast("asyncio.Transport", transport).abort()
            return
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses of it
        if self._is_admitted:
            self._end_handshake = None
            self._begin(self._transport)
            return
        self.address = address_of(transport.get_extra_info("peername"))
        if self._connections.is_crowded(self.address) or not self._connections.has_descriptor():
            self.is_heard = True
            self._connections.hear(self)
        else:
            self._admit()
            self._begin(self._transport)

    def data_received(self, data: bytes) -> None:
        """Take the first bytes of a connection that is heard; `_begin` replaces this method."""
        transport = self._transport
        if not self.is_heard or transport is None:
            return
        self.is_heard = False
        if self._connections.may_probe(self, data):
            self._admit()
            self._begin(transport).data_received(data)
        else:
            self.give_up("crowded")

    def _admit(self) -> None:
        self._is_admitted = True
        self._connections.admit(self)

    def _begin(self, transport: asyncio.Transport) -> asyncio.Protocol:
        """Return the protocol of the HTTP server, to which all events go from here on."""
        inner = self._inner = self._make_inner()
        self.data_received = inner.data_received  # type: ignore[method-assign]  # no call between: the hot path
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        transport.set_protocol(self)  # uvloop looks callbacks up when a protocol is set, not at each call
        self._connections.serves(self, inner)
        inner.connection_made(transport)
        return inner

    def connection_lost(self, exc: Exception | None) -> None:
        self._ends()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout for a client that does not read: more bytes of its answers wait than are buffered."""
        timeout_s = self._connections.write_timeout_s
        self._unread_timer = asyncio.get_running_loop().call_later(timeout_s, self.give_up, "unread")
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stop_timer()
        if self._inner is not None:
            self._inner.resume_writing()

    def give_up(self, reason: str) -> None:
        """Disconnect the client. The room of the connection is free at once."""
        transport, end_handshake = self._transport, self._end_handshake
        self._end_handshake = None
        self._is_given_up = True
        self._ends()
        if end_handshake is not None:
            self._connections.note_closed(reason)
            end_handshake()
        elif transport is not None:
            self._connections.note_closed(reason)
            transport.abort()

    def _ends(self) -> None:
        self._transport = None
        self._stop_timer()
        if self.is_heard:
            self.is_heard = False
            self._connections.forget_heard(self)
        if self._is_admitted:
            self._is_admitted = False
            self._connections.forget(self, self._inner)

    def _stop_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


def address_of_request(request: web.Request) -> str:
    """Return the client address that a request counts for."""
    return address_of((request.remote or "",))
