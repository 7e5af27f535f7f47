"""Signs checks, so that a producer's webhook knows that its cluster asks, and when."""

import hmac
import logging
from collections.abc import Sequence
from typing import Final

from cluster.process.addresses import ConfigError
from cluster.process.config import NodeConfig
from cluster.process.trust import webhook_secrets
from raft.peers.pem_files import PemFile, stamp_of

logger = logging.getLogger(__name__)

HEADER: Final = "KeelMQ-Signature"


class WebhookSigner:
    """Owns the secrets of webhook_secret_file. Use it on the event loop only, except `look`."""

    def __init__(self, config: NodeConfig, former: tuple[bytes, ...] = ()) -> None:
        """Read the file. When it cannot be used, the former secrets are kept and an error is logged; without any,
        ConfigError is raised.
        """
        self._config = config
        self._files = [PemFile("webhook_secret_file", config.webhook_secret_file or "")]
        self._stamp = stamp_of(self._files)
        try:
            self._secrets = webhook_secrets(config)
        except ConfigError as error:
            if not former:
                raise
            logger.error("the node goes on with the former secrets of webhooks: %s", error)
            self._secrets, self._stamp = former, ()  # no file has this stamp, so the next look reads it again

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The secrets that sign at present."""
        return self._secrets

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
