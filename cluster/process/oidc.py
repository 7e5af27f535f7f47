"""The options by which a node knows people by the tokens of an OpenID Connect issuer."""

from typing import Final, NamedTuple
from urllib.parse import urlsplit

from cluster.process.addresses import ConfigError, is_loopback
from cluster.process.config import NodeConfig

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA")
"""Signatures that can be allowed. All are by key pairs: whoever can verify a token cannot make one."""
ISSUER_CHARACTERS_MAX: Final = 1_024


class OidcSettings(NamedTuple):
    """The requirements of a token."""

    issuer: str
    audiences: tuple[str, ...]
    algorithms: tuple[str, ...]
    principal_claim: str
    groups_claim: str | None
    leeway_ms: int
    lifetime_ms_max: int


def oidc_settings(config: NodeConfig) -> OidcSettings | None:
    """Return what tokens have to be; None when the options ask for no issuer. Raises ConfigError."""
    given = {name: getattr(config, name) for name in ("oidc_issuer", "oidc_audiences", "oidc_keys")}
    missing = [name for name, value in given.items() if not value]
    if len(missing) == len(given):
        return None
    if missing:
        raise ConfigError(f"{missing[0]}: give oidc_issuer, oidc_audiences and oidc_keys together, or none of them")
    if config.auth == "off":
        raise ConfigError(
            "oidc_issuer: a node with auth off asks nobody for a token; set auth to permissive or enforce"
        )
    unknown = [each for each in config.oidc_algorithms if each not in ALGORITHMS]
    if unknown or not config.oidc_algorithms:
        raise ConfigError(f"oidc_algorithms: {unknown[:1]}: give some of {', '.join(ALGORITHMS)}")
    if not config.oidc_principal_claim or config.oidc_groups_claim == "":
        raise ConfigError("oidc_principal_claim and oidc_groups_claim: give the name of a claim")
    issuer, keys = str(config.oidc_issuer), str(config.oidc_keys)
    if len(issuer) > ISSUER_CHARACTERS_MAX:
        raise ConfigError(f"oidc_issuer: at most {ISSUER_CHARACTERS_MAX} characters")
    if is_url(keys):
        _require_secure(keys)
    return OidcSettings(
        issuer,
        config.oidc_audiences,
        config.oidc_algorithms,
        config.oidc_principal_claim,
        config.oidc_groups_claim,
        config.oidc_leeway_ms,
        config.oidc_max_lifetime_ms,
    )


def is_url(oidc_keys: str) -> bool:
    """Return whether the keys are fetched; otherwise they are in a file."""
    return "://" in oidc_keys


def _require_secure(url: str) -> None:
    """Require a URL whose answer nobody on the way can change. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, is_valid = parts.hostname or "", parts.port != 0 and parts.username is None
    except ValueError:
        host, is_valid = "", False
    if not host or not is_valid or parts.fragment or parts.scheme not in ("http", "https") or not url.isprintable():
        raise ConfigError(f"oidc_keys: {url!r} is not a URL of the form https://host/path, and not a file")
    if parts.scheme == "http" and not is_loopback(host):
        raise ConfigError(
            f"oidc_keys: {url}: whoever is on the way could exchange the keys, and be anybody: give an https URL"
        )
