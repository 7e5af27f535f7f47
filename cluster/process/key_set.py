"""The public keys of an issuer: a JSON Web Key Set (RFC 7517).

Of a set, those keys are used that have an id, sign, and belong to an allowed algorithm. The algorithm is a property of
the key, never a choice of the token. The module is imported only where an issuer is configured: the libraries below it
take 15 MB of memory.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

KEY_SET_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of a key set. Those of large issuers have 20 KiB."""
KEYS_MAX: Final = 100
"""Maximum number of keys in a set."""
KID_CHARACTERS_MAX: Final = 256
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 4_096
"""Maximum size of an RSA key. Verifying takes 0.1 ms with it, and grows with its square."""
_EXPONENT_MAX: Final = (1 << 32) - 1
_MEMBER_CHARACTERS_MAX: Final = 1_000

_MEMBERS: Final[Mapping[tuple[str, str | None], tuple[str, tuple[str, ...]]]] = {
    ("RSA", None): ("RS256", ("n", "e")),
    ("EC", "P-256"): ("ES256", ("crv", "x", "y")),
    ("OKP", "Ed25519"): ("EdDSA", ("crv", "x")),
}
"""Algorithm and members of the public key, by type and curve. Nothing else of a key is looked at."""


class KeySetError(Exception):
    """The content is no key set of which anything can be used; the message says why."""


class NoUsableKey(KeySetError):
    """The content is a key set, and nothing in it can be used: whoever has made it trusts no key that a node could
    use.
    """


class KeySet:
    """Public keys by their ids. Sets of the same keys are equal."""

    def __init__(self, keys: "Mapping[tuple[str, str], _Key]") -> None:
        self._keys = dict(keys)
        self._kids = {kid for kid, _ in keys}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeySet) and self._members() == other._members()

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._keys)

    def knows(self, kid: str) -> bool:
        return kid in self._kids

    def find(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """Return the key with this id for this algorithm."""
        found = self._keys.get((kid, algorithm))
        return None if found is None else found.key

    def _members(self) -> dict[tuple[str, str], Mapping[str, str]]:
        return {name: key.members for name, key in self._keys.items()}


class _Key(NamedTuple):
    kid: str
    algorithm: str
    members: Mapping[str, str]
    """The members of the public key."""
    key: jwt.PyJWK


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


_decode: Final = msgspec.json.Decoder(_Document).decode


def parse_key_set(content: bytes, algorithms: Iterable[str]) -> KeySet:
    """Return the keys of a set that are for these algorithms. Raises KeySetError; NoUsableKey when there are none.

    It takes up to 20 ms: call it in a thread.
    """
    if len(content) > KEY_SET_BYTES_MAX:
        raise KeySetError(f"larger than {KEY_SET_BYTES_MAX} bytes")
    try:
        found = _decode(content).keys
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        raise KeySetError(f"not a JSON Web Key Set: {str(error)[:200]}") from None
    if len(found) > KEYS_MAX:
        raise KeySetError(f"more than {KEYS_MAX} keys")
    allowed = frozenset(algorithms)
    usable = (key for key in map(_key, found) if key is not None and key.algorithm in allowed)
    keys = {(key.kid, key.algorithm): key for key in usable}
    if not keys:
        raise NoUsableKey(
            f"none of its {len(found)} keys has a kid, is for signatures, and belongs to {', '.join(sorted(allowed))}"
        )
    return KeySet(keys)


def read_key_set(path: str, algorithms: Iterable[str]) -> KeySet:
    """Return the keys in a file. Raises KeySetError."""
    try:
        with open(path, "rb") as stream:
            content = stream.read(KEY_SET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise KeySetError(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return parse_key_set(content, algorithms)


def _key(members: dict[str, Any]) -> _Key | None:
    """Return a key of the set; None when it is none that can be used here."""
    kid, kind, curve = members.get("kid"), members.get("kty"), members.get("crv")
    known = _MEMBERS.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str | None) else None
    if known is None or not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARACTERS_MAX:
        return None
    algorithm, names = known
    operations = members.get("key_ops")
    is_for_signatures = members.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )
    if not is_for_signatures or members.get("alg", algorithm) != algorithm:
        return None
    public = {name: str(members.get(name)) for name in names}
    if not all(isinstance(members.get(name), str) and len(public[name]) <= _MEMBER_CHARACTERS_MAX for name in names):
        return None
    try:
        key = jwt.PyJWK({"kty": kind, **public}, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    return _Key(kid, algorithm, public, key) if _is_usable(key.key) else None


def _is_usable(key: object) -> bool:
    if not isinstance(key, RSAPublicKey):
        return True
    return RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX and key.public_numbers().e <= _EXPONENT_MAX
