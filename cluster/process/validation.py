"""The rules between several options of a node."""

from urllib.parse import urlsplit

from cluster.process.addresses import ConfigError, check_peers, is_loopback, overlap, parse_peer, parse_url
from cluster.process.allowed_urls import AllowedUrls
from cluster.process.config import HEARTBEATS_PER_ELECTION_TIMEOUT_MIN, NodeConfig
from cluster.process.http_tls import validate_http_tls
from cluster.process.oidc import is_url, oidc_settings
from cluster.process.quota_file import read_quotas
from cluster.process.trust import validate_trust, webhook_secrets
from store.limits import CHECK_AFTER_MAX_MS


def validate(config: NodeConfig) -> NodeConfig:
    """Check the rules between several options. Returns the same configuration, or raises ConfigError."""
    peers = [parse_peer(text) for text in config.peers]
    check_peers(peers)
    if peers and config.node_id not in {peer.node_id for peer in peers}:
        raise ConfigError(f"peers: node_id {config.node_id} is not among them; list every node, this one included")
    _check_origin(config)
    if config.http_url is not None:
        parse_url(config.http_url, "http_url")
    config.http_address()
    config.peer_address()
    _check_administration(config)
    if config.election_timeout_ms <= HEARTBEATS_PER_ELECTION_TIMEOUT_MIN * config.heartbeat_ms:
        raise ConfigError(
            f"election_timeout_ms: {config.election_timeout_ms} is not more than "
            f"{HEARTBEATS_PER_ELECTION_TIMEOUT_MIN} heartbeats of {config.heartbeat_ms} ms; raise it"
        )
    if config.max_in_flight_bytes < config.max_request_bytes:
        raise ConfigError(
            "max_in_flight_bytes: must be at least max_request_bytes, or the largest request never passes"
        )
    for name in ("check_immunity_ms", "check_interval_ms"):  # apply refuses more
        if getattr(config, name) > CHECK_AFTER_MAX_MS:
            raise ConfigError(f"{name}: {getattr(config, name)} is more than 7 days, {CHECK_AFTER_MAX_MS}; lower it")
    validate_trust(config)
    validate_http_tls(config)
    if config.quota_file is not None:
        read_quotas(config.quota_file)
    _require_closed_http(config)
    _require_secret_join(config)
    AllowedUrls.of(config)
    webhook_secrets(config)
    _require_usable_keys(config)
    return config


def _require_usable_keys(config: NodeConfig) -> None:
    """Check the options of the issuer, and its keys if they are in a file. Raises ConfigError."""
    settings = oidc_settings(config)
    if settings is None or config.oidc_keys is None or is_url(config.oidc_keys):
        return
    from cluster.process.key_set import KeySetError, read_key_set  # takes 15 MB, which a node without issuer keeps

    try:
        read_key_set(config.oidc_keys, settings.algorithms)
    except KeySetError as error:
        raise ConfigError(f"oidc_keys {config.oidc_keys}: {error}") from None


def _require_closed_http(config: NodeConfig) -> None:
    """Require TLS and permissions of an HTTP API that other machines reach. Raises ConfigError."""
    missing = [] if config.http_tls_cert is not None else ["http_tls_cert and http_tls_key"]
    missing += [] if config.auth == "enforce" else ["auth enforce"]
    if config.insecure_http or not missing:
        return
    for option, address in (("http_listen", config.http_address()), ("admin_listen", config.admin_address())):
        if address is not None and not is_loopback(address.host):
            raise ConfigError(
                f"{option}: other machines can reach {address}, which requires {' and '.join(missing)}; "
                "docs/security.md shows the way. If the network keeps everybody else away from the node, or while you "
                "introduce them, say so with --insecure-http"
            )


def _check_administration(config: NodeConfig) -> None:
    """Check that the listener of administration is apart from the others. Raises ConfigError."""
    address = config.admin_address()
    if config.admin_url is not None:
        parse_url(config.admin_url, "admin_url")
        if address is None:
            raise ConfigError("admin_url: nothing listens there without admin_listen; give it, too")
    if address is None:
        return
    others = {"http_listen": config.http_address()}
    if config.serves_peers():
        others["peer_listen"] = config.peer_address()
    for option, other in others.items():
        if overlap(address, other):
            raise ConfigError(f"admin_listen: {address} is {option} {other}, too; give it a port of its own")


def _check_origin(config: NodeConfig) -> None:
    """Check that the node begins a new cluster, joins a running one, or is in a moved one. Raises ConfigError."""
    if config.override_addresses and not config.peers:
        raise ConfigError("override_addresses: give the present addresses of the nodes in peers, too")
    if config.join is None:
        return
    parse_url(config.join, "join")
    if config.peers and not config.override_addresses:
        raise ConfigError("join: not allowed with peers; a node either begins a new cluster or joins a running one")


def _require_secret_join(config: NodeConfig) -> None:
    """Require that the administrator's token is shown to a node on this machine or over TLS. Raises ConfigError."""
    asked = urlsplit(config.join or "")
    is_open = asked.scheme == "http" and not is_loopback(asked.hostname or "")
    if config.join_token_file is not None:
        if config.join is None:
            raise ConfigError("join_token_file: only a node that joins a cluster shows a join token; give join, too")
        if is_open:
            raise ConfigError(f"join: {config.join} would be shown the join token without TLS: give an https URL")
    if is_open and config.admin_token_file is not None and not config.insecure_http:
        raise ConfigError(
            f"join: {config.join} would be shown the token of admin_token_file without TLS: give an https URL. If the "
            "network keeps everybody else away from the nodes, say so with --insecure-http"
        )
