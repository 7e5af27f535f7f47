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
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"node {node_id}")])
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins or today() - timedelta(days=1))
            .not_valid_after(ends or today() + timedelta(days=90))
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        names = (name_of(cluster_id, node_id),) if uris is None else uris
        alternatives = [
            x509.IPAddress(ip_address("127.0.0.1")),
            *(x509.UniformResourceIdentifier(uri) for uri in names),
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        protection: KeySerializationEncryption = BestAvailableEncryption(password) if password else NoEncryption()
        parts = {
            "crt": builder.sign(self._key, hashes.SHA256()).public_bytes(PEM),
            "key": key.private_bytes(PEM, PrivateFormat.PKCS8, protection),
            "ca": self.certificate.public_bytes(PEM),
        }
        paths = {part: directory / f"node-{node_id}.{part}" for part in parts}
        for part, content in parts.items():
            fresh = paths[part].with_suffix(f".{part}-new")
            fresh.write_bytes(content)
            fresh.replace(paths[part])
        return TlsConfig(certificate_file=str(paths["crt"]), key_file=str(paths["key"]), ca_file=str(paths["ca"]))
