"""Turns: limit the amount of work that is under way at a time, by key, first come, first served.

* Bodies of one client address over 64 KiB. The log takes proposals in the order in which they come: a client that
  proposes tens of megabytes at once would make every other client wait until they are on the disks of a majority.
* Pages of one address that are read from the log. Forty clients that take nothing of their answers would have forty
  pages in memory before the first counts as unread.
* Rebalances of all groups. Applying a join or a leave looks at every member and every queue of its group, and hundreds
  of members that come at once would be one entry of the log.
* Clones of offsets onto one group. Large ones are several entries, and those of two sources would mix.
"""

import asyncio
from collections import deque
from typing import Final

BODY_TURN_BYTES: Final = 4 * 1024 * 1024
"""Maximum bytes of bodies of one address that are handled at a time; further bodies wait in memory."""
PAGE_TURN_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes of pages that are built for one address at a time; further pages wait before they take memory."""
ALL_GROUPS: Final = ""
"""The key of rebalances: all groups share one limit, because their commands are applied one after the other."""
REBALANCED_AT_ONCE: Final = 4_096
"""Maximum number of members and queues of the groups whose joins and leaves are under way: applying them takes about
ten milliseconds."""


class Turns:
    """Hands out at most `limit` units per key at a time. A request for more units than the limit goes alone.

    Use on the event loop only.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[tuple[int, asyncio.Future[None]]]] = {}
        self.taken_max = 0
        """Largest number of units that one key held at a time since the start."""

    async def take(self, key: str, size: int) -> None:
        """Wait until `key` may hold `size` more units; `give_back` with the same arguments has to follow.

        A caller that is cancelled while it waits holds nothing.
        """
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
            if not turn.done():  # the caller was not cancelled
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
