"""The public keys of an issuer: a JSON Web Key Set (RFC 7517).

Of a set, those keys are used that have an id, sign, and belong to an allowed algorithm. The algorithm is a property of
the key, never a choice of the token. The module is imported only where an issuer is configured: the libraries below it
take 15 MB of memory.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

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
"""By type and curve: the algorithm, and the members of the public key. Nothing else of a key is looked at."""


class KeySetError(Exception):
    """The content is no key set of which anything can be used; the message says why."""


class KeySet:
    """Public keys by their ids."""

    def __init__(self, keys: Mapping[tuple[str, str], jwt.PyJWK]) -> None:
        self._keys = dict(keys)
        self._kids = {kid for kid, _ in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def knows(self, kid: str) -> bool:
        return kid in self._kids

    def find(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """Return the key with this id for this algorithm."""
        return self._keys.get((kid, algorithm))


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


_decode: Final = msgspec.json.Decoder(_Document).decode


def parse_key_set(content: bytes, algorithms: Iterable[str]) -> KeySet:
    """Return the keys of a set that are for these algorithms. Raises KeySetError, also when there are none.

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
    keys = {(kid, algorithm): key for kid, algorithm, key in map(_key, found) if algorithm in allowed and key}
    if not keys:
        raise KeySetError(
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


def _key(members: dict[str, Any]) -> tuple[str, str, jwt.PyJWK | None]:
    """Return id, algorithm and key; None in the key's place when it is none that can be used here."""
    kid, kind, curve = members.get("kid"), members.get("kty"), members.get("crv")
    known = _MEMBERS.get((kind, curve)) if isinstance(kind, str) and isinstance(curve, str | None) else None
    if known is None or not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARACTERS_MAX:
        return "", "", None
    algorithm, names = known
    operations = members.get("key_ops")
    is_for_signatures = members.get("use", "sig") == "sig" and (
        operations is None or (isinstance(operations, list) and "verify" in operations)
    )
    if not is_for_signatures or members.get("alg", algorithm) != algorithm:
        return "", "", None
    public = {name: members.get(name) for name in names}
    if not all(isinstance(each, str) and len(each) <= _MEMBER_CHARACTERS_MAX for each in public.values()):
        return "", "", None
    try:
        key = jwt.PyJWK({"kty": kind, **public}, algorithm)
    except (jwt.PyJWTError, ValueError, TypeError):
        return "", "", None
    return kid, algorithm, key if _is_usable(key.key) else None


def _is_usable(key: object) -> bool:
    if not isinstance(key, RSAPublicKey):
        return True
    return RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX and key.public_numbers().e <= _EXPONENT_MAX
