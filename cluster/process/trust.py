"""The options by which the nodes of a cluster authenticate each other."""

from pathlib import Path
from typing import Final

from cluster.process.addresses import ConfigError, is_loopback
from cluster.process.config import NodeConfig
from raft.config import TlsConfig
from raft.peers.pem_files import TlsError
from raft.peers.secret import HOW_TO_MAKE, SecretError, read_peer_secrets
from raft.peers.tls import HOW_TO_MAKE as HOW_TO_MAKE_CERTIFICATES
from raft.peers.tls import PeerTls

ADMIN_TOKEN_BYTES_MAX: Final = 128
WEBHOOK_SECRETS_MAX: Final = 2
"""Maximum number of secrets that sign checks: the present one, and the next or the last one."""


def validate_trust(config: NodeConfig) -> None:
    """Check the options, and the files of TLS as two nodes would. Raises ConfigError."""
    tls = {"tls_cert": config.tls_cert, "tls_key": config.tls_key, "tls_ca": config.tls_ca}
    missing = [name for name, path in tls.items() if path is None]
    administrator_tokens(config)
    if missing and len(missing) < len(tls):
        raise ConfigError(f"{missing[0]}: give tls_cert, tls_key and tls_ca together, or none of them")
    if config.peers_without_tls:
        _require_transition(config)
    for name, path in tls.items():
        if path is not None:
            require_file(name, path)
    files = tls_files(config)
    if files is not None:
        try:
            PeerTls(files, config.cluster_id, config.node_id)
        except TlsError as error:
            raise ConfigError(str(error)) from None
    if files is not None:
        return
    for address in (config.peer_address(), config.nodes()[config.node_id].address):
        if config.serves_peers() and not is_loopback(address.host) and not config.insecure_peers:
            raise ConfigError(
                f"tls_cert: required with tls_key and tls_ca, since other machines can reach {address}; "
                f"{HOW_TO_MAKE_CERTIFICATES}. If the network keeps everybody else away from the nodes, say so with "
                "--insecure-peers"
            )
    if config.serves_peers() and not is_loopback(config.peer_address().host) and config.peer_secret_file is None:
        raise ConfigError(
            f"peer_secret_file: required, since other machines can reach {config.peer_address()}; {HOW_TO_MAKE}"
        )


def _require_transition(config: NodeConfig) -> None:
    """Require of a node that takes peers without TLS that it has TLS, and the secret. Raises ConfigError."""
    if config.tls_cert is None:
        raise ConfigError("peers_without_tls: only a node with tls_cert, tls_key and tls_ca can stop taking them")
    if not is_loopback(config.peer_address().host) and config.peer_secret_file is None:
        raise ConfigError(
            f"peer_secret_file: required with peers_without_tls, since other machines can reach "
            f"{config.peer_address()}; give it until the other nodes have TLS; {HOW_TO_MAKE}"
        )


def require_file(option: str, path: str) -> None:
    """Raise ConfigError unless the path of an option leads to a file."""
    try:
        found = Path(path).is_file()
    except OSError as error:  # as for a directory on the way that the user of the node may not enter
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
    if not found:
        raise ConfigError(f"{option}: {path} is not a file")


def tls_files(config: NodeConfig) -> TlsConfig | None:
    """Return the files of TLS between peers; None when the options do not ask for TLS."""
    if config.tls_cert is None or config.tls_key is None or config.tls_ca is None:
        return None
    return TlsConfig(
        certificate_file=config.tls_cert,
        key_file=config.tls_key,
        ca_file=config.tls_ca,
        plain_too=config.peers_without_tls,
    )


def administrator_tokens(config: NodeConfig) -> tuple[bytes, ...]:
    """Return the tokens of the built-in administrator; none without admin_token_file. Raises ConfigError."""
    if config.admin_token_file is None:
        return ()
    try:
        tokens = read_peer_secrets(Path(config.admin_token_file))
    except SecretError as error:
        raise ConfigError(f"admin_token_file {error}") from None
    if any(len(token) > ADMIN_TOKEN_BYTES_MAX or b" " in token or not token.isascii() for token in tokens):
        raise ConfigError(
            f"admin_token_file {config.admin_token_file}: a token is a word of at most {ADMIN_TOKEN_BYTES_MAX} ASCII "
            f"characters; {HOW_TO_MAKE}"
        )
    return tokens


def join_token(config: NodeConfig) -> str | None:
    """Return the join token of a new node; None without join_token_file. Raises ConfigError."""
    if config.join_token_file is None:
        return None
    try:
        tokens = read_peer_secrets(Path(config.join_token_file))
    except SecretError as error:
        raise ConfigError(f"join_token_file {error}") from None
    if len(tokens) > 1 or len(tokens[0]) > ADMIN_TOKEN_BYTES_MAX or b" " in tokens[0] or not tokens[0].isascii():
        raise ConfigError(
            f"join_token_file {config.join_token_file}: give the one line that keelmq cluster join-token printed"
        )
    return tokens[0].decode()


def webhook_secrets(config: NodeConfig) -> tuple[bytes, ...]:
    """Return the secrets that sign checks to webhooks; none without webhook_secret_file. Raises ConfigError."""
    if config.webhook_secret_file is None:
        return ()
    try:
        secrets = read_peer_secrets(Path(config.webhook_secret_file))
    except SecretError as error:
        raise ConfigError(f"webhook_secret_file {error}") from None
    if len(secrets) > WEBHOOK_SECRETS_MAX:
        raise ConfigError(
            f"webhook_secret_file {config.webhook_secret_file}: the file must have one or two lines with one secret "
            "each; remove the oldest one"
        )
    return secrets
