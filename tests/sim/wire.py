"""The network between clients and nodes: HTTP/1.1 over connections that are slow, break, and lose either direction.

Each request has a connection of its own. What leaves a node are the bytes of the real server, what reaches it the bytes
of a real request. A request that is duplicated arrives a second time later, as if some client had sent it again.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

from cluster.transactions.webhooks import WebhookReply

from .network import LinkProfile
from .world import World

RESET_PROBABILITY = 0.004
SPLIT_PROBABILITY = 0.05
LATE_US_MAX = 2_000_000  # until a duplicate arrives
REFUSED_US = 500
HELD_US = 1_000
"""Time between two looks whether a node answers again."""
TROUBLE_US_MAX = 4_000_000
UNREACHABLE_US_MAX = 900_000


class Reply(NamedTuple):
    """An HTTP response."""

    node_id: int
    status: int
    headers: Mapping[str, str]
    body: bytes


OnReply = Callable[[Reply | None], None]
OnLeft = Callable[[Reply], None]


class Request(NamedTuple):
    method: str
    target: str
    body: bytes = b""
    headers: Mapping[str, str] = {}
    on_written: OnLeft | None = None
    """Called when the node has written the whole response, on that node: from now on it may count it."""
    on_left: OnLeft | None = None
    """Called when the whole response has left the node, on that node: whether it arrives is another matter."""

    def encode(self) -> tuple[bytes, bytes]:
        """Return the head and the body of a request."""
        lines = [f"{self.method} {self.target} HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if self.body or self.method in ("POST", "PUT"):
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join((*lines, "", "")).encode(), self.body


class Host(Protocol):
    """A running node, as far as its clients' connections go."""

    node_id: int

    @property
    def alive(self) -> bool: ...

    @property
    def says_nothing(self) -> bool:
        """True while the node is within an entry for several turns: its answers leave at the end of the entry, when the
        models of the checkers know what they show.
        """
        ...

    def accept(self, transport: "ServerTransport") -> asyncio.Protocol:
        """Return the server's end of a new connection. Called on the node."""
        ...

    def on_node(self, action: Callable[[], None]) -> None:
        """Run the action on the node: later when it is frozen, never when it is dead."""
        ...


class ClientNetwork:
    """Carry requests to nodes and replies back. A node that is not attached refuses connections."""

    def __init__(self, world: World, profile: LinkProfile) -> None:
        self._world, self._profile = world, profile
        self._random = world.random_of("client network")
        self._hosts: dict[int, Host] = {}
        self._connections: dict[int, dict[Connection, None]] = {}
        self._healed = False
        self.unreachable: set[int] = set()
        """Nodes that no client reaches: what is sent vanishes, in both directions."""
        self.counts = {"lost": 0, "duplicated": 0, "reset": 0, "unreachable node": 0}
        self.finding: Callable[[], AbstractContextManager[None]] = nullcontext
        """Around whatever looks at bytes as they leave a node, which would take a violation for an error of its own."""
        self.webhook: Callable[[str, bytes], WebhookReply | None] = lambda url, body: None
        """The endpoint behind the URLs of webhooks: returns an answer, or None when it hangs."""
        self.on_webhook_answered: Callable[[bytes], None] = lambda body: None
        """Called on the node that a webhook has answered well, with the body that was posted."""

    def attach(self, host: Host) -> None:
        self._hosts[host.node_id] = host

    def refuse(self, node_id: int) -> None:
        """Refuse new connections to the node; existing ones go on."""
        self._hosts.pop(node_id, None)

    def detach(self, node_id: int, *, silently: bool) -> None:
        """Remove a node that is gone, with its connections. Its kernel tells the clients, unless it went `silently`."""
        self.refuse(node_id)
        for connection in self._connections.pop(node_id, {}):
            if not silently:
                self._later(node_id, connection.lost)

    def start_troubles(self) -> None:
        """Begin the troubles, unless links lose nothing at all: sometimes no client reaches a certain node, though its
        peers do.
        """
        if self._profile.loss_probability:
            self._world.after(self._random.randint(1, TROUBLE_US_MAX), self._trouble)

    def _trouble(self) -> None:
        if self._healed:
            return
        if self._hosts:
            node_id = self._random.choice(list(self._hosts))
            self.unreachable.add(node_id)
            self.counts["unreachable node"] += 1
            self._world.trace("unreachable", node_id)
            self._world.after(self._random.randint(1, UNREACHABLE_US_MAX), lambda: self.unreachable.discard(node_id))
        self.start_troubles()

    def heal(self) -> None:
        """Make every node reachable and lose nothing any more."""
        self._healed = True
        self.unreachable.clear()
        self._profile = LinkProfile(delay_us_min=self._profile.delay_us_min, delay_us_max=self._profile.delay_us_max)

    def send(self, node_id: int, request: Request, on_reply: OnReply) -> "Connection":
        """Open a connection and send the request. `on_reply` is called at most once: with the response, or with None
        when the connection broke.
        """
        if self._draw(self._profile.duplicate_probability):
            self.counts["duplicated"] += 1
            again = Connection(self, node_id, request, lambda reply: None)
            self._world.after(self._random.randint(0, LATE_US_MAX), again.open)
        connection = Connection(self, node_id, request, on_reply)
        connection.open()
        return connection

    def call_webhook(self, node_id: int, url: str, body: bytes, on_answer: Callable[[WebhookReply], None]) -> None:
        """Post from a node to a webhook. The node hears nothing more when the webhook hangs, or something is lost on
        the way.
        """

        def arrive() -> None:
            reply = self.webhook(url, body)
            if reply is not None:
                self.carry(node_id, lambda: on_answer(reply))

        self.carry(node_id, arrive)

    # --- for connections ---------------------------------------------------------------------------------------

    def host(self, node_id: int) -> Host | None:
        return self._hosts.get(node_id)

    def opened(self, connection: "Connection") -> None:
        self._connections.setdefault(connection.node_id, {})[connection] = None
        if self._draw(RESET_PROBABILITY if self._profile.loss_probability else 0):
            self.counts["reset"] += 1
            self._world.after(self._random.randint(0, LATE_US_MAX), connection.reset)

    def closed(self, connection: "Connection") -> None:
        self._connections.get(connection.node_id, {}).pop(connection, None)

    def carry(self, node_id: int, deliver: Callable[[], None]) -> int | None:
        """Carry something from a client to a node or back. Returns the time that it takes, in microseconds; None if it
        is lost.
        """
        if node_id in self.unreachable or self._draw(self._profile.loss_probability):
            self.counts["lost"] += 1
            return None
        return self._later(node_id, deliver)

    def splits(self) -> bool:
        return self._draw(SPLIT_PROBABILITY)

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        self._world.after(delay_us, action)

    def _later(self, node_id: int, action: Callable[[], None]) -> int:
        profile, random = self._profile, self._random
        delay_us = random.randint(profile.delay_us_min, profile.delay_us_max)
        if self._draw(profile.slow_probability):
            delay_us = random.randint(delay_us, profile.slow_us_max)
        self._world.after(delay_us, action)
        return delay_us

    def _draw(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability


class Connection:
    """One request's connection, as its client sees it."""

    def __init__(self, network: ClientNetwork, node_id: int, request: Request, on_reply: OnReply) -> None:
        self._network, self.node_id, self._request, self._on_reply = network, node_id, request, on_reply
        self._transport: ServerTransport | None = None
        self._over = False

    def open(self) -> None:
        if not self._over:
            self._network.carry(self.node_id, self._arrive)

    def abandon(self) -> None:
        """Give up as the client: the server hears that the connection is closed, if it hears anything."""
        if not self._over:
            self._over = True
            self._network.closed(self)
            if self._transport is not None:
                self._network.carry(self.node_id, self._transport.client_gone)

    def lost(self) -> None:
        """End the connection for the client."""
        self._finish(None)

    def reset(self) -> None:
        """End the connection for both ends, by something between them."""
        if not self._over and self._transport is not None:
            self._transport.client_gone()
            self.lost()

    def _arrive(self) -> None:
        if self._over:
            return
        host = self._network.host(self.node_id)
        if host is None:
            self._network.after(REFUSED_US, self.lost)
            return
        self._network.opened(self)
        self._transport = ServerTransport(host, self)
        host.on_node(self._transport.open)
        head, body = self._request.encode()
        if body and self._network.splits():
            self._to_server(head + body[:1])
            self._network.carry(self.node_id, lambda: self._to_server(body[1:]))
        else:
            self._to_server(head + body)

    def _to_server(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        transport.host.on_node(lambda: transport.data_received(data))

    def from_server(self, received: bytes) -> None:
        """Take the whole response of the node, which closes the connection after it."""
        reply = parse_reply(self.node_id, received)
        self._network.carry(self.node_id, lambda: self._finish(reply))

    def written(self, response: list[bytes]) -> None:
        """Note how much of its response the node has written."""
        self._tell(self._request.on_written, response)

    def left(self, response: list[bytes]) -> None:
        """Note how much of its response has left the node."""
        self._tell(self._request.on_left, response)

    def _tell(self, tell: OnLeft | None, response: list[bytes]) -> None:
        reply = None if tell is None else parse_reply(self.node_id, b"".join(response))
        if tell is not None and reply is not None:
            with self._network.finding():
                tell(reply)

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        self._network.after(delay_us, action)

    def _finish(self, reply: Reply | None) -> None:
        if not self._over:
            self._over = True
            self._network.closed(self)
            self._on_reply(reply)


class ServerTransport(asyncio.Transport):
    """A socket of the node, used on that node's loop only."""

    def __init__(self, host: Host, connection: Connection) -> None:
        super().__init__()
        self.host = host
        self._connection = connection
        self._protocol: asyncio.Protocol | None = None
        self._closing = False
        self._written: list[bytes] = []
        self._sent: list[bytes] = []
        self._held: list[Callable[[], None]] = []

    def open(self) -> None:
        self._protocol = self.host.accept(self)
        self._protocol.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._protocol is not None and not self._closing:
            self._protocol.data_received(data)

    def client_gone(self) -> None:
        """Close the socket because the client's end is closed. Called on the node."""
        self.host.on_node(self._on_client_gone)

    def _on_client_gone(self) -> None:
        if self._protocol is not None and not self._closing:
            self._closing = True
            self._protocol.connection_lost(ConnectionResetError("the client has closed the connection"))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.host.alive and not self._closing:
            self._written.append(bytes(data))
            self._connection.written(self._written)
            if not self._holds(lambda: self._send(data)):
                self._send(data)

    def _send(self, data: bytes | bytearray | memoryview) -> None:
        if self.host.alive and not self._closing:
            self._sent.append(bytes(data))
            self._connection.left(self._sent)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self._closing or self._holds(self.close):
            return
        self._closing = True
        if self.host.alive:
            self._connection.from_server(b"".join(self._sent))
            asyncio.get_running_loop().call_soon(self._lose, None)

    def _holds(self, action: Callable[[], None]) -> bool:
        """Return whether the action has to wait, which is done later then, in the order of the calls."""
        if not self._held and not self.host.says_nothing:
            return False
        self._held.append(action)
        if len(self._held) == 1:
            self._release_later()
        return True

    def _release_later(self) -> None:
        self._connection.after(HELD_US, lambda: self.host.on_node(self._release))

    def _release(self) -> None:
        if self.host.says_nothing:
            self._release_later()
            return
        held, self._held = self._held, []
        for action in held:
            action()

    def abort(self) -> None:
        self._sent.clear()
        self._held.clear()
        self.close()

    def _lose(self, error: Exception | None) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        """Do nothing: requests are shorter than any buffer."""

    def resume_reading(self) -> None:
        """Do nothing, as `pause_reading` does."""


def parse_reply(node_id: int, received: bytes) -> Reply | None:
    """Return the response in these bytes; None when they are not a whole one."""
    head, separator, body = received.partition(b"\r\n\r\n")
    if not separator:
        return None
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    status = int(status_line.split()[1])
    expected = int(headers.get("content-length", "0"))
    return Reply(node_id, status, headers, body) if len(body) == expected else None
