"""Clock faults: the wall clock of a node jumps, or swings to and fro. The monotonic clock is left alone."""

import asyncio
import contextlib
import random
from functools import partial
from typing import Final

from store.limits import DEDUPE_WINDOW_MS
from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import FaultKind, leader_or_any

JUMP_MS_MAX: Final = DEDUPE_WINDOW_MS // 45
"""20 s. The replicated clock never goes back: it stands still for as long as a clock was ahead, and with it the times
of the checks, for which the end of a run waits. Far below the dedupe window, so that duplicates stay forbidden."""
STROBE_S: Final = (0.02, 0.2)


class Jump:
    """Forward or back, once, and back to the true time in the end."""

    def __init__(self, sign: int, cluster: ChaosCluster, rng: random.Random) -> None:
        self._sign, self._cluster, self._rng = sign, cluster, rng
        self._node = 0

    async def start(self) -> str:
        self._node = await leader_or_any(self._cluster, self._rng)
        # As many jumps of milliseconds as of seconds.
        offset_ms = self._sign * int(10 ** self._rng.uniform(1, 4.3))
        offset_ms = max(-JUMP_MS_MAX, min(JUMP_MS_MAX, offset_ms))
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
        offset_ms = self._rng.choice((-1, 1)) * self._rng.randint(50, JUMP_MS_MAX // 4)
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
