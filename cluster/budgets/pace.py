"""Pacing of long work on the event loop: work is done in slices, with a rest after each.

The loop serves every client, so no work keeps it for longer than SLICE_S: longer work is cut into short steps, and
asks after each step whether it is time to rest. A step is one message, one row, or one piece of a block
(cluster/messages/blocks.py), never a whole request.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from cluster.budgets import time_shares

SLICE_S: Final = 0.005
"""Seconds of work after which the loop runs everything else that waits."""
SEARCH_S_MAX: Final = 0.25
"""Seconds after which a search answers with the results found so far."""

Value = TypeVar("Value")


class Pace:
    """Measures the time of one piece of work, beginning when the object is created."""

    def __init__(self) -> None:
        self._now_s = asyncio.get_running_loop().time
        self._begun_s = self._rested_s = self._now_s()
        self.rests = 0

    @property
    def is_tired(self) -> bool:
        return self._now_s() - self._rested_s >= SLICE_S

    @property
    def is_over(self) -> bool:
        return self._now_s() - self._begun_s >= SEARCH_S_MAX

    def exclude(self, seconds: float) -> None:
        """Do not count `seconds` as work: they were spent waiting, while the loop ran other work."""
        self._begun_s += seconds

    async def rest(self) -> None:
        """Let the loop run everything else that waits. A client that uses more than its share waits longer."""
        await time_shares.rest(self._now_s() - self._rested_s)
        self._rested_s = self._now_s()
        self.rests += 1

    async def step(self) -> None:
        """Rest if the slice is used up. Call it after each step."""
        if self.is_tired:
            await self.rest()

    async def through(self, work: Generator[None, None, Value]) -> Value:
        """Run a generator that yields before each step, with rests in between, and return its value."""
        while True:
            try:
                next(work)
            except StopIteration as ended:
                value: Value = ended.value
                return value
            await self.step()
