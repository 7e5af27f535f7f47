"""Watches whether this process's event loop stalls: heartbeats are then missing, and the network is not to blame."""

import asyncio
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 0.25
STALL_S: Final = 0.5
"""Minimum delay of a callback that is reported as a stall; the shortest session lasts one second."""


class StallWatch:
    """Notices after the fact that callbacks were late by half a second or more.

    Belongs to one event loop; the owner calls `close`.
    """

    def __init__(self, on_stall: Callable[[float], None]) -> None:
        self._on_stall = on_stall
        self._due_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stood_s = 0.0
        self._ended_s = 0.0

    def start(self) -> None:
        if self._due_s is None:
            self._arm(asyncio.get_running_loop())

    def look(self) -> None:
        """Report a stall that is just over now, because a task may run for long before any timer fires."""
        if self._due_s is None:
            return
        loop = asyncio.get_running_loop()
        late_s = loop.time() - self._due_s
        if late_s >= STALL_S:
            self._stood_s, self._ended_s = late_s, loop.time()
            self._arm(loop)
            self._on_stall(late_s)

    def lately(self, within_s: float) -> str:
        """Return a text about a stall within the last `within_s` seconds, empty without one.

        It ends a message about heartbeats that did not get through."""
        if not self._stood_s or asyncio.get_running_loop().time() - self._ended_s > within_s:
            return ""
        return f" (the event loop of this process stood for {self._stood_s:.1f} s)"

    def close(self) -> None:
        self._due_s = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = loop.time() + INTERVAL_S
        self._timer = loop.call_at(self._due_s, self._tick)

    def _tick(self) -> None:
        self.look()
        if self._due_s is not None:
            self._arm(asyncio.get_running_loop())
