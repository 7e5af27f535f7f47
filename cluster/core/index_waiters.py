"""Waiting until an entry is applied: readers of the log wait here.

They are kept in the order of the entries that they wait for. What is applied looks at those whose entry has come, and
at nobody else: a thousand readers that wait for an entry far ahead cost nothing until it is there.
"""

import asyncio
import bisect
import itertools

Waiter = tuple[int, int, "asyncio.Future[None]"]
"""The index, a number that makes it unique, and what wakes it."""


class IndexWaiters:
    """Loop-only. Waiters that are cancelled (a client that went away) leave nothing behind."""

    def __init__(self) -> None:
        self._waiting: list[Waiter] = []
        self._numbers = itertools.count()
        self.closed = False
        self.woken = 0
        """How many waiters were woken since the start."""

    def __len__(self) -> int:
        return len(self._waiting)

    def reached(self, index: int) -> None:
        """Everything up to `index` is applied: wake those who wait for it."""
        if not self._waiting or self._waiting[0][0] > index:
            return
        count = bisect.bisect_left(self._waiting, index + 1, key=_index_of)
        due, self._waiting = self._waiting[:count], self._waiting[count:]
        self._wake(due)

    def close(self) -> None:
        """Wake everybody; from now on waiting returns at once."""
        self.closed = True
        due, self._waiting = self._waiting, []
        self._wake(due)

    async def wait(self, index: int, timeout_s: float) -> bool:
        """Until `index` is applied; False when the time is over first, or nobody waits any more."""
        if self.closed:
            return False
        waiter = (index, next(self._numbers), asyncio.get_running_loop().create_future())
        bisect.insort(self._waiting, waiter)
        try:
            async with asyncio.timeout(timeout_s):
                await waiter[2]
        except TimeoutError:
            return False
        finally:
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
