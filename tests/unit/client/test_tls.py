"""TLS of the SDK: what is trusted, what is shown, and what an error says."""

import contextlib
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelmq import Connection, Tls
from keelmq.errors import InvalidRequest, KeelMQError, ServerNotTrusted
from keelmq.transport.http1 import ConnectFailed, HttpClient, HttpResponse, NotTrusted, Origin
from keelmq.transport.tls import TlsFiles
from raft.config import TlsConfig
from tests.certificates import Authority
from tests.patience import PATIENCE_S
from tests.unit.client.scripted import Request, ScriptedTransport

HTTPS = ("https://n1:1", "https://n2:1")


def answer(accepted: ssl.SSLSocket) -> None:
    try:
        accepted.do_handshake()
    except ssl.SSLError:
        socket.socket.shutdown(accepted, socket.SHUT_WR)
        while socket.socket.recv(accepted, 1 << 16):
            """Unread bytes would reset the connection, and take the alert with them."""
        raise
    accepted.recv(1 << 16)
    accepted.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")


@contextlib.contextmanager
def server(tls: TlsConfig, client_ca: str | None = None) -> Iterator[Origin]:
    """Run a server that answers one request on each connection. With `client_ca` it demands a certificate of it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the end of the test
            while True:
                plain, _ = listening.accept()
                plain.settimeout(PATIENCE_S)
                accepted = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
                with contextlib.suppress(OSError), accepted:
                    answer(accepted)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield Origin.parse(f"https://127.0.0.1:{listening.getsockname()[1]}")
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def join(path: Path, *files: str) -> None:
    """Write the contents of the files into one."""
    path.write_bytes(b"".join(Path(file).read_bytes() for file in files))


async def status_of(origin: Origin, tls: Tls | ssl.SSLContext) -> int:
    client = HttpClient(connect_timeout_ms=int(PATIENCE_S * 1000), tls=TlsFiles(tls))
    try:
        return (await client.request(origin, "GET", "/", "", b"", PATIENCE_S)).status
    finally:
        client.close()


def test_files_come_from_the_environment_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CA_FILE", "CERTIFICATE_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"KEELMQ_{name}", raising=False)
    assert Tls() == Tls(None, None, None)
    monkeypatch.setenv("KEELMQ_CA_FILE", "/ca")
    monkeypatch.setenv("KEELMQ_KEY_FILE", "")
    assert Tls(certificate_file="/own") == Tls("/ca", "/own", None)
    assert Tls(ca_file=None).ca_file is None


async def test_a_server_is_verified_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    ca, foreign = Authority(), Authority("Foreign").issue_server(tmp_path / "foreign")
    tls = ca.issue_server(tmp_path)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(tls.ca_file)
    with server(tls) as origin:
        assert await status_of(origin, Tls(tls.ca_file)) == 204
        assert await status_of(origin, trusting) == 204
        for files in (Tls(None), Tls(foreign.ca_file)):
            with pytest.raises(NotTrusted, match=r"cannot be verified .*: it must be signed by .* give ca_file"):
                await status_of(origin, files)
    with server(ca.issue_server(tmp_path, "other", hosts=("127.0.0.2",))) as origin, pytest.raises(NotTrusted):
        await status_of(origin, Tls(tls.ca_file))


async def test_a_client_shows_its_certificate(tmp_path: Path) -> None:
    tls, clients = Authority().issue_server(tmp_path), Authority("Clients")
    own = clients.issue_client(tmp_path, "own")
    both = tmp_path / "both.pem"
    join(both, own.key_file, own.certificate_file)
    with server(tls, own.ca_file) as origin:
        assert await status_of(origin, Tls(tls.ca_file, own.certificate_file, own.key_file)) == 204
        assert await status_of(origin, Tls(tls.ca_file, str(both))) == 204
        with pytest.raises(NotTrusted, match=r"does not accept this client's certificate .* give certificate_file"):
            await status_of(origin, Tls(tls.ca_file))


def test_files_that_cannot_be_used_are_named_at_once(tmp_path: Path) -> None:
    own, other = Authority().issue_client(tmp_path, "own"), Authority().issue_client(tmp_path, "other")
    (tmp_path / "secret").mkdir()
    secret = Authority().issue(tmp_path / "secret", 1, password=b"x")
    for tls, named in (
        (Tls("/none"), "ca_file /none: cannot be used .No such file"),
        (Tls(own.key_file), "ca_file .*own.key: cannot be used"),
        (Tls(None, "/none"), "certificate_file /none .*No such file"),
        (Tls(None, own.certificate_file, other.key_file), "certificate_file .* KEY_VALUES_MISMATCH"),
        (Tls(None, None, own.key_file), "key_file: give certificate_file, too"),
        (Tls(None, secret.certificate_file, secret.key_file), "key_file .*: the key is encrypted"),
    ):
        with pytest.raises(InvalidRequest, match=named.replace(" KEY", ".*KEY")):
            Connection(HTTPS, tls=tls)
        Connection("http://n1:1", tls=tls).close()


async def test_files_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "keelmq")
    tls = Authority().issue_server(tmp_path)
    files = TlsFiles(Tls(tls.ca_file))
    first = files.context()
    assert files.context() is first
    join(Path(tls.ca_file))
    assert [files.context() for _ in range(3)] == [first] * 3
    assert caplog.text.count("the new TLS files are not used: ca_file") == 1
    with server(Authority().issue_server(tmp_path)) as origin:
        assert files.context() is not first
        client = HttpClient(connect_timeout_ms=int(PATIENCE_S * 1000), tls=files)
        assert (await client.request(origin, "GET", "/", "", b"", PATIENCE_S)).status == 204
        client.close()


class Untrusted(ScriptedTransport):
    """A transport to nodes of which some cannot be verified."""

    def __init__(self, answer: HttpResponse, untrusted: set[str], down: set[str] | None = None) -> None:
        super().__init__(lambda _: answer)
        self.untrusted, self.down = untrusted, down or set()

    async def request(
        self, origin: Origin, method: str, target: str, headers: str, body: bytes, timeout_s: float
    ) -> HttpResponse:
        if origin.host in self.untrusted:
            raise NotTrusted(origin, "give ca_file")
        if origin.host in self.down:
            raise ConnectFailed(f"{origin.url}: refused")
        return await super().request(origin, method, target, headers, body, timeout_s)


OK = HttpResponse(200, {"content-type": "application/json"}, b"{}")


async def test_a_call_ends_when_no_node_is_left_to_trust() -> None:
    connection = Connection(HTTPS, transport=Untrusted(OK, {"n1", "n2"}), call_timeout_ms=3_600_000)
    with pytest.raises(ServerNotTrusted, match="give ca_file") as raised:
        await connection.call("GET", "/v1/topics")
    assert not raised.value.retryable
    connection = Connection(HTTPS, transport=Untrusted(OK, {"n1"}))
    assert (await connection.call("GET", "/v1/topics", anywhere=True)).status == 200
    connection = Connection(HTTPS, transport=Untrusted(OK, {"n1"}, {"n2"}), call_timeout_ms=50)
    with pytest.raises(
        ServerNotTrusted, match="no success within 50 ms, nothing was stored: https://n1:1: give ca_file"
    ):
        await connection.call("POST", "/v1/topics")


async def test_no_node_leads_out_of_tls() -> None:
    def redirect(request: Request) -> HttpResponse:
        return HttpResponse(307, {"location": "http://n3:1/v1/topics"}, b"")

    connection = Connection(HTTPS, transport=ScriptedTransport(redirect), rng=lambda: 0.0)
    with pytest.raises(ServerNotTrusted, match="https://n1:1 names http://n3:1 as the leader, which is not encrypted"):
        await connection.call("POST", "/v1/topics")
    connection = Connection("http://n1:1", transport=ScriptedTransport(redirect), call_timeout_ms=50)
    with pytest.raises(KeelMQError) as raised:
        await connection.call("POST", "/v1/topics")
    assert not isinstance(raised.value, ServerNotTrusted), "it was not encrypted before"
    assert connection.beside("http://n3:1").current == "http://n3:1"
