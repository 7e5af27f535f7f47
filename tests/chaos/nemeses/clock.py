"""Clock faults: the wall clock of a node jumps, or swings to and fro. The monotonic clock is left alone."""

import asyncio
import contextlib
import random
from functools import partial
from typing import Final

from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import FaultKind, leader_or_any

YEAR_MS: Final = 365 * 24 * 3_600_000
SWINGS_MS: Final = (50, 500, 5_000, YEAR_MS)
STROBE_S: Final = (0.02, 0.2)


class Jump:
    """The clock jumps forward or back once, and returns to the true time in the end."""

    def __init__(self, sign: int, cluster: ChaosCluster, rng: random.Random) -> None:
        self._sign, self._cluster, self._rng = sign, cluster, rng
        self._node = 0

    async def start(self) -> str:
        self._node = await leader_or_any(self._cluster, self._rng)
        await self._cluster.clocks.wait_for_others(self._node)
        # As many jumps of milliseconds as of days; every other jump is a year.
        offset_ms = self._sign * min(YEAR_MS, int(10 ** self._rng.uniform(1, 20)))
        self._cluster.clocks.shift(self._node, offset_ms)
        return f"the clock of node {self._node} jumps by {offset_ms:+d} ms"

    async def heal(self) -> str:
        if self._node:
            self._cluster.clocks.shift(self._node, 0)
        return f"the clock of node {self._node} is right"


class Strobe:
    """The clock swings between the true time and another one, many times a second."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng
        self._node = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> str:
        self._node = await leader_or_any(self._cluster, self._rng)
        await self._cluster.clocks.wait_for_others(self._node)
        offset_ms = self._rng.choice((-1, 1)) * self._rng.choice(SWINGS_MS)
        self._task = asyncio.create_task(self._swing(offset_ms))
        return f"the clock of node {self._node} swings by {offset_ms:+d} ms"

    async def heal(self) -> str:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._cluster.clocks.shift(self._node, 0)
        return f"the clock of node {self._node} is right"

    async def _swing(self, offset_ms: int) -> None:
        wrong = False
        while True:
            wrong = not wrong
            self._cluster.clocks.shift(self._node, offset_ms if wrong else 0)
            await asyncio.sleep(self._rng.uniform(*STROBE_S))


KINDS = (
    FaultKind("clock-forward", "clock", partial(Jump, 1)),
    FaultKind("clock-back", "clock", partial(Jump, -1)),
    FaultKind("clock-strobe", "clock", Strobe),
)
