"""Turns: of something of which there may be a limited amount at a time, who came first goes first, by key.

* Bodies of one client address over 64 KiB. What is proposed is written to the log in that order: a client that has tens
  of megabytes proposed at once would make everybody else wait until they are on the disks of a majority.
* Pages of one address that are read from the log. Forty clients that read nothing would have forty pages in memory
  before the first counts as unread.
* Rebalances of all groups. Applying a join or a leave looks at every member and every queue of its group, and hundreds
  of members that come at once would be one entry of the log, which is applied whole.
"""

import asyncio
from collections import deque
from typing import Final

BODY_TURN_BYTES: Final = 4 * 1024 * 1024
"""Bodies of one address that are worked on at a time; further ones wait in memory."""
PAGE_TURN_BYTES: Final = 16 * 1024 * 1024
"""Pages that are put together for one address at a time; further ones wait before they take memory."""
ALL_GROUPS: Final = ""
"""The key of rebalances: they are applied one after the other, whatever their group."""
REBALANCED_AT_ONCE: Final = 4_096
"""Members and queues of the groups whose joins and leaves are on their way: about ten milliseconds of applying them."""


class Turns:
    """Loop-only. For each key at most `limit` at a time; a request for more than that goes alone."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self.taken_max = 0
        """The most of one key at a time, since the start."""

    async def take(self, key: str, size: int) -> None:
        """Wait for the turn; `give_back` of the same has to follow. Who is cancelled has given it back."""
        if key not in self._waiting and self._fits(key, size):
            self._add(key, size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, deque()).append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(key, size)
            raise

    def give_back(self, key: str, size: int) -> None:
        self._add(key, -size)
        waiting = self._waiting.get(key, deque())
        while waiting and (waiting[0][1].done() or self._fits(key, waiting[0][0])):
            next_size, turn = waiting.popleft()
            if not turn.done():  # who asked for it is still there
                self._add(key, next_size)
                turn.set_result(None)
        if not waiting:
            self._waiting.pop(key, None)
            if not self._taken[key]:
                del self._taken[key]

    def _fits(self, key: str, size: int) -> bool:
        taken = self._taken.get(key, 0)
        return not taken or taken + size <= self._limit

    def _add(self, key: str, size: int) -> None:
        self._taken[key] = taken = self._taken.get(key, 0) + size
        self.taken_max = max(self.taken_max, taken)
