"""Bearer tokens: 256 random bits, of which the cluster stores the SHA-256 only."""

import hashlib
import secrets
from typing import Final, NamedTuple

PREFIX: Final = "keelmq_"
"""Every token begins so, so that scanners find one that was published by mistake."""
TOKEN_BYTES: Final = 32
TOKEN_ID_CHARACTERS: Final = 12
SCHEME: Final = "bearer "
HEADER_CHARACTERS_MAX: Final = 200
"""Maximum number of characters of an Authorization header with a token that the cluster has made."""


class NewToken(NamedTuple):
    """A token that was just made: the text is shown once, and never stored."""

    text: str
    token_id: str
    sha256: bytes


def make_token() -> NewToken:
    """Return a new token of random bits."""
    text = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    digest = hash_of(text)
    return NewToken(text, digest.hex()[:TOKEN_ID_CHARACTERS], digest)


def hash_of(token: str) -> bytes:
    """Return the SHA-256 by which a token is known."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def token_in(header: str, characters_max: int = HEADER_CHARACTERS_MAX) -> str | None:
    """Return the bearer token in an Authorization header; None when it has none or is too long."""
    if len(header) > characters_max or header[: len(SCHEME)].lower() != SCHEME:
        return None
    token = header[len(SCHEME) :].strip()
    return None if not token or len(token.split()) > 1 else token
