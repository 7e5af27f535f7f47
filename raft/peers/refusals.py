"""Logs refused connections at a limited rate: strangers decide how many there are."""

import logging
from typing import Final

from raft.library import now

log = logging.getLogger(__name__)

REPEAT_S: Final = 60.0
"""Seconds in which one text is logged once."""
TEXTS_MAX: Final = 64
"""Maximum number of different texts that are logged within REPEAT_S."""


class Refusals:
    """Logs texts at most once, and at most TEXTS_MAX of them, per REPEAT_S. Use it on the event loop only."""

    def __init__(self) -> None:
        self._begun_s = float("-inf")
        self._logged: set[str] = set()
        self._unlogged = 0

    def note(self, text: str) -> None:
        """Log the text as a warning, or count it for a later line."""
        if now() - self._begun_s >= REPEAT_S:
            self._begun_s = now()
            self._logged.clear()
            if self._unlogged:
                log.warning("%d further peer connections were refused since the last such report", self._unlogged)
            self._unlogged = 0
        if text in self._logged or len(self._logged) >= TEXTS_MAX:
            self._unlogged += 1
            return
        self._logged.add(text)
        log.warning("refused a peer connection: %s", text)
