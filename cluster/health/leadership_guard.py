"""Hands leadership over when this node is hindered from leading well and another voter is hindered less.

A hand-over that fails loses nothing. It is tried only when a fitter voter is there (raft/election/fitness.py), and not
again soon when no node took over.
"""

import logging
import math
from typing import Final

from cluster.core.core import Core
from raft.election.fitness import FIT

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5
PATIENCE_S: Final = 1.0
"""Seconds that a hindrance has to last before a hand-over: a machine that was suspended finds its clock wrong until it
hears the others, and a disk may stall for a moment. For a disk without room there is no wait: it refuses writes."""
RETRY_INTERVAL_S: Final = 60.0
"""Seconds between two tries: during a hand-over no write is accepted, for up to three seconds."""
FULL_RETRY_INTERVAL_S: Final = 5.0


class LeadershipGuard:
    """Checks twice a second whether to hand over. Use on the event loop only. Call `start` once the Raft node runs."""

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
        """Hand leadership over if this node leads, was hindered for long enough, and another voter is fitter."""
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
            self._next_try_s = -math.inf  # the others have elected this node again since, and may take over now
        if not leads or now_s < max(self._hindered_since_s + patience_s, self._next_try_s):
            return
        successor = raft.leadership.successor()
        if successor is None:
            return
        self._tried_term = raft.term
        self._next_try_s = now_s + (FULL_RETRY_INTERVAL_S if own.disk_is_low else RETRY_INTERVAL_S)
        logger.warning("handing leadership over to node %d, if it accepts: %s", successor, own)
        await raft.hand_over()
