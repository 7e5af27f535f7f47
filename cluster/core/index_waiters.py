"""Readers of the log wait here until an entry is applied.

The waiters are sorted by the index of their entry. Applying an entry looks only at the waiters whose entry has come: a
thousand readers that wait for an entry far ahead cost nothing until it is there.
"""

import asyncio
import bisect
import itertools
import time

from cluster.process.request_scope import note_polled

Waiter = tuple[int, int, "asyncio.Future[None]"]
"""Index of the entry, a number that makes the tuple unique, and the future that wakes the waiter."""


class IndexWaiters:
    """Owns the waiters for applied entries. Use on the event loop only. A cancelled waiter, as of a client that went
    away, leaves nothing behind.
    """

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._numbers = itertools.count()
        self.closed = False
        self.woken = 0
        """Number of waiters that were woken since the start."""

    def __len__(self) -> int:
        return len(self._waiting)

    def reached(self, index: int) -> None:
        """Wake all waiters for entries up to `index`, which are applied now."""
        if not self._waiting or self._waiting[0][0] > index:
            return
        count = bisect.bisect_left(self._waiting, index + 1, key=_index_of)
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        self._wake(due)

    def close(self) -> None:
        """Wake all waiters. From now on `wait` returns at once."""
        self.closed = True
        due, self._waiting = self._waiting, []
        self._wake(due)

    async def wait(self, index: int, timeout_s: float) -> bool:
        """Wait until the entry `index` is applied. Return False after `timeout_s`, or at once after `close`."""
        if self.closed:
            return False
        waiter = (index, next(self._numbers), asyncio.get_running_loop().create_future())
        bisect.insort(self._waiting, waiter)
        begun_s = time.perf_counter()
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[2]
        except TimeoutError:
            return False
        finally:
            note_polled(begun_s)
            place = bisect.bisect_left(self._waiting, waiter)
            if place < len(self._waiting) and self._waiting[place] is waiter:
                del self._waiting[place]
        return True

    def _wake(self, due: list[Waiter]) -> None:
        self.woken += len(due)
        for _, _, future in due:
            if not future.done():
                future.set_result(None)


def _index_of(waiter: Waiter) -> int:
    return waiter[0]
