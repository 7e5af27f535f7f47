"""The wall clocks of the nodes, which faults move, and how far the replicated clock can have come at most."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.chaos.skewed_node import set_offset_ns

SLACK_MS: Final = 100
"""The true clock is that of this machine, which may be set a little meanwhile."""
_NS_PER_MS: Final = 1_000_000


class WallClocks:
    """Whoever moves a clock does it here."""

    def __init__(self, files: Mapping[int, Path], now_s: Callable[[], float] = time.time) -> None:
        self._files = files
        self._now_s = now_s
        self._ahead_ms = 0
        """The most that any was. The replicated clock goes on from there at its pace (raft/clock.py)."""
        for file in files.values():
            set_offset_ns(file, 0)

    def shift(self, node_id: int, offset_ms: int) -> None:
        """The node's clock is `offset_ms` ahead of the true time from now on; 0 is right."""
        self._ahead_ms = max(self._ahead_ms, offset_ms)
        set_offset_ns(self._files[node_id], offset_ms * _NS_PER_MS)

    def latest_ms(self) -> float:
        """No entry that was applied until now has a later time."""
        return self._now_s() * 1000 + self._ahead_ms + SLACK_MS
