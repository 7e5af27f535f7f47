"""Who is told that something was applied."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class AppliedListeners:
    """Loop-only."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._failing: set[Callable[[], None]] = set()

    def add(self, callback: Callable[[], None]) -> None:
        """`callback` is called after every step that applied something."""
        self._callbacks.append(callback)

    def tell(self) -> None:
        """Call everybody back. Raised, an error of one would end what keeps the node ticking, so it is logged: once
        until that callback succeeds again, for this comes hundreds of times a second.
        """
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                if callback not in self._failing:
                    self._failing.add(callback)
                    log.exception("%r failed when it was told what was applied", callback)
            else:
                self._failing.discard(callback)
