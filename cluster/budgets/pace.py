"""Work on the loop in slices: whoever looks at one thing after the other rests in between.

The loop serves everybody, so nobody keeps it for longer than SLICE_S: work that may be longer than that is cut into
steps of which each is short, and asks after each of them whether it is time to rest. A step is one message, one row,
or one piece of a block (cluster/messages/blocks.py), never all that a request is about.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from cluster.budgets import time_shares

SLICE_S: Final = 0.005
"""After this long the loop does everything else that waits."""
SEARCH_S_MAX: Final = 0.25
"""A search answers when it has looked for this long, whatever it found."""

Value = TypeVar("Value")


class Pace:
    """Of one piece of work, from its making on."""

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
        """That long it waited for something else, and the loop did what waited: this was no work."""
        self._begun_s += seconds

    async def rest(self) -> None:
        """Let the loop do everything else that waits; whoever uses more than his share of it waits for longer."""
        await time_shares.rest(self._now_s() - self._rested_s)
        self._rested_s = self._now_s()
        self.rests += 1

    async def step(self) -> None:
        """A step is done: rest if it is time to."""
        if self.is_tired:
            await self.rest()

    async def through(self, work: Generator[None, None, Value]) -> Value:
        """The value of a generator that stops before each step."""
        while True:
            try:
                next(work)
            except StopIteration as ended:
                value: Value = ended.value
                return value
            await self.step()
