"""Signs checks, so that a producer's webhook knows that its cluster asks, and when."""

import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cluster.process.trust import webhook_secrets
from raft.peers.pem_files import PemFile, stamp_of

if TYPE_CHECKING:
    from cluster.process.config import NodeConfig

HEADER: Final = "KeelMQ-Signature"


class WebhookSigner:
    """Owns the secrets of webhook_secret_file. Use it on the event loop only, except `look`."""

    def __init__(self, config: "NodeConfig") -> None:
        """Read the file. Raises ConfigError when it cannot be used."""
        self._config = config
        self._files = [PemFile("webhook_secret_file", config.webhook_secret_file or "")]
        self._stamp = stamp_of(self._files)
        self._secrets = webhook_secrets(config)

    @property
    def has_secrets(self) -> bool:
        return bool(self._secrets)

    def headers(self, body: bytes, now_s: int) -> dict[str, str]:
        """Return the header that signs the body at this time, in seconds since 1970; nothing without secrets."""
        return {HEADER: signature(self._secrets, body, now_s)} if self._secrets else {}

    def look(self) -> tuple[bytes, ...] | None:
        """Return the secrets if the file was replaced since it was last read, otherwise None. Raises ConfigError when
        it cannot be used. It reads a file, and may be called in any thread, by one caller at a time.
        """
        stamp = stamp_of(self._files)
        if stamp == self._stamp:
            return None
        secrets = webhook_secrets(self._config)
        self._stamp = stamp
        return secrets

    def use(self, secrets: tuple[bytes, ...]) -> None:
        """Sign with these secrets from now on."""
        self._secrets = secrets


def signature(secrets: Sequence[bytes], body: bytes, now_s: int) -> str:
    """Return `t=<seconds>,v1=<hex>`, with one v1 for each secret: the HMAC-SHA256 of the time, a dot and the body."""
    signed = b"%d.%b" % (now_s, body)
    return ",".join([f"t={now_s}", *(f"v1={hmac.digest(secret, signed, 'sha256').hex()}" for secret in secrets)])
