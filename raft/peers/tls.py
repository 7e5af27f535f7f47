"""Mutual TLS 1.3 between peers: certificates that name cluster and node, and their replacement while the node runs.

A certificate has exactly one URI `keelmq://CLUSTER/node/ID` among its alternative names. Both sides compare it with the
node that they mean: an opener before it sends anything, an acceptor before it answers anything. Names of hosts are not
compared, because a node keeps its certificate when it moves.
"""

import logging
import ssl
from collections.abc import Collection, Iterable
from typing import Any, Final, NoReturn

from raft.config import TlsConfig
from raft.errors import ProtocolError
from raft.peers.frames import FrameProtocol
from raft.peers.pem_files import (
    CERTIFICATE,
    PRIVATE_KEY,
    Loaded,
    PemFile,
    TlsError,
    TlsFiles,
    ends_s_of,
    explain_dates,
    load_authorities,
    load_certificate,
    meet,
    require_pem,
    require_unchanged,
    stamp_of,
)

log = logging.getLogger(__name__)

SCHEME: Final = "keelmq:"
NAME_CHARACTERS_MAX: Final = 200
"""Maximum number of characters of a foreign certificate's name in a text."""
HOW_TO_MAKE: Final = "docs/configuration.md, TLS between nodes, shows how to make certificates"

_UNSIGNED: Final = frozenset({2, 7, 18, 19, 20, 21})
_WRONG_PURPOSE: Final = 26
# Numbers of X509_V_ERR_* in OpenSSL's x509_vfy.h; the module ssl has no names for them.


def name_of(cluster_id: str, node_id: int) -> str:
    """Return the URI by which a certificate names a node."""
    return f"keelmq://{cluster_id}/node/{node_id}"


class PeerTls(TlsFiles):
    """Owns the contexts with which a node connects to its peers. Use it on the event loop only, except `look`."""

    def __init__(self, files: TlsConfig, cluster_id: str, node_id: int) -> None:
        """Load the files and try them. Raises TlsError when no peer would accept this node with them."""
        self._cluster_id = cluster_id
        self.plain_too = files.plain_too
        """Whether peers may still have no TLS. It becomes False, for good, when each of them was met with it."""
        self._met: set[int] = set()
        self._plain: dict[int, FrameProtocol] = {}
        name = name_of(cluster_id, node_id)
        super().__init__(_files_of(files), lambda: load(files, name))

    def check(self, connection: FrameProtocol, node_id: int | None) -> None:
        """Raise ProtocolError unless the other side's certificate names that node of this cluster; None stands for any
        node of it. The text is for this node's log only.
        """
        session = _session(connection)
        if session is None and self.plain_too:
            return  # it has to prove the secret, as in a cluster without TLS
        found = names_in(session.getpeercert() if session else None)
        any_name = name_of(self._cluster_id, 0).removesuffix("0")
        expected = any_name if node_id is None else name_of(self._cluster_id, node_id)
        if len(found) != 1 or not (found[0] == expected or (node_id is None and found[0].startswith(any_name))):
            names = ", ".join(repr(name[:NAME_CHARACTERS_MAX]) for name in found) or "no node"
            raise ProtocolError(f"the certificate there names {names}, expected {expected!r}")

    def reached(
        self, peer: int, connection: FrameProtocol, peers: Collection[int], incoming: Iterable[FrameProtocol]
    ) -> None:
        """Note that this node has a connection to a peer. When all of `peers` were met with TLS, no connection without
        it is accepted or made any more, and those among `incoming` end.
        """
        if not self.plain_too:
            return
        if _session(connection) is None:
            self._plain[peer] = connection
            return
        self._met.add(peer)
        if self._met.issuperset(peers):
            self.plain_too = False
            log.info("all nodes have TLS: connections without it are refused from now on")
            for each in [*incoming]:
                if each.transport is not None and _session(each) is None:
                    each.abort()

    def heard(self, peer: int, connection: FrameProtocol) -> None:
        """Note that a peer has a connection to this node. When it has TLS, the one in the other direction is made anew
        if it has none.
        """
        if self.plain_too and _session(connection) is not None and (plain := self._plain.pop(peer, None)) is not None:
            plain.close()


def _session(connection: FrameProtocol) -> Any:
    """Return the TLS of a connection that was made; None without TLS."""
    assert connection.transport is not None
    return connection.transport.get_extra_info("ssl_object")


def names_in(certificate: Any) -> list[str]:
    """Return the URIs that name nodes in a certificate as `getpeercert` returns it."""
    names = (certificate or {}).get("subjectAltName", ())
    return [value for kind, value in names if kind == "URI" and value.lower().startswith(SCHEME)]


def load(files: TlsConfig, name: str) -> Loaded:
    """Read the files, and let both contexts meet in memory as two nodes would. Raises TlsError when that fails, or when
    the certificate does not have exactly the name `name`.
    """
    certificate, key, authorities = all_files = _files_of(files)
    stamp = stamp_of(all_files)
    for file, what in ((certificate, CERTIFICATE), (key, PRIVATE_KEY), (authorities, CERTIFICATE)):
        require_pem(file, what, HOW_TO_MAKE)
    client, server = (
        _context(protocol, certificate, key, authorities)
        for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)
    )
    server.num_tickets = 0  # a resumed session would not show its certificate again
    try:
        shown = dict(meet(client, server)[1].getpeercert() or {})
    except ssl.SSLCertVerificationError as error:
        _explain(certificate, authorities, error)
    except ssl.SSLError as error:
        raise TlsError(f"{certificate}: no handshake works with it: {error}; {HOW_TO_MAKE}") from None
    found = names_in(shown)
    if found != [name]:
        raise TlsError(
            f"{certificate}: the certificate names {', '.join(found) or 'no node'}; it must have exactly one URI of a "
            f"node among its alternative names, URI:{name}; {HOW_TO_MAKE}"
        )
    require_unchanged(all_files, stamp)
    return Loaded(client, server, ends_s_of(shown, client), stamp)


def _files_of(files: TlsConfig) -> tuple[PemFile, PemFile, PemFile]:
    return (
        PemFile("tls_cert", files.certificate_file),
        PemFile("tls_key", files.key_file),
        PemFile("tls_ca", files.ca_file),
    )


def _context(protocol: int, certificate: PemFile, key: PemFile, authorities: PemFile) -> ssl.SSLContext:
    # Not ssl.create_default_context: what it checks depends on the version of Python.
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    load_certificate(context, certificate, key, HOW_TO_MAKE)
    load_authorities(context, authorities, HOW_TO_MAKE)
    return context


def _explain(certificate: PemFile, authorities: PemFile, error: ssl.SSLCertVerificationError) -> NoReturn:
    if error.verify_code in _UNSIGNED:
        text = (
            f"{certificate}: no authority in {authorities} has signed the certificate; give the authority that signed "
            "it, and intermediate ones behind the certificate in its file"
        )
    elif error.verify_code == _WRONG_PURPOSE:
        text = (
            f"{certificate}: the certificate may not be used on both sides of a connection; its extendedKeyUsage needs "
            "serverAuth and clientAuth"
        )
    else:
        text = explain_dates(error, certificate, f"the authority in {authorities.path}")
    raise TlsError(f"{text}; {HOW_TO_MAKE}") from None
