"""Takes over the secrets that sign checks when their file is replaced, without a restart."""

import logging
from collections.abc import Iterator
from typing import Final

from cluster.core.core import Core
from cluster.core.reader_threads import ReaderPool
from cluster.health.alarms import Condition
from cluster.process.addresses import ConfigError
from cluster.security.webhook_signer import WebhookSigner

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 5.0


class WebhookSecretGuard:
    """Owns the looks at the file. Use on the event loop only. Without webhook_secret_file it does nothing."""

    def __init__(self, core: Core, signer: WebhookSigner, threads: ReaderPool) -> None:
        """Create the guard, which owns `threads` from here on."""
        self._signer = signer
        self._threads = threads
        self._problem = ""
        self._task = core.background.task("webhook-secrets", "look at the secrets of webhooks", self._round)

    def start(self) -> None:
        if self._signer.has_secrets:
            self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()
        self._threads.stop()

    async def look(self) -> None:
        """Sign with the secrets in the file if it was replaced. An error is noted for `conditions` and logged."""
        try:
            secrets = await self._threads.run(self._signer.look)
        except ConfigError as error:
            if str(error) != self._problem:
                logger.error("the new secrets of webhooks are not used: %s", error)
            self._problem = str(error)
            return
        self._problem = ""
        if secrets is not None:
            self._signer.use(secrets)
            logger.info("checks are signed with the new secrets of webhooks, %d in number", len(secrets))

    def conditions(self) -> Iterator[Condition]:
        """Yield an alarm while the file cannot be used."""
        if self._problem:
            yield Condition(
                "webhook_secret_refused",
                "warning",
                f"the secrets of webhooks were replaced, and cannot be used: {self._problem}. This node signs with the "
                "former ones, and would not start with these",
            )

    async def _round(self) -> float:
        await self.look()
        return INTERVAL_S
