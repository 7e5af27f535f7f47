"""Who is told that something was applied."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class AppliedListeners:
    """Loop-only."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def add(self, callback: Callable[[], None]) -> None:
        """`callback` is called after every step that applied something."""
        self._callbacks.append(callback)

    def tell(self) -> None:
        """Call everybody back. An error of one is logged: raised, it would end what keeps the node ticking."""
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                log.exception("%r failed when it was told what was applied", callback)
