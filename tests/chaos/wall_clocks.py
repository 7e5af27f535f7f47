"""The wall clocks of the nodes. Faults move one at a time, and the replicated clock never follows a wrong one."""

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cluster.process.config import NodeConfig
from raft.health.clock_agreement import READING_INTERVALS
from tests.chaos.skewed_node import set_offset_ns

SLACK_MS: Final = 100
"""Tolerance in ms for the clock of this machine, the true clock, which may be adjusted a little meanwhile."""
COUNTS_FOR_S: Final = READING_INTERVALS * NodeConfig().election_timeout_ms / 1000
"""Seconds for which a node's reading of its clock may count: until then no other clock may be wrong."""
_NS_PER_MS: Final = 1_000_000


class WallClocks:
    """Owns the clocks: every change of a clock is made here."""

    def __init__(self, files: Mapping[int, Path], now_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._now_s = now_s
        self._right_since_s = {node_id: float("-inf") for node_id in files}
        for file in files.values():
            set_offset_ns(file, 0)

    def shift(self, node_id: int, offset_ms: int) -> None:
        """Set the node's clock `offset_ms` ahead of the true time from now on; 0 is right."""
        self._right_since_s[node_id] = self._now_s() if offset_ms == 0 else float("inf")
        set_offset_ns(self._files[node_id], offset_ms * _NS_PER_MS)

    def others_count_for_s(self, node_id: int) -> float:
        """Return for how many seconds another node's clock may still count as wrong; 0 when this node's clock may be
        moved.
        """
        others = [since_s for other, since_s in self._right_since_s.items() if other != node_id]
        return max(0.0, COUNTS_FOR_S - (self._now_s() - max(others, default=float("-inf"))))

    async def wait_for_others(self, node_id: int) -> None:
        """Wait until the clock of that node may be wrong: those of all others have been right for COUNTS_FOR_S."""
        while left_s := self.others_count_for_s(node_id):
            await asyncio.sleep(min(left_s, COUNTS_FOR_S))

    def latest_ms(self) -> float:
        """Return an upper bound in ms of the time of any entry applied until now, whatever clock was wrong."""
        return self._now_s() * 1000 + SLACK_MS
