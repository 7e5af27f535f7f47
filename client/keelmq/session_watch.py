"""Whether a member's session still lasts, by this side's clock."""

import asyncio
from collections.abc import Callable


class SessionWatch:
    """The broker counts a session from when a heartbeat arrives, so it lasts at least until one time-out after that
    heartbeat was *sent*. `on_end` is called when this is over without another one, and `over` is
    true until there is one.
    Belongs to one event loop; `close` it."""

    def __init__(self, timeout_ms: int, on_end: Callable[[], None]) -> None:
        self._timeout_s = timeout_ms / 1000
        self._on_end = on_end
        self._ends_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.over = False

    def renewed(self, sent_at_s: float) -> None:
        """A join or a heartbeat that was sent at `sent_at_s` (loop time) was answered."""
        loop = asyncio.get_running_loop()
        self._ends_s = max(self._ends_s, sent_at_s + self._timeout_s)
        self.over = self.over and loop.time() >= self._ends_s
        if self._timer is None and not self._closed:
            self._timer = loop.call_at(self._ends_s, self._look)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if loop.time() < self._ends_s:
            self._timer = loop.call_at(self._ends_s, self._look)
        elif not self.over:
            self.over = True
            self._on_end()
