"""Watches by the client's clock whether a member's session still lasts."""

import asyncio
from collections.abc import Callable
from typing import Final

BROKEN_SESSION_S: Final = 5.0
"""Seconds that the broker leaves to a session whose connection broke (cluster/groups/sessions.py)."""
BROKEN_MARGIN_S: Final = 1.0
"""Allowance in seconds between the moments at which the broker and the client notice a broken connection."""


class SessionWatch:
    """Knows the earliest time at which a session can be over, and calls `on_end` once when it has passed.

    The broker counts a session from the arrival of a heartbeat, so it lasts at least until one timeout after that
    heartbeat was *sent*. It ends sooner when the connection of a waiting heartbeat has broken. Belongs to one event
    loop, but `over` may be read in any thread; the owner calls `close`."""

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
        """True when the session is over by the clock. No timer is involved, so a stalled event loop does not matter."""
        return self._now_s is not None and self._now_s() >= self._ends_s

    def renewed(self, sent_at_s: float) -> None:
        """Extend the session after an answered join or heartbeat that was sent at `sent_at_s` (loop time)."""
        loop = asyncio.get_running_loop()
        self._now_s = loop.time
        self._ends_s = max(self._ends_s, sent_at_s + self._timeout_s)
        self._told = self._told and self.over
        if self._timer is None and not self._closed:
            self._timer = loop.call_at(self._ends_s, self._timed)

    def broke(self) -> None:
        """Shorten the session because the connection of a waiting heartbeat broke.

        Without another heartbeat it ends in BROKEN_SESSION_S, and the broker may have noticed the break earlier.
        """
        loop = asyncio.get_running_loop()
        self._ends_s = min(self._ends_s, loop.time() + BROKEN_SESSION_S - BROKEN_MARGIN_S)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_at(self._ends_s, self._timed)

    def ended(self) -> None:
        """End the session because the broker reports its end. `on_end` is not called, because the caller knows."""
        self._ends_s = asyncio.get_running_loop().time()
        self._told = True

    def look(self) -> None:
        """Call `on_end` now if the session is over, because its timer may be late."""
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
