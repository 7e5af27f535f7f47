"""Whether a member's session still lasts, by this side's clock."""

import asyncio
from collections.abc import Callable
from typing import Final

BROKEN_SESSION_S: Final = 5.0
"""What the broker leaves of a session then (cluster/groups/sessions.py)."""
BROKEN_MARGIN_S: Final = 1.0
"""Between the moments in which the broker and the client notice it."""


class SessionWatch:
    """The broker counts a session from when a heartbeat arrives, so it lasts at least until one time-out after that
    heartbeat was *sent*; when the connection of a heartbeat that waits has broken, it ends sooner. `on_end` is called
    once when this is over without another one.
    Belongs to one event loop, but `over` may be asked in any thread; `close` it."""

    def __init__(self, timeout_ms: int, on_end: Callable[[], None]) -> None:
        self._timeout_s = timeout_ms / 1000
        self._on_end = on_end
        self._ends_s = 0.0
        self._now_s: Callable[[], float] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._told = False

    @property
    def over(self) -> bool:
        """By the clock, not by a timer: it is true as well while the event loop stands, or before it has caught up."""
        return self._now_s is not None and self._now_s() >= self._ends_s

    def renewed(self, sent_at_s: float) -> None:
        """A join or a heartbeat that was sent at `sent_at_s` (loop time) was answered."""
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self._ends_s = max(self._ends_s, sent_at_s + self._timeout_s)
        self._told = self._told and self.over
        if self._timer is None and not self._closed:
            self._timer = loop.call_at(self._ends_s, self._timed)

    def broke(self) -> None:
        """The connection of a heartbeat that waited is gone: without another one the session ends in
        BROKEN_SESSION_S, and the broker may have noticed before.
        """
        loop = asyncio.get_running_loop()
        self._ends_s = min(self._ends_s, loop.time() + BROKEN_SESSION_S - BROKEN_MARGIN_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(self._ends_s, self._timed)

    def ended(self) -> None:
        """It is over by the broker's word. `on_end` is not called: whoever says this knows."""
        self._ends_s = asyncio.get_running_loop().time()
        self._told = True

    def look(self) -> None:
        """Call `on_end` now if the session is over: its timer may be late."""
        if self.over and not self._told and not self._closed:
            self._told = True
            self._on_end()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed(self) -> None:
        self._timer = None
        if self.over:
            self.look()
        else:
            self._timer = asyncio.get_running_loop().call_at(self._ends_s, self._timed)
