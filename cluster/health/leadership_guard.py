"""Hands leadership over while something hinders this node from leading well and nothing, or less, hinders another.

Nothing is lost when it does not: a hand-over is tried only when a voter is there that is fitter (raft/fitness.py), and
not again soon when nobody took over.
"""

import logging
import math
from typing import Final

from cluster.core.core import Core
from raft.fitness import FIT

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
PATIENCE_S: Final = 1.0
"""A hindrance has to last this long: a machine that was suspended finds its clock wrong until it hears the others, and
a disk may stand for a moment. A disk without room refuses writes, and is not waited for."""
RETRY_INTERVAL_S: Final = 60.0
"""While a hand-over is tried nothing is written, for up to three seconds."""
FULL_RETRY_INTERVAL_S: Final = 5.0


class LeadershipGuard:
    """Loop-only. `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task = core.background.task("leadership-guard", "see whether another node should lead", self._round)
        self._hindered_since_s: float | None = None
        self._next_try_s = -math.inf
        self._tried_term = 0

    def start(self) -> None:
        self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    async def _round(self) -> float:
        await self.look()
        return INTERVAL_S

    async def look(self) -> None:
        """Hand over if this node leads, has been hindered for long enough, and another is fitter."""
        raft, now_s = self._core.raft, self._core.steady_ms() / 1000
        own = raft.leadership.own_fitness
        if own == FIT:
            self._hindered_since_s = None
            return
        if self._hindered_since_s is None:
            self._hindered_since_s = now_s
        patience_s = 0.0 if own.disk_is_low else PATIENCE_S
        leads = raft.is_leader or (raft.role == "leader" and own.has_backlog)
        if own.disk_is_low and raft.term != self._tried_term:
            self._next_try_s = -math.inf  # who did not take over then has elected this node again, and may be there now
        if not leads or now_s < max(self._hindered_since_s + patience_s, self._next_try_s):
            return
        successor = raft.leadership.successor()
        if successor is None:
            return
        self._tried_term = raft.term
        self._next_try_s = now_s + (FULL_RETRY_INTERVAL_S if own.disk_is_low else RETRY_INTERVAL_S)
        logger.warning("handing leadership over, to node %d if it takes it: %s", successor, own)
        await raft.hand_over()
