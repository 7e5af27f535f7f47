"""The issuer of people's tokens that the options of a node name."""

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.oidc import is_url, oidc_settings
from cluster.security.issuer import Issuer


def issuer_of(config: NodeConfig) -> Issuer | None:
    """Return what judges the tokens of people, with the keys if they are in a file. Raises ConfigError."""
    settings = oidc_settings(config)
    if settings is None or config.oidc_keys is None:
        return None
    # A node without an issuer does not load the 15 MB that verifying takes.
    from cluster.process.key_set import KeySetError, read_key_set
    from cluster.security.json_web_tokens import TokenVerifier

    verifier = TokenVerifier(settings)
    if is_url(config.oidc_keys):
        return Issuer(settings.issuer, verifier)
    try:
        return Issuer(settings.issuer, verifier, read_key_set(config.oidc_keys, settings.algorithms))
    except KeySetError as error:
        raise ConfigError(f"oidc_keys {config.oidc_keys}: {error}") from None
