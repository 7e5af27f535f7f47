"""Credentials of strangers that are false, foreign, expired, withdrawn, or good for less than they try."""

import ssl
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cluster.security.credentials import make_token
from raft.config import TlsConfig
from tests.certificates import Authority, today
from tests.oidc_issuer import SigningKey, TokenIssuer

CLUSTER: Final = "e2e"
FOREIGN_CLUSTER: Final = "other"
FORGER: Final = SigningKey("key", "ES256")
"""A key of a stranger under the id of the issuer's key."""


class Loot(NamedTuple):
    """All of it, ready to be shown."""

    peers: dict[str, ssl.SSLContext]
    """Contexts for the port of peers, by the kind of certificate."""
    clients: dict[str, ssl.SSLContext]
    """Contexts for the HTTP API, by the kind of certificate; with `nothing`, none is shown."""
    tokens: dict[str, str]
    """Bearer tokens by what they are."""
    secret: bytes
    """The secret of the peers: whoever replays a proof has seen a good one."""


def _context(tls: TlsConfig | None) -> ssl.SSLContext:
    """Return a context that shows the certificate, and does not care whom it meets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def peer_contexts(directory: Path, ca: Authority) -> dict[str, ssl.SSLContext]:
    """Return certificates for the port of peers. None of them suffices; `of node 2` lacks the secret only."""
    foreign = Authority("Tests")

    def place(name: str) -> Path:
        made = directory / f"peer-{name.replace(' ', '-')}"
        made.mkdir(parents=True)
        return made

    over = today() - timedelta(days=2), today() - timedelta(days=1)
    return {
        "of nobody": _context(None),
        "of node 2": _context(ca.issue(place("member"), 2, CLUSTER)),
        "of another cluster": _context(ca.issue(place("cluster"), 2, FOREIGN_CLUSTER)),
        "of another authority": _context(foreign.issue(place("authority"), 2, CLUSTER)),
        "of an unknown node": _context(ca.issue(place("unknown"), 9, CLUSTER)),
        "that has expired": _context(ca.issue(place("expired"), 2, CLUSTER, begins=over[0], ends=over[1])),
        "of two nodes": _context(
            ca.issue(place("two"), 2, uris=(f"keelmq://{CLUSTER}/node/2", f"keelmq://{CLUSTER}/node/3"))
        ),
        "of a client": _context(ca.issue_client(place("client"), "node 2")),
    }


def client_contexts(directory: Path, ca: Authority) -> dict[str, ssl.SSLContext]:
    """Return certificates for the HTTP API, of which none belongs to a user."""
    directory.mkdir()
    foreign = Authority("Tests")
    (directory / "foreign").mkdir()
    return {
        "nothing": _context(None),
        "of another authority": _context(foreign.issue_client(directory / "foreign", "writer")),
        "of nobody": _context(ca.issue_client(directory, "stranger")),
        "of a deleted user": _context(ca.issue_client(directory, "deleted")),
        "that has expired": _context(ca.issue_client(directory, "writer", ends=today() - timedelta(hours=1))),
        "of a node": _context(ca.issue(directory, 2, CLUSTER)),
        "named admin": _context(ca.issue_client(directory, "admin")),
    }


def forged_tokens(issuer: TokenIssuer, administrator: str) -> dict[str, str]:
    """Return tokens that nobody has given out."""
    head, _, rest = issuer.token("root").partition(".")
    return {
        "of another cluster": make_token().text,
        "of the administrator, cut": administrator[:-1],
        "of the administrator, longer": administrator + "0",
        "of the administrator, in capitals": administrator.upper(),
        "empty": "",
        "long": "x" * 7_900,
        "too long": "x" * 9_000,
        "of a person, by a forger": issuer.token("root", key=FORGER),
        "of a person, expired": issuer.token("root", now_s=1_700_000_000),
        "of a person, for others": issuer.token("root", aud="others"),
        "of a person, by another issuer": issuer.token("root", iss="https://elsewhere.example"),
        "of a person, with another key": issuer.token("root", key=SigningKey("unknown", key=FORGER.key)),
        "of a person, reordered": f"{rest}.{head}",
        "of a person, without signature": f"{head}.{rest.partition('.')[0]}.",
    }
