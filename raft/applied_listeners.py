"""Callbacks that run after entries were applied."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class AppliedListeners:
    """Owns the callbacks that run after every step that applied something. Use it only on the event loop."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []
        self._failing: set[Callable[[], None]] = set()

    def add(self, callback: Callable[[], None]) -> None:
        """Add `callback`, which is called after every step that applied something."""
        self._callbacks.append(callback)

    def tell(self) -> None:
        """Call every callback. An error of a callback is logged and not raised, since it would end the task that keeps
        the node ticking. It is logged once until that callback succeeds again, because this runs hundreds of times a
        second.
        """
        for callback in self._callbacks:
            try:
                callback()
            except Exception:
                if callback not in self._failing:
                    self._failing.add(callback)
                    log.exception(
                        "%r raised an error when it was told of applied entries; it is told again of the next ones",
                        callback,
                    )
            else:
                self._failing.discard(callback)
