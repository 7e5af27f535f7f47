"""A rolling restart from peers without TLS to peers with it: both ways are open until each peer was reached with it."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raft.config import PeerAddress
from raft.messages import TimeoutNow
from raft.peers import sockets
from raft.peers.tls import PeerTls, name_of
from raft.peers.transport import TcpTransport
from tests.certificates import Authority
from tests.unit.raft.test_transport import running, two_nodes, until
from tests.unit.raft.test_transport_tls import answer_to, foreign_client, hello_of, under


def is_encrypted(transport: TcpTransport, peer: int) -> bool:
    connections = transport._senders.get(peer, {}).values()
    sessions = [each.transport and each.transport.get_extra_info("ssl_object") for each in connections]
    return len(sessions) == 2 and all(sessions)


async def test_peers_get_tls_one_after_the_other_and_then_none_is_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ca, (first, second) = Authority(), two_nodes()
    secured_one, secured_two = (
        under(each, msgspec.structs.replace(ca.issue(tmp_path, each.node_id), plain_too=True))
        for each in (first, second)
    )
    async with running(secured_one) as [(one, got_one)]:
        assert one.tls is not None
        async with running(second) as [(_, got_two)]:
            await until(lambda: got_one.connected == {2} and got_two.connected == {1})
            one.send(2, TimeoutNow(3))
            await until(lambda: got_two.messages == [(1, TimeoutNow(3))])
            await one.check_answers(2, second.listen)
            assert one.tls.plain_too
            assert not is_encrypted(one, 2)
        await until(lambda: not got_one.connected)
        async with running(secured_two) as [(two, got_two)]:
            assert two.tls is not None
            tls = one.tls, two.tls
            await until(lambda: got_one.connected == {2} and got_two.connected == {1})
            await until(lambda: not any(each.plain_too for each in tls))
            await until(lambda: is_encrypted(one, 2) and is_encrypted(two, 1))
            assert caplog.text.count("all nodes have TLS") == 2
        await until(lambda: not got_one.connected)
        caplog.clear()
        async with running(second) as [(_, got_two)]:
            await until(lambda: "no connection to node 1" in caplog.text and "no connection to node 2" in caplog.text)
            assert got_one.connected == got_two.connected == set()


async def test_a_connection_without_tls_to_a_peer_that_has_it_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake may fail for once, as when the peer has too many of them under way."""
    ca = Authority()
    one, two = (
        under(each, msgspec.structs.replace(ca.issue(tmp_path, each.node_id), plain_too=True)) for each in two_nodes()
    )
    dialled = sockets.dial
    failures = {one.listen: 2}  # both lanes

    async def dial(make: Any, address: PeerAddress, tls: PeerTls | None, node_id: int) -> Any:
        failures[address] = failures.get(address, 0) - 1
        return await dialled(make, address, tls if failures[address] < 0 else None, node_id)

    monkeypatch.setattr("raft.peers.transport.dial", dial)
    async with running(one, two) as [(first, _), (second, _)]:
        await until(lambda: is_encrypted(first, 2) and is_encrypted(second, 1))
        assert first.tls is not None
        assert second.tls is not None
        tls = first.tls, second.tls
        await until(lambda: not any(each.plain_too for each in tls))


async def test_strangers_gain_nothing_while_peers_may_be_without_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca, secret = Authority(), (b"x" * 32,)
    first, second = (msgspec.structs.replace(each, peer_secrets=secret) for each in two_nodes())
    secured = under(first, msgspec.structs.replace(ca.issue(tmp_path, 1), plain_too=True))
    foreign = under(second, msgspec.structs.replace(Authority().issue(tmp_path, 2), plain_too=True))
    ignorant = msgspec.structs.replace(second, peer_secrets=(b"y" * 32,))
    async with running(secured) as [(one, got_one)]:
        async with running(foreign) as [(_, got_two)]:
            await until(lambda: caplog.text.count("CERTIFICATE_VERIFY_FAILED") >= 2)
            assert got_one.connected == got_two.connected == set()
        async with running(ignorant) as [(_, got_two)]:
            await until(lambda: "different peer secrets" in caplog.text)
            assert got_one.connected == got_two.connected == set()
        assert one.tls is not None
        assert one.tls.plain_too
        wrong = foreign_client(ca.issue(tmp_path, 2, uris=(name_of("shop", 3),)))
        assert await answer_to(first.listen, hello_of(2), wrong) == b""


async def test_a_stranger_that_says_nothing_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raft.peers.transport.HANDSHAKE_TIMEOUT_MS", 50)
    config = two_nodes()[0]
    secured = under(config, msgspec.structs.replace(Authority().issue(tmp_path, 1), plain_too=True))
    async with running(secured) as [(node, _)]:
        assert await answer_to(config.listen, b"", None) == b""
        await until(lambda: not node._strangers and not node._listener._connecting)
