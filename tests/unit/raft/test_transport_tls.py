"""Mutual TLS between peers: only nodes that the certificates name get a connection, and nobody else gets an answer."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
import uvloop

from raft.config import PeerAddress, RaftConfig, TlsConfig
from raft.errors import ProtocolError
from raft.messages import Hello, TimeoutNow, encode, make_append
from raft.peers.handshake import NONCE_BYTES, PROTOCOL
from raft.peers.pem_files import TlsError
from raft.peers.refusals import TEXTS_MAX, Refusals
from raft.peers.tls import PeerTls, load, name_of
from store.log.record import Entry
from tests.certificates import BOTH_SIDES, Authority, today
from tests.patience import PATIENCE_S
from tests.unit.raft.test_transport import running, two_nodes, until


def under(config: RaftConfig, tls: TlsConfig) -> RaftConfig:
    return msgspec.structs.replace(config, tls=tls)


def foreign_client(tls: TlsConfig) -> ssl.SSLContext:
    """Return a context that shows this certificate and believes every server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def foreign_server(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def hello_of(node_id: int, cluster_id: str = "shop", target: int = 1) -> bytes:
    return b"".join(
        encode(Hello(cluster_id, node_id, target, PROTOCOL, "x", "127.0.0.1:1", 0, nonce=bytes(NONCE_BYTES)))
    )


async def answer_to(address: PeerAddress, sent: bytes, context: ssl.SSLContext | None) -> bytes:
    """Return the first bytes that the node answers; none when it closes the connection first."""
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=context, server_hostname="" if context else None
            )
        except OSError:
            return b""
        try:
            writer.write(sent)
            received = await reader.read(1 << 16)
        except OSError:
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return received


async def test_peers_that_the_certificates_name_talk(tmp_path: Path) -> None:
    ca = Authority()
    nodes = [under(config, ca.issue(tmp_path, config.node_id)) for config in two_nodes()]
    async with running(*nodes) as [(one, got_one), (_, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        one.send(2, TimeoutNow(3))
        await until(lambda: got_two.messages == [(1, TimeoutNow(3))])
        await one.check_answers(2, nodes[1].listen)
        with pytest.raises(ProtocolError, match="names 'keelmq://shop/node/2', expected 'keelmq://shop/node/7'"):
            await one.check_answers(7, nodes[1].listen)
        session = one._senders[2][0].transport.get_extra_info("ssl_object")  # type: ignore[union-attr]
        assert session.version() == "TLSv1.3"


async def test_large_entries_go_in_pieces_through_tls(tmp_path: Path) -> None:
    ca = Authority()
    nodes = [under(config, ca.issue(tmp_path, config.node_id)) for config in two_nodes()]
    async with running(*nodes) as [(one, got_one), (_, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        payload = bytes(range(256)) * 40_000
        assert one.send(2, make_append(2, 7, 2, 6, [Entry(payload, 8, 2, 1, 0)]))
        await until(lambda: len(got_two.messages) == 1)
        assert got_two.messages[0][1].entries[0].payload == payload


async def test_a_peer_of_another_authority_is_kept_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [under(config, Authority().issue(tmp_path, config.node_id)) for config in two_nodes()]
    async with running(*nodes) as [(_, got_one), (_, got_two)]:
        await until(lambda: caplog.text.count("CERTIFICATE_VERIFY_FAILED") >= 2)
        await until(lambda: "127.0.0.1 has no TLS handshake with this node" in caplog.text)
        assert got_one.connected == got_two.connected == set()


async def test_a_peer_without_tls_is_kept_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config_one, config_two = two_nodes()
    tls = Authority().issue(tmp_path, 1)
    async with running(under(config_one, tls), config_two) as [(_, got_one), (_, got_two)]:
        await until(lambda: "no connection to node 1" in caplog.text and "no connection to node 2" in caplog.text)
        assert got_one.connected == got_two.connected == set()


# Names. The nodes of these tests refuse such certificates for themselves, so others show them.

WRONG_NAMES = {
    "another-node": (name_of("shop", 3),),
    "another-cluster": (name_of("bank", 2),),
    "no-name": (),
    "two-names": (name_of("shop", 2), name_of("shop", 3)),
    "of-another-scheme": ("https://shop/node/2",),
    "longer": (name_of("shop", 2) + "2",),
    "in-capitals": ("KEELMQ://shop/node/2",),
}


@pytest.mark.parametrize("uris", WRONG_NAMES.values(), ids=WRONG_NAMES)
async def test_an_acceptor_answers_nobody_whose_certificate_has_another_name(
    tmp_path: Path, uris: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    ca = Authority()
    config = two_nodes()[0]
    async with running(under(config, ca.issue(tmp_path, 1))):
        right = foreign_client(ca.issue(tmp_path, 2))
        for _ in range(3):
            wrong = foreign_client(ca.issue(tmp_path, 2, uris=uris))
            assert await answer_to(config.listen, hello_of(2), wrong) == b""
        told = [text for text in caplog.messages if "in the name of node 2" in text]
        assert len(told) == 1, "once, however often it comes"
        assert "expected 'keelmq://shop/node/2'" in told[0]
        assert all(uri in told[0] for uri in uris if uri.lower().startswith("keelmq:"))
        assert await answer_to(config.listen, hello_of(2), right) != b"", "it gets a challenge"
        assert await answer_to(config.listen, hello_of(2, "bank"), right) == b""
        assert "it claims to be of cluster 'bank'" in caplog.text


async def test_only_a_node_of_the_cluster_may_check_an_address(tmp_path: Path) -> None:
    """Such a hello names the acceptor itself as its sender (raft/peers/who_answers.py)."""
    ca = Authority()
    config = two_nodes()[0]
    async with running(under(config, ca.issue(tmp_path, 1))):
        assert await answer_to(config.listen, hello_of(1), foreign_client(ca.issue(tmp_path, 2))) != b""
        for uris in ((), (name_of("bank", 1),), (name_of("shop", 1), name_of("shop", 2))):
            foreign = foreign_client(ca.issue(tmp_path, 2, uris=uris))
            assert await answer_to(config.listen, hello_of(1), foreign) == b""


@asynccontextmanager
async def impostor(address: PeerAddress, tls: TlsConfig) -> AsyncIterator[list[bytes]]:
    """Listen with this certificate, and yield the list of everything that clients send."""
    received: list[bytes] = []

    class Listens(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(data)

    server = await asyncio.get_running_loop().create_server(
        Listens, address.host, address.port, ssl=foreign_server(tls)
    )
    try:
        yield received
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("uris", WRONG_NAMES.values(), ids=WRONG_NAMES)
async def test_an_opener_says_nothing_to_a_node_that_it_does_not_mean(
    tmp_path: Path, uris: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    ca = Authority()
    config = two_nodes()[0]
    own = ca.issue(tmp_path, 1)
    async with impostor(config.peers[2], ca.issue(tmp_path, 2, uris=uris)) as received, running(under(config, own)):
        await until(lambda: "expected 'keelmq://shop/node/2'" in caplog.text)
        assert received == []


# What strangers hear


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_stranger_gets_no_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(strangers_hear_nothing(tmp_path, caplog))


async def strangers_hear_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ca = Authority()
    config = two_nodes()[0]
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with running(under(config, ca.issue(tmp_path, 1))) as [(one, _)]:
        foreign = foreign_client(Authority().issue(tmp_path, 2))
        past = foreign_client(ca.issue(tmp_path, 2, ends=today() - timedelta(hours=1)))
        coming = foreign_client(ca.issue(tmp_path, 2, begins=today() + timedelta(hours=1)))
        for context in (without, old, foreign, past, coming):
            assert await answer_to(config.listen, hello_of(2), context) == b""
        for sent in (hello_of(2), b"GET / HTTP/1.1\r\n\r\n"):
            assert len(await answer_to(config.listen, sent, None)) <= 7, "an alert of TLS at most"
        silent = [socket.create_connection((config.listen.host, config.listen.port)) for _ in range(3)]
        await until(lambda: len(one._listener._connecting) == len(silent))
        for reason in ("expired", "not yet valid", "PEER_DID_NOT_RETURN_A_CERTIFICATE", "UNSUPPORTED_PROTOCOL"):
            assert reason in caplog.text
    for each in silent:
        each.settimeout(PATIENCE_S)
        assert await asyncio.to_thread(each.recv, 1) == b"", "the node has stopped, and left no connection open"
        each.close()


def test_refusals_are_logged_rarely(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("raft.peers.refusals.now", lambda: now_s)
    refusals = Refusals()
    for number in range(3 * TEXTS_MAX):
        refusals.note("the same")
        refusals.note(f"another, {number}")
    assert len(caplog.messages) == TEXTS_MAX
    now_s += 60
    refusals.note("the same")
    assert caplog.messages[TEXTS_MAX:] == [
        "320 further peer connections were refused since the last such report",
        "refused a peer connection: the same",
    ]


async def test_a_stranger_who_says_nothing_holds_its_connection_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raft.peers.transport.HANDSHAKE_TIMEOUT_MS", 50)
    config = two_nodes()[0]
    async with running(under(config, Authority().issue(tmp_path, 1))) as [(one, _)]:
        assert await answer_to(config.listen, b"", None) == b""
        await until(lambda: not one._incoming and not one._listener._connecting)


async def test_a_node_that_may_open_no_more_files_accepts_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raft.peers.accepting.ACCEPT_RETRY_S", 0.01)

    class Full:
        def accept(self) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

    config_one, config_two = two_nodes()
    async with running(config_one) as [(one, _)]:
        for _ in range(3):
            one._listener._accepting.accept(Full())  # type: ignore[arg-type]
        assert caplog.text.count("no peer connection can be accepted now: Too many open files") == 1
        async with running(config_two) as [(_, got_two)]:
            await until(lambda: got_two.connected == {1})


# Files


UNUSABLE: dict[str, tuple[Callable[[Path], TlsConfig], str]] = {
    "no-name": (lambda path: Authority().issue(path, 1, uris=()), "names no node; .* URI:keelmq://shop/node/1"),
    "another-node": (lambda path: Authority().issue(path, 1, uris=(name_of("shop", 2),)), "names keelmq://shop/node/2"),
    "another-cluster": (lambda path: Authority().issue(path, 1, "bank"), "names keelmq://bank/node/1; it must have"),
    "expired": (lambda path: Authority().issue(path, 1, ends=today() - timedelta(hours=1)), "has expired; make a new"),
    "expired-authority": (
        lambda path: Authority(ends=today() - timedelta(hours=1)).issue(path, 1),
        "or the authority in .*node-1.ca, has expired",
    ),
    "not-yet-valid": (lambda path: Authority().issue(path, 1, begins=today() + timedelta(hours=1)), "check the clock"),
    "encrypted": (lambda path: Authority().issue(path, 1, password=b"secret"), "tls_key .*node-1.key: .* encrypted"),
    "for-servers": (
        lambda path: Authority().issue(path, 1, usages=BOTH_SIDES[:1]),
        "extendedKeyUsage needs serverAuth and clientAuth",
    ),
    "for-clients": (
        lambda path: Authority().issue(path, 1, usages=BOTH_SIDES[1:]),
        "extendedKeyUsage needs serverAuth and clientAuth",
    ),
}


@pytest.mark.parametrize(("make", "named"), UNUSABLE.values(), ids=UNUSABLE)
def test_certificates_that_no_peer_would_accept_are_refused(
    tmp_path: Path, make: Callable[[Path], TlsConfig], named: str
) -> None:
    with pytest.raises(TlsError, match=named) as raised:
        load(make(tmp_path), name_of("shop", 1))
    assert str(raised.value).startswith(("tls_cert ", "tls_key "))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    ca, other = Authority(), Authority("Another")
    tls, second = ca.issue(tmp_path, 1), other.issue(tmp_path, 2)
    for change, named in (
        ({"key_file": second.key_file}, "tls_key .*node-2.key: the key does not belong to the certificate"),
        ({"ca_file": second.ca_file}, "no authority in tls_ca .*node-2.ca has signed the certificate"),
        ({"key_file": tls.certificate_file}, "tls_key .*node-1.crt: the file has no PRIVATE KEY in PEM form"),
        ({"certificate_file": tls.key_file}, "tls_cert .*node-1.key: the file has no CERTIFICATE in PEM form"),
        ({"ca_file": tls.key_file}, "tls_ca .*node-1.key: the file has no CERTIFICATE in PEM form"),
        ({"ca_file": str(tmp_path / "none")}, "tls_ca .*none: No such file or directory; make it readable"),
    ):
        with pytest.raises(TlsError, match=named):
            load(msgspec.structs.replace(tls, **change), name_of("shop", 1))
    for file, content in ((tls.certificate_file, b"CERTIFICATE"), (tls.ca_file, b"CERTIFICATE")):
        whole = Path(file).read_bytes()
        Path(file).write_bytes(b"-----BEGIN " + content + b"-----\nAAAA\n-----END " + content + b"-----\n")
        with pytest.raises(TlsError, match=r"cannot be read \("):
            load(tls, name_of("shop", 1))
        Path(file).write_bytes(whole)
    load(tls, name_of("shop", 1))


def test_the_end_is_that_of_the_certificate_or_of_its_authority(tmp_path: Path) -> None:
    soon, late = today() + timedelta(days=3), today() + timedelta(days=8)
    assert load(Authority(ends=late).issue(tmp_path, 1, ends=soon), name_of("shop", 1)).ends_s == soon.timestamp()
    tls = Authority(ends=soon).issue(tmp_path, 1, ends=late)
    assert load(tls, name_of("shop", 1)).ends_s == soon.timestamp()
    # While one authority replaces another, both are in the file.
    with open(tls.ca_file, "ab") as file:
        file.write(Path(Authority("Next", ends=late).issue(tmp_path, 2).ca_file).read_bytes())
    assert load(tls, name_of("shop", 1)).ends_s == soon.timestamp()


# Replacing


async def test_new_connections_use_the_files_that_were_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    former, following = Authority(), Authority()
    configs = [under(config, former.issue(tmp_path, config.node_id)) for config in two_nodes()]
    async with running(*configs) as [(one, got_one), (two, got_two)]:
        await until(lambda: got_one.connected == {2} and got_two.connected == {1})
        for node in (one, two):
            assert node.tls is not None
            assert node.tls.look() is None, "nothing was replaced"
        kept = one.outgoing[2]
        for node, config in ((one, configs[0]), (two, configs[1])):
            assert node.tls is not None
            following.issue(tmp_path, config.node_id)
            loaded = node.tls.look()
            assert loaded is not None
            node.tls.use(loaded)
            assert node.tls.look() is None
        assert one.outgoing[2] is kept, "a connection goes on as it is"
        stranger = foreign_client(former.issue(tmp_path, 3))
        assert await answer_to(configs[1].listen, hello_of(1, target=2), stranger) == b"", "of the former authority"
        kept.close()
        await until(lambda: one.outgoing.get(2) not in (None, kept))


def test_files_that_cannot_be_used_leave_those_in_use(tmp_path: Path) -> None:
    ca = Authority()
    tls = ca.issue(tmp_path, 1)
    used = PeerTls(tls, "shop", 1)
    before = used.client, used.server, used.ends_s
    other = ca.issue(tmp_path, 2)
    whole = Path(tls.key_file).read_bytes()
    Path(tls.key_file).write_bytes(Path(other.key_file).read_bytes())
    for _ in range(2):
        with pytest.raises(TlsError, match="the key does not belong"):
            used.look()
    Path(tls.key_file).unlink()
    with pytest.raises(TlsError, match="No such file"):
        used.look()
    assert (used.client, used.server, used.ends_s) == before
    Path(tls.key_file).write_bytes(whole)
    assert used.look() is not None
