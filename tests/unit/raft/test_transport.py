"""Peer connections over real sockets: which are admitted, and which reason a refused node gets."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
import uvloop

from deploy.local_nodes import free_ports
from raft.config import PeerAddress, RaftConfig
from raft.messages import (
    FRAME,
    MAX_FRAME_BYTES,
    Append,
    Arrived,
    Challenge,
    Hello,
    Message,
    Proof,
    TimeoutNow,
    Welcome,
    encode,
    make_append,
)
from raft.peers.frames import FrameProtocol
from raft.peers.handshake import HANDSHAKE_FRAME_BYTES, NONCE_BYTES, PROTOCOL, opener_statement
from raft.peers.lanes import ARRIVED_BYTES, CONTROL, DATA
from raft.peers.redialling import Pauses
from raft.peers.secret import prove
from raft.peers.transport import HANDSHAKES_MAX, TcpTransport
from store.log.record import Entry
from store.version import VERSION
from tests.founded import founded
from tests.patience import PATIENCE_S


def free_port() -> int:
    return free_ports(1)[0]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Received:
    """The connections and messages that one node's handlers would see."""

    def __init__(self, transport: TcpTransport) -> None:
        self.messages: list[tuple[int, Any]] = []
        self.connected: set[int] = set()
        transport.setOnMessageReceivedCallback(lambda node, message: self.messages.append((node.id, message)))
        transport.setOnNodeConnectedCallback(lambda node: self.connected.add(node.id))
        transport.setOnNodeDisconnectedCallback(lambda node: self.connected.discard(node.id))


@asynccontextmanager
async def running(*configs: RaftConfig) -> AsyncIterator[list[tuple[TcpTransport, Received]]]:
    transports = [TcpTransport(config) for config in configs]
    for config, transport in zip(configs, transports, strict=True):
        transport.set_membership(founded(config))
        transport.on_data_arrives = lambda peer: 1
    nodes = [(transport, Received(transport)) for transport in transports]
    for transport in transports:
        await transport.start()
    try:
        yield nodes
    finally:
        for transport in transports:
            await transport.stop()


def two_nodes(clusters: tuple[str, str] = ("shop", "shop")) -> list[RaftConfig]:
    addresses = {node: PeerAddress("127.0.0.1", free_port()) for node in (1, 2)}
    return [
        RaftConfig(
            cluster_id=clusters[node - 1],
            node_id=node,
            listen=addresses[node],
            peers={peer: address for peer, address in addresses.items() if peer != node},
        )
        for node in (1, 2)
    ]


async def test_large_entries_arrive_in_order_and_what_is_small_overtakes_them() -> None:
    async with running(*two_nodes()) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        entry = Entry(bytes(30_000_000), 8, 2, 1, 0)
        assert one.send(2, make_append(2, 7, 2, 6, [entry]))
        assert one.send_behind(2, make_append(2, 8, 2, 6, []))
        assert one.data_waits(2)
        assert one.is_full(2)
        assert one.send(2, TimeoutNow(2))
        await until(lambda: len(got_two.messages) == 3)
        (sender, first), (_, append), (_, last) = got_two.messages
        assert sender == 1
        assert first == TimeoutNow(2)
        assert isinstance(append, Append)
        assert append.entries[0].payload == entry.payload
        assert isinstance(last, Append)
        assert last.message.prev_index == 8
        assert not one.data_waits(2)
        assert not two.send(7, TimeoutNow(2)), "an unknown peer"


async def test_bytes_of_a_large_entry_are_contact_before_it_has_arrived() -> None:
    async with running(*two_nodes()) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        arriving: list[tuple[int, int]] = []

        def on_data_arrives(peer: int) -> int:
            arriving.append((peer, len(got_two.messages)))
            return 9

        two.on_data_arrives = on_data_arrives
        assert one.send(2, make_append(2, 7, 2, 6, [Entry(bytes(3_000_000), 8, 2, 1, 0)]))
        await until(lambda: len(got_two.messages) == 1)
        assert (1, 0) in arriving, "before it was whole"
        await until(lambda: any(isinstance(message, Arrived) for _, message in got_one.messages))
        signs = [message for _, message in got_one.messages if isinstance(message, Arrived)]
        assert signs
        assert {sign.term for sign in signs} == {9}
        assert 0 < len(signs) < 3_000_000 / ARRIVED_BYTES, "the handlers hear of it now and then"


async def test_both_lanes_end_together() -> None:
    """An acknowledgement is good for one connection: behind the next one may be another disk."""
    async with running(*two_nodes()) as [(one, got_one), (two, _)]:
        for lane in (CONTROL, DATA):
            await until(lambda: got_one.connected == {2} and len(two._senders.get(1, {})) == 2)
            before = one.outgoing[2]
            two._senders[1][lane].abort()
            await until(lambda before=before: one.outgoing.get(2) not in (None, before))  # type: ignore[misc]


async def test_peer_of_another_cluster_never_connects(caplog: pytest.LogCaptureFixture) -> None:
    async with running(*two_nodes(("shop", "bank"))) as [(_, got_one), (_, got_two)]:
        await until(lambda: "this is cluster 'bank', not 'shop'" in caplog.text)
        assert got_one.connected == got_two.connected == set()


async def test_connection_is_restored_after_the_peer_restarts() -> None:
    configs = two_nodes()
    async with running(configs[0]) as [(_, got_one)]:
        async with running(configs[1]):
            await until(lambda: got_one.connected == {2})
        await until(lambda: got_one.connected == set())
        async with running(configs[1]):
            await until(lambda: got_one.connected == {2})


@asynccontextmanager
async def stranger(config: RaftConfig) -> AsyncIterator[tuple[FrameProtocol, list[Message | Append]]]:
    answers: list[Message | Append] = []
    _, connection = await asyncio.get_running_loop().create_connection(
        lambda: FrameProtocol(lambda _, message: answers.append(message)), config.listen.host, config.listen.port
    )
    try:
        yield connection, answers
    finally:
        connection.close()


def hello_of(**changes: Any) -> Hello:
    """Return the hello of node 2 to node 1."""
    return msgspec.structs.replace(Hello("shop", 2, 1, PROTOCOL, "a", nonce=bytes(NONCE_BYTES)), **changes)


async def introduce(
    connection: FrameProtocol, answers: list[Message | Append], hello: Hello, secret: bytes = b""
) -> Welcome:
    """Open with `hello`, prove the secret, and return the answer."""
    connection.write(encode(hello))
    await until(lambda: len(answers) == 1)
    challenge = answers[0]
    assert isinstance(challenge, Challenge)
    connection.write(encode(Proof(prove(secret, opener_statement(hello, challenge)))))
    await until(lambda: len(answers) == 2)
    assert isinstance(answers[1], Welcome)
    return answers[1]


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"cluster_id": "bank"}, "this is cluster 'shop', not 'bank'"),
        ({"node_id": 9}, "node 9 is not a configured peer"),
        ({"target_node_id": 3}, "this is node 1, not 3"),
        ({"cluster_uid": "another"}, "of two clusters named 'shop'"),
        ({"lane": 2}, "there is no lane 2"),
    ],
)
async def test_stranger_is_refused_with_the_reason(changes: dict[str, Any], refusal: str) -> None:
    config = msgspec.structs.replace(two_nodes()[0], incarnation="mine", cluster_uid="first disk")
    async with running(config) as [(_, received)], stranger(config) as (connection, answers):
        welcome = await introduce(connection, answers, hello_of(**changes))
        connection.write(encode(TimeoutNow(5)))
        await until(connection.closed.done)
        assert refusal in welcome.refusal
        assert welcome.incarnation == ""
        assert received.messages == []


SECRET, OTHER_SECRET = b"s" * 32, b"o" * 32


def with_secrets(configs: list[RaftConfig], *secrets: tuple[bytes, ...]) -> list[RaftConfig]:
    return [
        msgspec.structs.replace(config, peer_secrets=known, incarnation=f"disk {config.node_id}")
        for config, known in zip(configs, secrets, strict=True)
    ]


@pytest.mark.parametrize("changes", [{}, {"cluster_id": "bank"}, {"node_id": 9}, {"target_node_id": 3}])
async def test_who_does_not_know_the_secret_learns_nothing(changes: dict[str, Any]) -> None:
    config, _ = with_secrets(two_nodes(), (SECRET,), (SECRET,))
    async with running(config) as [(_, received)], stranger(config) as (connection, answers):
        welcome = await introduce(connection, answers, hello_of(**changes), OTHER_SECRET)
        connection.write(encode(TimeoutNow(5)))
        await until(connection.closed.done)
        assert welcome == Welcome(0, "the proof does not fit: the nodes have different peer secrets", "")
        assert received.messages == []


async def test_a_proof_is_good_for_one_connection() -> None:
    """A proof heard in an earlier handshake opens no other connection, whatever it is sent with."""
    config, _ = with_secrets(two_nodes(), (SECRET,), (SECRET,))
    async with running(config), stranger(config) as (connection, answers), stranger(config) as (again, heard):
        assert not (await introduce(connection, answers, hello_of(), SECRET)).refusal
        assert isinstance(answers[0], Challenge)
        said = Proof(prove(SECRET, opener_statement(hello_of(), answers[0])))
        again.write([*encode(hello_of()), *encode(said)])
        await until(again.closed.done)
        assert isinstance(heard[1], Welcome)
        assert "the proof does not fit" in heard[1].refusal


async def test_a_proof_is_good_for_one_protocol() -> None:
    """Nobody between two nodes makes one of them believe that the other speaks a later protocol."""
    config, _ = with_secrets(two_nodes(), (SECRET,), (SECRET,))
    async with running(config), stranger(config) as (connection, heard):
        connection.write(encode(hello_of(protocol=PROTOCOL + 1)))
        await until(lambda: bool(heard))
        assert isinstance(heard[0], Challenge)
        connection.write(encode(Proof(prove(SECRET, opener_statement(hello_of(), heard[0])))))
        await until(connection.closed.done)
        assert isinstance(heard[1], Welcome)
        assert "the proof does not fit" in heard[1].refusal


@pytest.mark.parametrize(
    ("first", "second", "is_connected"),
    [
        ((SECRET,), (SECRET,), True),
        ((SECRET,), (OTHER_SECRET,), False),
        ((SECRET,), (), False),
        ((SECRET,), (SECRET, OTHER_SECRET), True),
        ((SECRET, OTHER_SECRET), (OTHER_SECRET, SECRET), True),
    ],
    ids=["same", "different", "only one has one", "the next one is known", "one uses the next one"],
)
async def test_nodes_meet_when_each_knows_what_the_other_proves(
    first: tuple[bytes, ...], second: tuple[bytes, ...], is_connected: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(*with_secrets(two_nodes(), first, second)) as [(_, got_one), (_, got_two)]:
        if is_connected:
            await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        else:
            await until(lambda: caplog.text.count("different peer secrets") >= 2)
            assert got_one.connected == got_two.connected == set()


async def test_who_answers_without_the_secret_is_not_spoken_to(caplog: pytest.LogCaptureFixture) -> None:
    """Somebody else has taken the address of the other node, and welcomes whoever comes."""
    config, other = with_secrets(two_nodes(), (SECRET,), (SECRET,))

    def accept() -> FrameProtocol:
        def answer(connection: FrameProtocol, message: Message | Append) -> None:
            if isinstance(message, Hello):
                connection.write([*encode(Challenge(bytes(NONCE_BYTES))), *encode(Welcome(2, "", "disk 2"))])

        return FrameProtocol(answer)

    server = await asyncio.get_running_loop().create_server(accept, other.listen.host, other.listen.port)
    async with running(config) as [(_, received)]:
        await until(lambda: "answers there does not know the peer secret" in caplog.text)
        assert received.connected == set()
    server.close()


async def test_a_node_of_an_earlier_protocol_is_told_so() -> None:
    config = two_nodes()[0]
    async with running(config), stranger(config) as (connection, answers):
        connection.write(encode(Hello("shop", 2, 1, 2, "a")))
        await until(connection.closed.done)
        (answer,) = answers
        assert isinstance(answer, Welcome)
        assert (answer.node_id, answer.incarnation) == (0, ""), "nothing else is said to who has proven nothing"
        named = f"node 2 runs KeelMQ 0.1.0 or an earlier one (peer protocol 2), this is KeelMQ {VERSION}"
        assert named in answer.refusal


async def test_connections_that_say_nothing_do_not_keep_others_out() -> None:
    config = two_nodes()[0]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(config))
        idle = [await stack.enter_async_context(stranger(config)) for _ in range(HANDSHAKES_MAX + 1)]
        await until(lambda: any(connection.closed.done() for connection, _ in idle))
        connection, answers = await stack.enter_async_context(stranger(config))
        assert not (await introduce(connection, answers, hello_of())).refusal


@pytest.mark.parametrize(
    "frame",
    [
        b"".join(encode(TimeoutNow(5))),  # no handshake
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        FRAME.pack(MAX_FRAME_BYTES + 1, 10, 0),
        b"\x80\x04\x95" + bytes(40),  # a pickle
    ],
)
async def test_garbage_closes_the_connection_and_reaches_nobody(frame: bytes) -> None:
    config = two_nodes()[0]
    async with running(config) as [(_, received)], stranger(config) as (connection, answers):
        connection.write([frame])
        await until(connection.closed.done)
        assert (answers, received.messages) == ([], [])


def test_writing_to_a_connection_that_just_broke_is_no_error() -> None:
    """uvloop's closed transports raise on writes, and a send may come between the loss and the dialler's hearing of it:
    found by chaos (seed 7, nemesis process), where a candidate that asked for votes in that moment ended with FATAL."""

    async def send_after_abort() -> None:
        accepted: asyncio.Future[FrameProtocol] = asyncio.get_running_loop().create_future()

        def accept() -> FrameProtocol:
            accepted.set_result(FrameProtocol(lambda connection, message: None))
            return accepted.result()

        loop = asyncio.get_running_loop()
        server = await loop.create_server(accept, "127.0.0.1", 0)
        _, dialled = await loop.create_connection(
            lambda: FrameProtocol(lambda connection, message: None), *server.sockets[0].getsockname()
        )
        try:
            assert dialled.transport is not None
            dialled.transport.abort()
            dialled.write(encode(TimeoutNow(2)))
            await dialled.closed
            dialled.write(encode(TimeoutNow(2)))
        finally:
            (await accepted).close()
            await (await accepted).closed
            server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(send_after_abort())


@pytest.mark.parametrize("end", [FrameProtocol.close, FrameProtocol.abort])
async def test_a_connection_that_is_ended_before_it_is_made_is_never_open(end: Callable[[FrameProtocol], None]) -> None:
    connection = FrameProtocol(lambda connection, message: None)
    end(connection)
    assert connection.closed.done()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    try:
        transport, _ = await loop.create_connection(lambda: connection, *server.sockets[0].getsockname())
        assert transport.is_closing()
    finally:
        server.close()


async def test_what_a_lost_disk_still_says_is_not_heard() -> None:
    """Found in review: bytes of a dead process arrived after its successor, with an empty disk, had been welcomed."""
    mine, theirs = two_nodes()
    theirs = msgspec.structs.replace(theirs, incarnation="new")
    ghost = hello_of(incarnation="old")
    async with running(mine) as [(_, received)], stranger(mine) as (connection, answers):
        await introduce(connection, answers, ghost)
        async with running(theirs) as [(two, _)]:
            await until(lambda: received.connected == {2} and two.is_connected(1))
            await until(connection.closed.done)  # superseded
            async with stranger(mine) as (again, answers_again):
                await introduce(again, answers_again, ghost)
                again.write(encode(TimeoutNow(7)))
                two.send(1, TimeoutNow(8))  # lost, if the ghost has superseded it by now: then it dials again
                await until(lambda: two.send(1, TimeoutNow(8)) and (2, TimeoutNow(8)) in received.messages)
            assert (2, TimeoutNow(7)) not in received.messages


async def test_stranger_cannot_make_the_node_keep_much(caplog: pytest.LogCaptureFixture) -> None:
    config = two_nodes()[0]
    async with running(config), stranger(config) as (connection, _):
        connection.write([FRAME.pack(HANDSHAKE_FRAME_BYTES + 1, 10, 0)])
        await until(connection.closed.done)
    assert "a frame announces 4097 bytes" in caplog.text


async def test_a_peer_that_dials_is_dialled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is started again waits for its leader, whose last attempt to reach it may be a moment ago."""
    monkeypatch.setattr("raft.peers.transport.RECONNECT_MS", 3_600_000)
    first, second = two_nodes()
    async with running(first) as [(one, got_one)]:
        await until(lambda: bool(one.why_unconnected(2)))
        async with running(second) as [(_, got_two)]:
            await until(lambda: got_one.connected == {2} and got_two.connected == {1})


async def test_of_two_pauses_in_a_row_one_lasts() -> None:
    pauses = Pauses()

    async def paused(length_s: float) -> asyncio.Task[None]:
        task = asyncio.create_task(pauses.last(2, length_s))
        await asyncio.sleep(0)
        return task

    pauses.end(2)  # none is under way
    first = await paused(3_600)
    pauses.end(3)
    pauses.end(2)
    await first
    second = await paused(0)
    pauses.end(2)
    await second
    third = await paused(3_600)
    pauses.end(2)
    await third
    fourth = await paused(3_600)
    pauses.end(2)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not fourth.done()
    fourth.cancel()
    await asyncio.gather(fourth, return_exceptions=True)
