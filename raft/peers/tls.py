"""Mutual TLS 1.3 between peers: certificates that name cluster and node, and their replacement while the node runs.

A certificate has exactly one URI `keelmq://CLUSTER/node/ID` among its alternative names. Both sides compare it with the
node that they mean: an opener before it sends anything, an acceptor before it answers anything. Names of hosts are not
compared, because a node keeps its certificate when it moves.
"""

import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from raft.config import TlsConfig
from raft.errors import ProtocolError
from raft.peers.frames import FrameProtocol

SCHEME: Final = "keelmq:"
FILE_BYTES_MAX: Final = 1024 * 1024
NAME_CHARACTERS_MAX: Final = 200
"""Maximum number of characters of a foreign certificate's name in a text."""
HANDSHAKE_ROUNDS_MAX: Final = 10
HOW_TO_MAKE: Final = "docs/configuration.md, TLS between nodes, shows how to make certificates"

_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21})
_WRONG_PURPOSE: Final = 26
# Numbers of X509_V_ERR_* in OpenSSL's x509_vfy.h; the module ssl has no names for them.


class TlsError(Exception):
    """The files cannot be used; the message names the file and the next step."""


class Loaded(NamedTuple):
    """What the files said when they were read."""

    client: ssl.SSLContext
    server: ssl.SSLContext
    ends_s: int
    """Seconds since 1970 when the certificate ends, or the authority that issued it, whichever is earlier."""
    stamp: tuple[tuple[int, ...], ...]


def name_of(cluster_id: str, node_id: int) -> str:
    """Return the URI by which a certificate names a node."""
    return f"keelmq://{cluster_id}/node/{node_id}"


class PeerTls:
    """Owns the contexts with which a node connects to its peers. Use it on the event loop only, except `look`."""

    def __init__(self, files: TlsConfig, cluster_id: str, node_id: int) -> None:
        """Load the files and try them. Raises TlsError when no peer would accept this node with them."""
        self._files, self._cluster_id = files, cluster_id
        self._name = name_of(cluster_id, node_id)
        self._loaded = load(files, self._name)

    @property
    def client(self) -> ssl.SSLContext:
        """The context for the next connection that this node opens."""
        return self._loaded.client

    @property
    def server(self) -> ssl.SSLContext:
        """The context for the next connection that this node accepts."""
        return self._loaded.server

    @property
    def ends_s(self) -> int:
        """Seconds since 1970 when this node's certificate ends, or the authority that issued it."""
        return self._loaded.ends_s

    def look(self) -> Loaded | None:
        """Return what the files say if they were replaced since the last `use`, otherwise None. Raises TlsError when
        they cannot be used. Reads files, and may be called in any thread.
        """
        return None if stamp_of(self._files) == self._loaded.stamp else load(self._files, self._name)

    def use(self, loaded: Loaded) -> None:
        """Use these files for all connections from now on. Existing connections go on as they are."""
        self._loaded = loaded

    def check(self, connection: FrameProtocol, node_id: int | None) -> None:
        """Raises ProtocolError unless the other side's certificate names that node of this cluster; None stands for any
        node of it. The text is for this node's log only.
        """
        assert connection.transport is not None
        session = connection.transport.get_extra_info("ssl_object")
        found = names_in(session.getpeercert() if session else None)
        any_name = name_of(self._cluster_id, 0).removesuffix("0")
        expected = any_name if node_id is None else name_of(self._cluster_id, node_id)
        if len(found) != 1 or not (found[0] == expected or (node_id is None and found[0].startswith(any_name))):
            names = ", ".join(repr(name[:NAME_CHARACTERS_MAX]) for name in found) or "no node"
            raise ProtocolError(f"the certificate there names {names}, expected {expected!r}")


def names_in(certificate: Any) -> list[str]:
    """Return the URIs that name nodes in a certificate as `getpeercert` returns it."""
    names = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI" and value.lower().startswith(SCHEME)]


def stamp_of(files: TlsConfig) -> tuple[tuple[int, ...], ...]:
    """Return numbers that change when a file is replaced or written."""
    stamps: list[tuple[int, ...]] = []
    for file in (files.certificate_file, files.key_file, files.ca_file):
        try:
            status = Path(file).stat()
            stamps.append((status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        except OSError as error:
            stamps.append((error.errno or 0,))
    return tuple(stamps)


def load(files: TlsConfig, name: str) -> Loaded:
    """Read the files, and let both contexts meet in memory as two nodes would. Raises TlsError when that fails, or when
    the certificate does not have exactly the name `name`.
    """
    stamp = stamp_of(files)
    _require_pem("tls_cert", files.certificate_file, "CERTIFICATE")
    _require_pem("tls_key", files.key_file, "PRIVATE KEY")
    _require_pem("tls_ca", files.ca_file, "CERTIFICATE")
    client, server = _context(ssl.PROTOCOL_TLS_CLIENT, files), _context(ssl.PROTOCOL_TLS_SERVER, files)
    server.num_tickets = 0  # a resumed session would not show its certificate again
    try:
        certificate = meet(client, server)
    except ssl.SSLCertVerificationError as error:
        _explain(files, error)
    except ssl.SSLError as error:
        raise TlsError(
            f"tls_cert {files.certificate_file}: no handshake works with it: {error}; {HOW_TO_MAKE}"
        ) from None
    found = names_in(certificate)
    if found != [name]:
        raise TlsError(
            f"tls_cert {files.certificate_file}: the certificate names {', '.join(found) or 'no node'}; it must have "
            f"exactly one URI of a node among its alternative names, URI:{name}; {HOW_TO_MAKE}"
        )
    if stamp != stamp_of(files):
        raise TlsError(
            f"tls_cert {files.certificate_file}: the files were changed while they were read; read them again"
        )
    return Loaded(client, server, _ends_s(certificate, client), stamp)


def meet(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    """Let the contexts shake hands in memory, and return the certificate that the client has shown. Raises
    ssl.SSLError when either of them refuses.
    """
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client.wrap_bio(to_client, to_server), accepting]
    for _ in range(HANDSHAKE_ROUNDS_MAX):
        for side in [*waiting]:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return dict(accepting.getpeercert() or {})
    raise ssl.SSLError("the handshake does not end")


def _context(protocol: int, files: TlsConfig) -> ssl.SSLContext:
    # Not ssl.create_default_context: what it checks depends on the version of Python.
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # tls_ca may be an authority below a root

    def refuse_password() -> str:
        raise TlsError(
            f"tls_key {files.key_file}: the key is encrypted; store it without a password, readable by its owner only"
        )

    try:
        context.load_cert_chain(files.certificate_file, files.key_file, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"tls_key {files.key_file}: the key does not belong to the certificate {files.certificate_file}; give "
                "the key with which the certificate was requested"
            ) from None
        raise TlsError(
            f"tls_cert {files.certificate_file} or tls_key {files.key_file}: cannot be read ({error.reason or error}); "
            f"{HOW_TO_MAKE}"
        ) from None
    except OSError as error:
        raise TlsError(f"tls_cert {files.certificate_file} or tls_key {files.key_file}: {error.strerror}") from None
    try:
        context.load_verify_locations(files.ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise TlsError(f"tls_ca {files.ca_file}: cannot be read ({error.strerror or error}); {HOW_TO_MAKE}") from None
    return context


def _require_pem(option: str, file: str, what: str) -> None:
    """Raises TlsError, which names this one file, when it is unreadable or has no such block."""
    try:
        with open(file, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(f"{option} {file}: {error.strerror}; make it readable for the user of the node") from None
    if len(content) > FILE_BYTES_MAX or f"{what}-----".encode() not in content:
        raise TlsError(f"{option} {file}: the file has no {what} in PEM form; {HOW_TO_MAKE}")


def _explain(files: TlsConfig, error: ssl.SSLCertVerificationError) -> NoReturn:
    certificate, authority = f"tls_cert {files.certificate_file}", files.ca_file
    if error.verify_code == _EXPIRED:
        text = f"{certificate}: the certificate, or the authority in {authority}, has expired; make a new one"
    elif error.verify_code == _NOT_YET_VALID:
        text = (
            f"{certificate}: the certificate, or the authority in {authority}, is not yet valid; check the clock of "
            "this machine, or make a new one"
        )
    elif error.verify_code in _UNSIGNED:
        text = (
            f"{certificate}: no authority in tls_ca {authority} has signed the certificate; give the authority that "
            "signed it, and intermediate ones behind the certificate in its file"
        )
    elif error.verify_code == _WRONG_PURPOSE:
        text = (
            f"{certificate}: the certificate may not be used on both sides of a connection; its extendedKeyUsage needs "
            "serverAuth and clientAuth"
        )
    else:
        text = f"{certificate}: the certificate is refused ({error.verify_message})"
    raise TlsError(f"{text}; {HOW_TO_MAKE}") from None


def _ends_s(certificate: dict[str, Any], context: ssl.SSLContext) -> int:
    issuers = [each for each in context.get_ca_certs() if each["subject"] == certificate["issuer"]]
    ends_s = int(ssl.cert_time_to_seconds(certificate["notAfter"]))
    # Of two authorities of one name, as while one replaces the other, the later one counts.
    issuer_ends_s = max((int(ssl.cert_time_to_seconds(str(each["notAfter"]))) for each in issuers), default=ends_s)
    return min(ends_s, issuer_ends_s)
