"""The network between clients and nodes delivers, loses, and reports messages as it should."""

import asyncio
from collections.abc import Callable

from .network import LinkProfile
from .wire import ClientNetwork, Reply, Request, ServerTransport, parse_reply
from .world import World

CALM = LinkProfile(delay_us_min=100, delay_us_max=100)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


class Server(asyncio.Protocol):
    """A server that says nothing by itself."""

    def __init__(self) -> None:
        self.received = b""
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, ServerTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Node:
    """The part of a node that a connection needs."""

    node_id = 1

    def __init__(self) -> None:
        self.alive = True
        self.says_nothing = False
        self.servers: list[Server] = []

    def accept(self, transport: ServerTransport) -> asyncio.Protocol:
        self.servers.append(Server())
        return self.servers[-1]

    def on_node(self, action: Callable[[], None]) -> None:
        if self.alive:
            action()


def network(profile: LinkProfile = CALM) -> tuple[World, ClientNetwork, Node]:
    world = World(1)
    clients, node = ClientNetwork(world, profile), Node()
    clients.attach(node)
    return world, clients, node


def test_a_request_arrives_and_its_response_comes_back() -> None:
    world, clients, node = network()
    replies: list[Reply | None] = []
    left: list[Reply] = []
    clients.send(1, Request("POST", "/path", b"body", {"A": "b"}, left.append), replies.append)
    world.run(1_000)
    (server,) = node.servers
    assert server.received.startswith(b"POST /path HTTP/1.1\r\n")
    assert server.received.endswith(b"A: b\r\nContent-Length: 4\r\n\r\nbody")
    server.transport.write(ANSWER[:20])
    server.transport.write(ANSWER[20:])
    assert [reply.body for reply in left] == [b"ok"]
    assert not replies
    server.transport._connection.from_server(ANSWER)
    world.run(1_000)
    assert replies == [Reply(1, 200, {"content-length": "2", "content-type": "text/plain"}, b"ok")]


def test_a_node_that_is_down_refuses_and_an_unreachable_one_is_silent() -> None:
    world, clients, node = network()
    replies: list[Reply | None] = []
    clients.unreachable.add(1)
    clients.send(1, Request("GET", "/"), replies.append)
    world.run(1_000_000)
    assert not replies
    assert not node.servers
    clients.heal()
    clients.refuse(1)
    clients.send(1, Request("GET", "/"), replies.append)
    world.run(1_000_000)
    assert replies == [None]


def test_a_client_that_gives_up_is_gone_for_the_node() -> None:
    world, clients, node = network()
    replies: list[Reply | None] = []
    connection = clients.send(1, Request("GET", "/"), replies.append)
    world.run(1_000)
    connection.abandon()
    world.run(1_000)
    assert node.servers[0].lost
    node.servers[0].transport.write(ANSWER)
    world.run(1_000)
    assert not replies


def test_connections_end_with_the_node() -> None:
    for silently in (False, True):
        world, clients, node = network()
        replies: list[Reply | None] = []
        clients.send(1, Request("GET", "/"), replies.append)
        world.run(1_000)
        node.alive = False
        clients.detach(1, silently=silently)
        world.run(1_000)
        assert replies == ([] if silently else [None])


def test_losses_duplicates_and_resets_happen() -> None:
    world, clients, node = network(
        LinkProfile(delay_us_min=1, delay_us_max=500, loss_probability=0.1, duplicate_probability=0.1)
    )
    replies: list[Reply | None] = []
    for _ in range(1_000):
        clients.send(1, Request("GET", "/"), replies.append)
    world.run(10_000_000)
    assert 850 < len(node.servers) < 1_150
    assert min(clients.counts["lost"], clients.counts["duplicated"]) > 50
    assert clients.counts["reset"] == sum(server.lost for server in node.servers) > 0
    assert set(replies) == {None}


def test_half_a_response_is_none() -> None:
    assert parse_reply(1, ANSWER[:-1]) is None
    assert parse_reply(1, ANSWER[:30]) is None


def test_a_node_that_says_nothing_answers_later_and_in_order() -> None:
    world, clients, node = network()
    replies: list[Reply | None] = []
    clients.send(1, Request("GET", "/"), replies.append)
    world.run(1_000)
    transport = node.servers[0].transport
    node.says_nothing = True
    transport.write(ANSWER[:20])
    world.run(10_000)
    node.says_nothing = False
    transport.write(ANSWER[20:])
    assert transport._written == [ANSWER[:20], ANSWER[20:]]
    assert not transport._sent
    world.run(10_000)
    assert transport._sent == [ANSWER[:20], ANSWER[20:]]
