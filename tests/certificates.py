"""Makes authorities and certificates for tests of TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raft.config import TlsConfig
from raft.peers.tls import name_of

BOTH_SIDES: Final = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
PEM: Final = Encoding.PEM


def today() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


class Authority:
    """A certificate authority with a key of its own."""

    def __init__(self, name: str = "Tests", ends: datetime | None = None) -> None:
        """Make the authority, which is valid since ten days ago and until `ends`, or for a year."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(today() - timedelta(days=10))
            .not_valid_after(ends or today() + timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue(
        self,
        directory: Path,
        node_id: int,
        cluster_id: str = "shop",
        *,
        uris: tuple[str, ...] | None = None,
        begins: datetime | None = None,
        ends: datetime | None = None,
        usages: tuple[x509.ObjectIdentifier, ...] = BOTH_SIDES,
        password: bytes | None = None,
    ) -> TlsConfig:
        """Write certificate, key and authority into the directory, and return the paths. Earlier files of the same node
        there are replaced, each as a whole.

        `uris` replace the name of the node. The certificate is valid from `begins` (yesterday) until `ends` (in 90
        days).
        """
        names = (name_of(cluster_id, node_id),) if uris is None else uris
        alternatives = [
            x509.IPAddress(ip_address("127.0.0.1")),
            *(x509.UniformResourceIdentifier(uri) for uri in names),
        ]
        times = begins or today() - timedelta(days=1), ends or today() + timedelta(days=90)
        builder = self._builder(f"node {node_id}", alternatives, times, usages)
        return self._write(builder, directory, f"node-{node_id}", password)

    def issue_server(
        self,
        directory: Path,
        name: str = "http",
        *,
        hosts: tuple[str, ...] = ("127.0.0.1",),
        begins: datetime | None = None,
        ends: datetime | None = None,
        usages: tuple[x509.ObjectIdentifier, ...] = BOTH_SIDES[:1],
    ) -> TlsConfig:
        """Like `issue`, for the HTTP API at these hosts, which are IP addresses or names of hosts."""
        times = begins or today() - timedelta(days=1), ends or today() + timedelta(days=90)
        return self._write(self._builder(name, [*map(_host, hosts)], times, usages), directory, name)

    def issue_client(self, directory: Path, name: str, *, ends: datetime | None = None) -> TlsConfig:
        """Like `issue`, for a client with this common name."""
        times = today() - timedelta(days=1), ends or today() + timedelta(days=90)
        return self._write(self._builder(name, [], times, BOTH_SIDES[1:]), directory, name)

    def _builder(
        self,
        common_name: str,
        alternatives: list[x509.GeneralName],
        times: tuple[datetime, datetime],
        usages: tuple[x509.ObjectIdentifier, ...],
    ) -> x509.CertificateBuilder:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = (
            x509.CertificateBuilder(self._name, subject)
            .serial_number(x509.random_serial_number())
            .not_valid_before(times[0])
            .not_valid_after(times[1])
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if not alternatives:
            return builder
        return builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)

    def _write(
        self, builder: x509.CertificateBuilder, directory: Path, stem: str, password: bytes | None = None
    ) -> TlsConfig:
        key = ec.generate_private_key(ec.SECP256R1())
        protection: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
        parts = {
            "crt": builder.public_key(key.public_key()).sign(self._key, hashes.SHA256()).public_bytes(PEM),
            "key": key.private_bytes(PEM, PrivateFormat.PKCS8, protection),
            "ca": self.certificate.public_bytes(PEM),
        }
        paths = {part: directory / f"{stem}.{part}" for part in parts}
        for part, content in parts.items():
            fresh = paths[part].with_suffix(f".{part}-new")
            fresh.write_bytes(content)
            fresh.replace(paths[part])
        return TlsConfig(certificate_file=str(paths["crt"]), key_file=str(paths["key"]), ca_file=str(paths["ca"]))


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
