"""Logs when this node no longer sees a majority of the voters, and when it sees one again, with the nodes' names."""

import logging
from collections.abc import Iterable
from typing import Final

from cluster.core.core import Core

logger = logging.getLogger(__name__)

INTERVAL_S: Final = 0.5


class QuorumWatch:
    """Looks twice a second. Use on the event loop only. Call `start` once the Raft node runs."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task = core.background.task("quorum-watch", "see whether a majority answers", self._round)
        self._has_quorum: bool | None = None
        self._lost_at_ms: int | None = None
        """Steady time of the last loss; None while this process has not lost a majority."""

    def start(self) -> None:
        self._task.start(INTERVAL_S)

    async def stop(self) -> None:
        await self._task.stop()

    async def _round(self) -> float:
        self.look()
        return INTERVAL_S

    def look(self) -> None:
        """Log a change since the last look. A start is none: whom it waits for is logged by the election."""
        raft = self._core.raft
        has_quorum = raft.leadership.quorum_margin() >= 0
        before, self._has_quorum = self._has_quorum, has_quorum
        if before == has_quorum or (before is None and not has_quorum):
            return
        voters = raft.membership.current.voters
        heard = raft.leadership.heard_voters()
        if not has_quorum:
            self._lost_at_ms = self._core.steady_ms()
            logger.warning(
                "quorum lost: %d of %d voters answer; silent: %s",
                len(heard),
                len(voters),
                self._named(voters - heard),
            )
        elif self._lost_at_ms is None:
            logger.info("quorum: %d of %d voters answer: %s", len(heard), len(voters), self._named(heard))
        else:
            lost_s = (self._core.steady_ms() - self._lost_at_ms) / 1000
            logger.warning(
                "quorum won again after %.1f s: %d of %d voters answer: %s",
                lost_s,
                len(heard),
                len(voters),
                self._named(heard),
            )

    def _named(self, nodes: Iterable[int]) -> str:
        named = ", ".join(f"node {each} ({self._core.url_of(each) or 'no address'})" for each in sorted(nodes))
        return named or "none"
