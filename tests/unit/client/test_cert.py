"""Certificates of `keelmq cert`: what they say, and that nodes, OpenSSL and clients of HTTPS accept them."""

import hashlib
import json
import os
import re
import ssl
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.provisional import domains
from typer.testing import CliRunner, Result

from cluster.process.config import NodeConfig
from keelmq.cli.app import app
from keelmq.cli.security.certificates import client_subject, node_subject, node_uri, parse_host
from keelmq.errors import InvalidRequest
from raft.config import NODE_ID_MAX, TlsConfig
from raft.peers.pem_files import TlsError, meet
from raft.peers.tls import load, name_of, names_in
from tests.requirements import OPENSSL, path_of

DAY: Final = timedelta(days=1)
NODE_1: Final = ("--cluster-id", "shop", "--node-id", "1")


def keelmq(*arguments: str | Path, code: int = 0) -> Result:
    """Run a command of `keelmq cert`, which must end with the exit code."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(app, ["cert", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def json_of(*arguments: str | Path, code: int = 0) -> Any:
    return json.loads(keelmq(*arguments, "--json", code=code).stdout)


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    """Return the directory of an authority."""
    keelmq("ca", tmp_path / "pki")
    return tmp_path / "pki"


def certificate_in(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


def extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    return certificate.extensions.get_extension_for_class(kind).value


def tls_of(pki: Path, stem: str, ca: str = "ca.crt") -> TlsConfig:
    return TlsConfig(
        certificate_file=str(pki / f"{stem}.crt"), key_file=str(pki / f"{stem}.key"), ca_file=str(pki / ca)
    )


def context(protocol: int, pki: Path, stem: str | None) -> ssl.SSLContext:
    """Return a context that checks as Python 3.13 does by default, and shows the certificate `stem`."""
    made = ssl.SSLContext(protocol)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(pki / "ca.crt")
    if stem is not None:
        made.load_cert_chain(pki / f"{stem}.crt", pki / f"{stem}.key")
    return made


def connects(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> bool:
    """Return whether the client accepts the server as the host."""
    try:
        meet(client, server, host)
    except ssl.SSLCertVerificationError:
        return False
    return True


def test_the_authority_signs_for_ten_years_and_nothing_else(pki: Path) -> None:
    certificate = certificate_in(pki / "ca.crt")
    assert certificate.subject == certificate.issuer
    assert extension(certificate, x509.BasicConstraints).ca
    usage = extension(certificate, x509.KeyUsage)
    assert (usage.key_cert_sign, usage.crl_sign, usage.digital_signature) == (True, True, False)
    now = datetime.now(UTC)
    assert abs(certificate.not_valid_after_utc - now - 3650 * DAY) < DAY
    assert certificate.not_valid_before_utc <= now - timedelta(hours=1)


def test_keys_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[tuple[str, int, int]] = []
    real = os.open

    def watched(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            created.append((str(path), flags, mode))
        return real(path, flags, mode, **more)

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        keelmq("ca", tmp_path / "pki")
        keelmq("node", tmp_path / "pki", *NODE_1)
        keelmq("client", tmp_path / "pki", "--name", "billing")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "pki").stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "pki").glob("*.key")} == {0o600}
    keys = [(flags, mode) for path, flags, mode in created if ".key" in path]
    assert len(keys) == 3
    assert all(flags & os.O_EXCL and mode == 0o600 for flags, mode in keys), "never open to others, not for a moment"


def test_a_node_accepts_its_certificate_and_no_other_one(pki: Path) -> None:
    for node_id in ("1", "2147483648"):
        keelmq("node", pki, "--cluster-id", "shop", "--node-id", node_id, "--host", "broker-1.example.com")
        load(tls_of(pki, f"node-{node_id}"), name_of("shop", int(node_id)))
    with pytest.raises(TlsError, match="names keelmq://shop/node/1; it must have"):
        load(tls_of(pki, "node-1"), name_of("shop", 2))


def test_the_certificate_of_a_node_has_what_the_page_promises(pki: Path) -> None:
    hosts = ("--host", "Broker-1.example.com", "--host", "10.0.0.1", "--host", "localhost", "--host", "2001:DB8:0::1")
    made = json_of("node", pki, *NODE_1, *hosts)
    certificate = certificate_in(pki / "node-1.crt")
    names = extension(certificate, x509.SubjectAlternativeName)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["keelmq://shop/node/1"] == made["uris"]
    assert names.get_values_for_type(x509.DNSName) == ["broker-1.example.com", "localhost"] == made["dns_names"]
    addresses = ["10.0.0.1", "2001:db8::1", "127.0.0.1", "::1"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == addresses == made["ip_addresses"]
    usages = set(extension(certificate, x509.ExtendedKeyUsage))
    assert usages == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    usage = extension(certificate, x509.KeyUsage)
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert not extension(certificate, x509.BasicConstraints).ca
    authority = certificate_in(pki / "ca.crt")
    identifier = extension(certificate, x509.AuthorityKeyIdentifier).key_identifier
    assert identifier == extension(authority, x509.SubjectKeyIdentifier).digest
    assert extension(certificate, x509.SubjectKeyIdentifier).digest != identifier
    now = datetime.now(UTC)
    assert abs(certificate.not_valid_after_utc - now - 365 * DAY) < DAY
    assert timedelta(0) <= now - timedelta(hours=1) - certificate.not_valid_before_utc < DAY


def test_the_same_certificate_serves_https(pki: Path) -> None:
    keelmq("node", pki, *NODE_1, "--host", "broker-1.example.com", "--host", "10.0.0.1")
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, pki, None), context(ssl.PROTOCOL_TLS_SERVER, pki, "node-1")
    server.verify_mode = ssl.CERT_NONE
    client.check_hostname = True
    named = ("localhost", "127.0.0.1", "::1", "broker-1.example.com", "10.0.0.1")
    assert [host for host in (*named, "10.0.0.2", "example.com") if connects(client, server, host)] == [*named]


def test_openssl_accepts_what_was_made(pki: Path) -> None:
    OPENSSL.require()
    keelmq("node", pki, *NODE_1)
    keelmq("client", pki, "--name", "billing")

    def verify(stem: str, purpose: str) -> bool:
        command = [path_of("openssl"), "verify", "-x509_strict", "-purpose", purpose, "-CAfile", str(pki / "ca.crt")]
        return subprocess.run([*command, str(pki / f"{stem}.crt")], capture_output=True).returncode == 0

    accepted = [(stem, purpose) for stem in ("node-1", "client-billing") for purpose in ("sslserver", "sslclient")]
    accepted = [each for each in accepted if verify(*each)]
    assert accepted == [("node-1", "sslserver"), ("node-1", "sslclient"), ("client-billing", "sslclient")]


def test_an_application_is_named_and_never_taken_for_a_node(pki: Path) -> None:
    keelmq("node", pki, *NODE_1)
    keelmq("client", pki, "--name", "billing@shop.example")
    stem = "client-billing@shop.example"
    client, server = context(ssl.PROTOCOL_TLS_CLIENT, pki, stem), context(ssl.PROTOCOL_TLS_SERVER, pki, "node-1")
    shown = meet(client, server)[1].getpeercert()
    assert shown is not None
    assert names_in(shown) == []
    assert shown["subject"] == ((("commonName", "billing@shop.example"),),)
    with pytest.raises(TlsError, match="serverAuth and clientAuth"):
        load(tls_of(pki, stem), name_of("shop", 1))


def test_a_renewed_certificate_has_the_key_and_the_hosts_of_before(pki: Path) -> None:
    keelmq("node", pki, *NODE_1, "--host", "broker-1.example.com", "--host", "10.0.0.1")
    key, before = (pki / "node-1.key").read_bytes(), certificate_in(pki / "node-1.crt")
    (pki / "node-1.crt").chmod(0o640)
    renewed = json_of("node", pki, *NODE_1, "--renew", "--days", "30")
    assert (renewed["renewed"], renewed["warnings"]) == (True, [])
    after = certificate_in(pki / "node-1.crt")
    assert (pki / "node-1.key").read_bytes() == key
    assert stat.S_IMODE((pki / "node-1.crt").stat().st_mode) == 0o640
    assert after.serial_number != before.serial_number
    assert extension(after, x509.SubjectAlternativeName) == extension(before, x509.SubjectAlternativeName)
    assert abs(after.not_valid_after_utc - datetime.now(UTC) - 30 * DAY) < DAY
    load(tls_of(pki, "node-1"), name_of("shop", 1))
    assert json_of("node", pki, *NODE_1, "--renew", "--host", "b.example")["dns_names"] == ["b.example", "localhost"]
    keelmq("client", pki, "--name", "billing")
    assert "which stayed" in keelmq("client", pki, "--name", "billing", "--renew").stdout


def test_a_certificate_never_outlives_its_authority_and_says_so(tmp_path: Path) -> None:
    pki = tmp_path / "pki"
    keelmq("ca", pki, "--days", "30")
    result = keelmq("node", pki, *NODE_1)
    assert "ends with its authority" in result.stderr
    assert certificate_in(pki / "node-1.crt").not_valid_after_utc == certificate_in(pki / "ca.crt").not_valid_after_utc
    (warning,) = json_of("client", pki, "--name", "billing")["warnings"]
    assert "ends with its authority" in warning
    assert keelmq("node", pki, *NODE_1, "--renew", "--days", "29").stderr == ""


def test_an_authority_is_replaced_by_one_of_the_same_name(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for pki in (old, new):
        keelmq("ca", pki, "--name", "Shop nodes")
        keelmq("node", pki, *NODE_1)
    both = (old / "ca.crt").read_text() + (new / "ca.crt").read_text()
    for pki in (old, new):
        (pki / "both.crt").write_text(both)
        load(tls_of(pki, "node-1", "both.crt"), name_of("shop", 1))
        (pki / "ca.crt").write_text(both)  # the one that belongs to the key signs
        keelmq("node", pki, *NODE_1, "--renew")
        load(tls_of(pki, "node-1", "both.crt"), name_of("shop", 1))


@pytest.mark.parametrize("kind", ["rsa:2048", "ed25519", "ec -pkeyopt ec_paramgen_curve:secp384r1"])
def test_an_authority_of_another_program_signs_too(tmp_path: Path, kind: str) -> None:
    OPENSSL.require()
    command = f"req -x509 -newkey {kind} -noenc -days 30 -subj /CN=Own -keyout ca.key -out ca.crt".split()
    subprocess.run([path_of("openssl"), *command], cwd=tmp_path, check=True, capture_output=True)
    keelmq("node", tmp_path, *NODE_1)
    load(tls_of(tmp_path, "node-1"), name_of("shop", 1))


def test_show_tells_names_ends_and_fingerprints_of_every_certificate(pki: Path) -> None:
    keelmq("node", pki, *NODE_1)
    (pki / "two.crt").write_text((pki / "node-1.crt").read_text() + (pki / "ca.crt").read_text())
    shown = json_of("show", pki / "two.crt", pki / "ca.crt")
    assert shown["valid"]
    first, second, third = shown["certificates"]
    assert {**second, "file": third["file"]} == third
    assert (first["file"], first["uris"], first["common_name"]) == (
        str(pki / "two.crt"),
        ["keelmq://shop/node/1"],
        "node 1",
    )
    assert first["issuer"] == "CN=KeelMQ authority"
    assert first["days_left"] in (364, 365), "whole days"
    assert first["sha256"] == hashlib.sha256(ssl.PEM_cert_to_DER_cert((pki / "node-1.crt").read_text())).hexdigest()
    table = keelmq("show", pki / "two.crt").stdout
    assert "keelmq://shop/node/1, localhost, 127.0.0.1, ::1, CN=node 1" in table
    assert first["sha256"] in table


@given(st.one_of(st.text(max_size=70), st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)))
def test_cluster_ids_are_those_of_nodes(cluster_id: str) -> None:
    try:
        node_subject(cluster_id, 1, ())
    except InvalidRequest:
        if not cluster_id.endswith("\n"):  # a node overlooks a line end there, a URI cannot have it
            with pytest.raises(msgspec.ValidationError):
                msgspec.convert({"cluster_id": cluster_id}, NodeConfig)
    else:
        msgspec.convert({"cluster_id": cluster_id}, NodeConfig)


def test_nodes_have_the_names_that_their_peers_compare() -> None:
    for cluster_id, node_id in (("shop", 1), ("A.b_c-9", NODE_ID_MAX)):
        assert node_uri(cluster_id, node_id) == name_of(cluster_id, node_id)


@given(st.one_of(st.text(max_size=70), st.from_regex(r"[A-Za-z0-9_.@-]{1,64}", fullmatch=True)))
def test_names_of_applications_are_file_names_and_unlike_names_of_nodes(name: str) -> None:
    try:
        subject = client_subject(name)
    except InvalidRequest:
        assert not re.fullmatch(r"[A-Za-z0-9_@][A-Za-z0-9_.@-]{0,63}", name)
    else:
        assert (subject.common_name, subject.uri, subject.hosts) == (name, None, ())
        assert Path(name).name == name
        assert subject.common_name != node_subject("c", 1, ()).common_name


@given(st.one_of(st.ip_addresses().map(str), domains()))
def test_hosts_are_taken_in_their_usual_form(host: str) -> None:
    assert parse_host(host) == host.lower()
    assert parse_host(host) in node_subject("c", 1, [host]).hosts


@pytest.mark.parametrize(
    "host",
    [
        *("", " ", "a b", "a..b", ".a", "a.", "-a", "a-", "*.a", "a\n", "ä.example", "\u212a", "a" * 64),
        *("http://a", "a:7081", "[::1]", "10.0.0", "10.0.0.256", "1", "fe80::1%eth0", "10.0.0.0/8"),
        ".".join(["a" * 49] * 6),
    ],
)
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="neither a host name nor an IP address"):
        parse_host(host)
