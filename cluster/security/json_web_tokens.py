"""Tokens of people: signed JSON Web Tokens (RFC 7519) of the issuer that the node trusts.

A token names its key. The key says which algorithm verifies it, and the node which algorithms are allowed; `none` and
algorithms with shared secrets never are. Nothing of a token is believed, except for the id of its key, before its
signature is verified. No error holds anything of a token but that id.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import jwt
import msgspec
from jwt.utils import base64url_decode

from cluster.process.key_set import KID_CHARACTERS_MAX, KeySet
from cluster.process.oidc import OidcSettings
from cluster.security.issuer import KeyUnknown, Person, TokenRefused

HEADER_PART_CHARACTERS_MAX: Final = 1_024
"""Maximum number of characters of the first part of a token, which is decoded before the signature is verified."""
GROUPS_MAX: Final = 256
"""Maximum number of groups in a token."""
TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""Types of tokens that are accepted. Others, such as those of sign-outs, are signed by the same keys."""
CLAIM_REGEX: Final = re.compile(r"[A-Za-z0-9_.@|+=~-]{1,128}")
"""Names of people and groups that principals can have."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")
_TIME_MAX: Final = 1 << 40
_UNVERIFIED_TIMES: Final[Any] = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
"""The node's clock decides about times, not the one of the library."""


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    typ: str = "JWT"
    crit: Any = None


_decode_header: Final = msgspec.json.Decoder(_Header).decode


class TokenVerifier:
    """Verifies tokens by the settings of the node."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        required = {"iss", "aud", "exp", "iat", settings.principal_claim}
        self._options: Any = {**_UNVERIFIED_TIMES, "require": sorted(required)}

    def verify(self, token: str, keys: KeySet, now_ms: int) -> Person:
        """Return whom the token names. Raises TokenRefused; KeyUnknown when its key is not among `keys`.

        It takes 0.1 ms, half a millisecond with a token of the maximum size.
        """
        header = _header_of(token)
        kid = header.kid
        if header.alg not in self._settings.algorithms:
            raise TokenRefused(f"its algorithm is none of {', '.join(self._settings.algorithms)}")
        if header.typ.lower() not in TYPES:
            raise TokenRefused("it is of another type (typ) than a token of access or of identity")
        if kid is None or not 0 < len(kid) <= KID_CHARACTERS_MAX or not kid.isprintable():
            raise TokenRefused("it does not name its key (kid)")
        if header.crit is not None:
            raise TokenRefused("it asks for extensions (crit), of which this node knows none")
        if not keys.knows(kid):
            raise KeyUnknown(kid)
        key = keys.find(kid, header.alg)
        if key is None:
            raise TokenRefused("its algorithm is not the one of its key")
        return self._person(self._claims(token, key, header.alg), now_ms)

    def _claims(self, token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        settings = self._settings
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=settings.audiences,
                issuer=settings.issuer,
                options=self._options,
            )
        except jwt.InvalidSignatureError:
            raise TokenRefused("its signature is not that of its key") from None
        except jwt.InvalidAudienceError:
            raise TokenRefused("it is for another audience (aud)") from None
        except jwt.InvalidIssuerError:
            raise TokenRefused("it is of another issuer (iss)") from None
        except jwt.MissingRequiredClaimError as error:
            raise TokenRefused(f"it lacks the claim {error.claim}") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused("it is not well formed") from None

    def _person(self, claims: Mapping[str, Any], now_ms: int) -> Person:
        """Return whom the verified claims name."""
        settings = self._settings
        issued_ms, ends_ms = _time_ms(claims, "iat"), _time_ms(claims, "exp")
        if ends_ms + settings.leeway_ms <= now_ms:
            raise TokenRefused("it has expired (exp); sign in again")
        if issued_ms - settings.leeway_ms > now_ms:
            raise TokenRefused("it was issued in the future (iat), by the clock of this node")
        if "nbf" in claims and _time_ms(claims, "nbf") - settings.leeway_ms > now_ms:
            raise TokenRefused("it is not valid yet (nbf), by the clock of this node")
        if not 0 < ends_ms - issued_ms <= settings.lifetime_ms_max:
            raise TokenRefused(f"it is valid for longer than oidc_max_lifetime_ms, {settings.lifetime_ms_max} ms")
        if settings.principal_claim == "email" and claims.get("email_verified") is not True:
            raise TokenRefused("its issuer does not say that the address is verified (email_verified)")
        self._require_client(claims)
        name = claims[settings.principal_claim]
        if not isinstance(name, str) or not CLAIM_REGEX.fullmatch(name):
            raise TokenRefused(
                f"its claim {settings.principal_claim} is not 1 to 128 characters of A-Z a-z 0-9 _ . @ | + = ~ -"
            )
        return Person(name, self._groups(claims), ends_ms + settings.leeway_ms)

    def _require_client(self, claims: Mapping[str, Any]) -> None:
        """Refuse a token for several audiences that was issued to a client which is none of the node's audiences
        (OpenID Connect Core 1.0, 3.1.3.7): it may be another service's token, which that service could show here.
        """
        audiences = claims["aud"]
        several = isinstance(audiences, list) and len(set(audiences)) > 1
        if several and "azp" in claims and claims["azp"] not in self._settings.audiences:
            raise TokenRefused(
                "it is for several audiences (aud), and was issued to a client that is none of ours (azp)"
            )

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the groups. Names that no principal can have are left out: no rule can be about them."""
        claim = self._settings.groups_claim
        if claim is None:
            return ()
        elsewhere = claims.get("_claim_names")
        if claim not in claims:
            if claims.get("hasgroups") or (
                elsewhere is not None and (not isinstance(elsewhere, dict) or claim in elsewhere)
            ):
                raise TokenRefused(
                    f"its claim {claim} is too long for it and kept elsewhere; have it name fewer groups"
                )
            return ()
        listed = claims[claim]
        if isinstance(listed, str):
            listed = [listed]
        if (
            not isinstance(listed, list)
            or len(listed) > GROUPS_MAX
            or not all(isinstance(each, str) for each in listed)
        ):
            raise TokenRefused(f"its claim {claim} is not a list of at most {GROUPS_MAX} groups")
        return tuple(dict.fromkeys(each for each in listed if CLAIM_REGEX.fullmatch(each)))


def _header_of(token: str) -> _Header:
    """Return the first part of the token, which nobody has verified yet. Raises TokenRefused."""
    parts = token.split(".", 3)
    if len(parts) != 3 or len(parts[0]) > HEADER_PART_CHARACTERS_MAX or not all(map(_SEGMENT.fullmatch, parts)):
        raise TokenRefused("it is not well formed")
    try:
        return _decode_header(base64url_decode(parts[0]))
    except (ValueError, RecursionError):
        raise TokenRefused("it is not well formed") from None


def _time_ms(claims: Mapping[str, Any], claim: str) -> int:
    """Return a time in ms since 1970. Raises TokenRefused unless it is a number that a date can be."""
    seconds = claims[claim]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _TIME_MAX:
        raise TokenRefused(f"its claim {claim} is not a time")
    return int(seconds * 1000)
