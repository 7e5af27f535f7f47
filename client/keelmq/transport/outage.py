"""Tells a failover, of which nobody has to hear, from an outage that somebody should look at."""

import asyncio
import logging
from typing import Final

from keelmq.errors import KeelMQError

FAILOVER_S: Final = 10.0
"""Seconds for which retryable failures of a background call are no warning; a failover is usually over by then."""


class Outage:
    """Follows the failures of one background call that is repeated until it succeeds. Belongs to one event loop."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def level(self, error: KeelMQError) -> int:
        """Return the level at which to log the failure: DEBUG in the first 10 s of retryable ones, otherwise WARNING.

        The time begins with the first failure after `ended`."""
        now_s = asyncio.get_running_loop().time()
        if self._since_s is None:
            self._since_s = now_s
        return logging.DEBUG if error.retryable and now_s - self._since_s < FAILOVER_S else logging.WARNING

    def ended(self) -> None:
        """Note that the call has succeeded."""
        self._since_s = None
