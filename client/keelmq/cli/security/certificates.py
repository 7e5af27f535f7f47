"""Makes an authority and what it signs, and tells what a certificate says. Needs the package `cryptography`.

A node's certificate names cluster and node by one URI, which its peers compare. It names hosts too, so that the same
file serves HTTPS. An application's certificate has no URI and serves clients only: no node takes it for a peer.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from keelmq.cli.security.certificate_files import unusable
from keelmq.errors import InvalidRequest

Key: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey

BACKDATED: Final = timedelta(hours=1)
"""A certificate is valid this long before it is made, for machines whose clocks are behind."""
COMMON_NAME_MAX: Final = 64
OWN_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
"""Hosts that every certificate of a node names."""

_CLUSTER_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_APPLICATION: Final = re.compile(r"(?![-.])[A-Za-z0-9_.@-]{1,64}")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_HOST_LENGTH_MAX: Final = 253


class Authority(NamedTuple):
    certificate: x509.Certificate
    key: Key


class Subject(NamedTuple):
    """Subject and purpose of a certificate."""

    common_name: str
    uri: str | None
    hosts: tuple[str, ...]
    """DNS names and IP addresses in their usual form."""
    usages: tuple[x509.ObjectIdentifier, ...]


class Facts(NamedTuple):
    """Content of a certificate. Times are Unix milliseconds."""

    common_name: str | None
    uris: tuple[str, ...]
    dns_names: tuple[str, ...]
    ip_addresses: tuple[str, ...]
    issuer: str
    valid_from_ms: int
    valid_until_ms: int
    sha256: str
    """SHA-256 of the DER form in hexadecimal digits."""


def node_uri(cluster_id: str, node_id: int) -> str:
    """Return the URI by which a certificate names a node."""
    return f"keelmq://{cluster_id}/node/{node_id}"


def node_subject(cluster_id: str, node_id: int, hosts: Iterable[str]) -> Subject:
    """Return the subject of a node, which `hosts` name beside OWN_HOSTS. Raises InvalidRequest."""
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise InvalidRequest(
            "invalid_request", f"--cluster-id {cluster_id!r}: 1-64 characters of A-Z a-z 0-9 _ . - are allowed"
        )
    named = tuple(dict.fromkeys(parse_host(each) for each in (*hosts, *OWN_HOSTS)))
    both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    return Subject(f"node {node_id}", node_uri(cluster_id, node_id), named, both)


def client_subject(name: str) -> Subject:
    """Return the subject of an application. Raises InvalidRequest. No node's common name is the name of one, because
    that has a space.
    """
    if not _APPLICATION.fullmatch(name):
        raise InvalidRequest(
            "invalid_request",
            f"--name {name!r}: 1-64 characters of A-Z a-z 0-9 _ . @ - are allowed, the first one neither - nor .",
        )
    return Subject(name, None, (), (ExtendedKeyUsageOID.CLIENT_AUTH,))


def parse_host(text: str) -> str:
    """Return a DNS name in lower case, or an IP address in its usual form. Raises InvalidRequest for other texts."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        labels = text.lower().split(".")
        allowed = text.isascii() and len(text) <= _HOST_LENGTH_MAX and all(map(_LABEL.fullmatch, labels))
        if allowed and not labels[-1].isdigit():
            return text.lower()
    else:
        if "%" not in text:  # no certificate can have the zone of an IPv6 address
            return str(address)
    raise InvalidRequest(
        "invalid_request",
        f"--host {text!r} is neither a host name nor an IP address; give it without scheme, port, brackets and "
        "wildcard, and a name with other characters in its form of ASCII (xn--…)",
    )


def make_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def make_authority(name: str, days: int, now: datetime) -> Authority:
    """Make an authority with a key of its own, valid for `days` from `now`. Raises InvalidRequest for its name."""
    if not (1 <= len(name) <= COMMON_NAME_MAX and name.isprintable() and name.strip() == name):
        raise InvalidRequest(
            "invalid_request",
            f"--name {name!r}: 1-{COMMON_NAME_MAX} printable characters are allowed, without a space at either end",
        )
    key = make_key()
    own = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signs = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(own, own, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Authority, subject: Subject, key: Key, now: datetime, ends: datetime) -> x509.Certificate:
    """Sign a certificate for the key, which is valid until `ends`."""
    proves = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.common_name)])
    builder = (
        _builder(authority.certificate.subject, name, key, now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(proves, critical=True)
        .add_extension(x509.ExtendedKeyUsage(subject.usages), critical=False)
        .add_extension(_key_id_of(authority), critical=False)
    )
    names = _alternative_names(subject)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signs_by_itself = isinstance(authority.key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey)
    return builder.sign(authority.key, None if signs_by_itself else hashes.SHA256())


def end_of(authority: Authority, now: datetime, days: int) -> tuple[datetime, bool]:
    """Return when a certificate of `days` ends, and whether that is earlier because the authority ends before it."""
    wanted, limit = now + timedelta(days=days), authority.certificate.not_valid_after_utc
    return min(wanted, limit), limit < wanted


def load_authority(certificates: bytes, certificates_file: Path, key: Key, key_file: Path, now: datetime) -> Authority:
    """Return the authority to which the key belongs. The file may hold several, as while one replaces another.

    Raises KeelMQError (`file_unusable`) when there is none, or when it may not sign, has ended or has not begun.
    """
    found = load_certificates(certificates, certificates_file)
    own = [each for each in found if _public_bytes(each) == _key_bytes(key)]
    if not own:
        raise unusable(key_file, f"is not the key of {certificates_file}; restore the two files of one authority")
    certificate = own[0]
    if not _may_sign(certificate):
        raise unusable(certificates_file, "is no authority: its certificate may not sign others")
    if now >= certificate.not_valid_after_utc:
        ended = f"{certificate.not_valid_after_utc:%Y-%m-%d at %H:%M} UTC"
        raise unusable(
            certificates_file,
            f"ended on {ended}; make another authority in another directory with keelmq cert ca",
        )
    if now < certificate.not_valid_before_utc:
        begins = f"{certificate.not_valid_before_utc:%Y-%m-%d at %H:%M} UTC"
        raise unusable(certificates_file, f"is not valid before {begins}; check the clock of this machine")
    return Authority(certificate, key)


def load_certificates(content: bytes, file: Path) -> list[x509.Certificate]:
    """Return all certificates of a PEM file. Raises KeelMQError (`file_unusable`) when there is none."""
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise unusable(file, "has no certificate in PEM form") from None


def load_key(content: bytes, file: Path) -> Key:
    """Return the private key of a PEM file. Raises KeelMQError (`file_unusable`) when there is none that can sign."""
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise unusable(file, "is encrypted; store the key without a password, readable by its owner only") from None
    except (ValueError, UnsupportedAlgorithm):
        raise unusable(file, "has no private key in PEM form") from None
    if not isinstance(key, Key):
        raise unusable(file, "has a key that signs no certificates; EC, RSA, Ed25519 and Ed448 do")
    return key


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def key_pem(key: Key) -> bytes:
    """Return the key in PKCS 8 form, not encrypted."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def facts_of(certificate: x509.Certificate, file: Path) -> Facts:
    """Return what the certificate says. Raises KeelMQError (`file_unusable`) when its names cannot be read."""
    try:
        names = _names_of(certificate)
        common = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return Facts(
            common_name=common[-1] if common else None,
            uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
            dns_names=tuple(names.get_values_for_type(x509.DNSName)),
            ip_addresses=tuple(map(str, names.get_values_for_type(x509.IPAddress))),
            issuer=certificate.issuer.rfc4514_string(),
            valid_from_ms=_milliseconds(certificate.not_valid_before_utc),
            valid_until_ms=_milliseconds(certificate.not_valid_after_utc),
            sha256=certificate.fingerprint(hashes.SHA256()).hex(),
        )
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise unusable(file, f"has a certificate that cannot be read: {error}") from None


def now_utc() -> datetime:
    """Return the time in whole seconds, as certificates have it."""
    return datetime.now(UTC).replace(microsecond=0)


def _builder(issuer: x509.Name, subject: x509.Name, key: Key, now: datetime, ends: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_id_of(authority: Authority) -> x509.AuthorityKeyIdentifier:
    try:
        own = authority.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def _alternative_names(subject: Subject) -> Sequence[x509.GeneralName]:
    names: list[x509.GeneralName] = []
    if subject.uri is not None:
        names.append(x509.UniformResourceIdentifier(subject.uri))
    for host in subject.hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _names_of(certificate: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])


def _may_sign(certificate: x509.Certificate) -> bool:
    try:
        extensions = certificate.extensions
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except x509.ExtensionNotFound as missing:
        return missing.oid == x509.KeyUsage.oid  # without it every usage is allowed
    except (ValueError, x509.DuplicateExtension):
        return False


def _public_bytes(certificate: x509.Certificate) -> bytes | None:
    """Return the public key of the certificate in a form to compare; None for a key that is not known."""
    try:
        return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, UnsupportedAlgorithm):
        return None


def _key_bytes(key: Key) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp()) * 1000
