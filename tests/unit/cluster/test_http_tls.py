"""The files of TLS for clients: which ones a node takes, and what it says about the others."""

import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.config_loading import load
from cluster.process.http_tls import HttpTls, http_tls, trusting
from raft.config import TlsConfig
from raft.peers.pem_files import TlsError, meet
from tests.certificates import BOTH_SIDES, Authority, today

URL = "https://127.0.0.1:7081"


def options_of(tls: TlsConfig, **changes: str) -> dict[str, Any]:
    return {"http_tls_cert": tls.certificate_file, "http_tls_key": tls.key_file, "http_url": URL, **changes}


def test_a_node_with_a_certificate_has_an_https_url(tmp_path: Path) -> None:
    tls = Authority().issue_server(tmp_path)
    flags = {"http_tls_cert": tls.certificate_file, "http_tls_key": tls.key_file}
    assert load(None, {}, flags).advertised_url() == "https://127.0.0.1:7081"
    listens = {"http_listen": "127.0.0.1:7081"}
    assert load(None, {}, {**listens, "http_url": "https://keelmq.example"}).http_tls_cert is None, "a proxy ends TLS"
    assert load(None, {}, {**flags, "http_url": "https://127.0.0.1"}).http_address().port == 443
    with pytest.raises(
        ConfigError, match=r"http_url: http://127.0.0.1:7081 is this node's URL, .* begins with https://"
    ):
        load(None, {}, {**flags, "http_url": "http://127.0.0.1:7081"})
    with pytest.raises(ConfigError, match=r"peers: http://127.0.0.1:7081 is this node's URL"):
        load(None, {}, {**flags, "peers": ["1=127.0.0.1:7091=http://127.0.0.1:7081"]})


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    given = options_of(Authority().issue_server(tmp_path))
    for left_out, named in (
        ("http_tls_cert", "http_tls_cert: give http_tls_cert and http_tls_key together"),
        ("http_tls_key", "http_tls_key: give http_tls_cert and http_tls_key together"),
    ):
        with pytest.raises(ConfigError, match=named):
            load(None, {}, {name: value for name, value in given.items() if name != left_out})
    with pytest.raises(ConfigError, match="http_tls_client_ca: clients show certificates to http_tls_cert only"):
        load(None, {}, {"http_tls_client_ca": given["http_tls_cert"]})
    for name in ("http_tls_cert", "http_tls_key", "http_tls_client_ca", "http_ca"):
        with pytest.raises(ConfigError, match=f"{name}: /none is not a file"):
            load(None, {}, {**given, name: "/none"})


UNUSABLE: dict[str, tuple[Callable[[Path], TlsConfig], str]] = {
    "another-host": (
        lambda path: Authority().issue_server(path, hosts=("127.0.0.2", "keelmq.example")),
        "http_tls_cert .*http.crt: the certificate does not name 127.0.0.1, at which clients reach this node; it needs",
    ),
    "no-host": (lambda path: Authority().issue_client(path, "http"), "may not be used by servers; .* serverAuth"),
    "expired": (
        lambda path: Authority().issue_server(path, ends=today() - timedelta(hours=1)),
        "http_tls_cert .*http.crt: the certificate, .* has expired; make a new one; docs/configuration.md, TLS for cl",
    ),
    "not-yet-valid": (
        lambda path: Authority().issue_server(path, begins=today() + timedelta(hours=1)),
        "is not yet valid; check the clock",
    ),
    "for-clients": (lambda path: Authority().issue_server(path, usages=BOTH_SIDES[1:]), "needs serverAuth"),
}


@pytest.mark.parametrize(("make", "named"), UNUSABLE.values(), ids=UNUSABLE)
def test_certificates_that_no_client_would_accept_are_refused(
    tmp_path: Path, make: Callable[[Path], TlsConfig], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        load(None, {}, options_of(make(tmp_path)))


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    ca = Authority()
    tls, other = ca.issue_server(tmp_path), ca.issue_server(tmp_path, "other")
    for change, named in (
        ({"http_tls_key": other.key_file}, "http_tls_key .*other.key: the key does not belong to the certificate"),
        ({"http_tls_key": tls.certificate_file}, "http_tls_key .*http.crt: the file has no PRIVATE KEY in PEM form"),
        ({"http_tls_cert": tls.key_file}, "http_tls_cert .*http.key: the file has no CERTIFICATE in PEM form"),
        ({"http_tls_client_ca": tls.key_file}, "http_tls_client_ca .*http.key: the file has no CERTIFICATE"),
        ({"http_ca": tls.key_file}, "http_ca .*http.key: the file has no CERTIFICATE in PEM form"),
    ):
        with pytest.raises(ConfigError, match=named):
            load(None, {}, options_of(tls, **change))


def test_a_self_signed_certificate_and_names_of_hosts_are_accepted(tmp_path: Path) -> None:
    ends = today() + timedelta(days=3)
    tls = Authority().issue_server(tmp_path, hosts=("localhost", "*.keelmq.example"), ends=ends)
    for url in ("https://localhost:7081", "https://n1.keelmq.example"):
        config = load(None, {}, options_of(tls, http_url=url, http_listen="127.0.0.1:7081"))
        used = http_tls(config)
        assert used is not None
        assert used.ends_s == ends.timestamp()
    assert http_tls(NodeConfig()) is None


def test_clients_may_show_a_certificate_of_their_authority_and_of_no_other(tmp_path: Path) -> None:
    ca, clients = Authority(), Authority("Clients")
    tls = ca.issue_server(tmp_path)
    known = clients.issue_client(tmp_path, "known")
    server = HttpTls(tls.certificate_file, tls.key_file, known.ca_file, [URL]).server
    client = trusting(tls.ca_file)
    assert meet(client, server, "127.0.0.1")[1].getpeercert() is None
    client.load_cert_chain(known.certificate_file, known.key_file)
    opening, accepting = meet(client, server, "127.0.0.1")
    shown: Any = accepting.getpeercert()
    assert shown["subject"] == ((("commonName", "known"),),)
    assert opening.version() == "TLSv1.3"
    expired = clients.issue_client(tmp_path, "expired", ends=today() - timedelta(hours=1))
    for bad in (Authority("Strangers").issue_client(tmp_path, "stranger"), expired):
        client = trusting(tls.ca_file)
        client.load_cert_chain(bad.certificate_file, bad.key_file)
        with pytest.raises(ssl.SSLCertVerificationError):
            meet(client, server, "127.0.0.1")


def test_version_1_2_is_the_least(tmp_path: Path) -> None:
    tls = Authority().issue_server(tmp_path)
    server = HttpTls(tls.certificate_file, tls.key_file, None, [URL]).server
    client = trusting(tls.ca_file)
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert meet(client, server, "127.0.0.1")[0].version() == "TLSv1.2"
    assert server.minimum_version == ssl.TLSVersion.TLSv1_2


def test_files_that_were_replaced_are_noticed_and_tried(tmp_path: Path) -> None:
    ca = Authority()
    tls = ca.issue_server(tmp_path)
    used = HttpTls(tls.certificate_file, tls.key_file, None, [URL])
    assert used.look() is None
    ca.issue_server(tmp_path, hosts=("127.0.0.2",))
    with pytest.raises(TlsError, match="does not name"):
        used.look()
    ca.issue_server(tmp_path)
    loaded = used.look()
    assert loaded is not None
    before = used.server
    used.use(loaded)
    assert used.server is not before
    assert used.look() is None
