"""Health of the disks under the nodes' logs: which have no room, and which are slow (docs/decisions.md, 30).

Every node reports its own disk with its vital signs. *Low* is a node's report about its own disk. *Slow* is a
comparison: the pace is the time that the fastest majority of the voters needs for a sync, which is also the time of a
commit under the best leader. A disk is slow when a sync takes many times the pace, and long enough to matter. When a
majority is slow, no disk is called slow: another leader would gain nothing.
"""

import statistics
from collections import deque
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, Self

from raft.config import RaftConfig
from raft.library import now
from raft.membership import Membership
from raft.messages import DiskVitals

REPORT_INTERVALS: Final = 5
"""Number of election timeouts for which a report counts."""
SYNCS: Final = 7
"""Number of last syncs whose median counts: a single late sync is no sign of a slow disk."""
SYNCS_COUNT_FOR_S: Final = 60.0
"""Seconds without a sync after which the disk's pace is unknown."""
SLOW_MS: Final = 100
SLOW_FACTOR: Final = 4
SLOW_UNTIL_MS: Final = 50
SLOW_UNTIL_FACTOR: Final = 2
MS_MAX: Final = 1 << 40


class Report(NamedTuple):
    """A disk report of another node, and the time in seconds at which it arrived."""

    disk: DiskVitals
    heard_at_s: float


class DiskHealth:
    """Knows the disk health of this node and of the nodes it hears. Use it only on the event loop."""

    def __init__(self, node_id: int, voters: Callable[[], Collection[int]], *, interval_ms: int) -> None:
        self.node_id = node_id
        self._voters = voters
        self._interval_ms = interval_ms
        self._reports: dict[int, Report] = {}
        self._free_bytes = 0
        self._is_low = False
        self._syncs_ms: deque[float] = deque(maxlen=SYNCS)
        self._synced_at_s = float("-inf")
        self._low: frozenset[int] = frozenset()
        self._slow: set[int] = set()
        self.unsynced_since: Callable[[], float | None] = lambda: None
        """Returns since when (s) the log waits for the disk without progress; None while it does not wait. Set by the
        owner.
        """
        self.index_waits_since: Callable[[], float | None] = lambda: None
        """The same for the index, which takes no writes while its flushes do not keep up."""
        self.has_news = False
        """True when the other nodes should be told at once."""
        self.on_log_full: Callable[[], None] = lambda: None
        """Called whenever the log could not grow. Set by the owner, which knows the free space."""

    @classmethod
    def of(cls, config: RaftConfig, membership: Membership) -> Self:
        """Return the disk health for the node of `config` among the voters in force at each moment."""
        return cls(config.node_id, lambda: membership.current.voters, interval_ms=config.election_timeout_ms)

    # --- this node's disk ----------------------------------------------------------------------------------------

    def note_space(self, free_bytes: int, *, is_low: bool) -> None:
        """Take over the free space that the owner has measured."""
        self.has_news = self.has_news or is_low != self._is_low
        self._free_bytes, self._is_low = free_bytes, is_low
        self._look_for_low()

    def note_sync(self, took_s: float) -> None:
        """Take over the duration of a sync that had something to write."""
        self._syncs_ms.append(took_s * 1000)
        self._synced_at_s = now()

    def report(self) -> DiskVitals:
        """Return this node's report for the other nodes."""
        sync_ms = self._sync_ms()
        return DiskVitals(
            free_bytes=max(0, self._free_bytes),
            is_low=self._is_low,
            sync_ms=None if sync_ms is None else min(max(0, round(sync_ms)), MS_MAX),
        )

    def _sync_ms(self) -> float | None:
        waiting_s = [since_s for since_s in (self.unsynced_since(), self.index_waits_since()) if since_s is not None]
        waited_ms = (now() - min(waiting_s)) * 1000 if waiting_s else 0.0
        if not self._syncs_ms or now() - self._synced_at_s > SYNCS_COUNT_FOR_S:
            return waited_ms or None
        return max(statistics.median_low(self._syncs_ms), waited_ms)

    # --- the others' ---------------------------------------------------------------------------------------------

    def hear(self, peer: int, disk: DiskVitals) -> None:
        self._reports[peer] = Report(disk, now())
        self._look_for_low()

    def known(self) -> dict[int, DiskVitals]:
        """Return the reports of this node and of the nodes that have reported lately."""
        self._forget_old()
        return {self.node_id: self.report(), **{peer: report.disk for peer, report in self._reports.items()}}

    def _forget_old(self) -> None:
        oldest_s = now() - REPORT_INTERVALS * self._interval_ms / 1000
        self._reports = {peer: report for peer, report in self._reports.items() if report.heard_at_s >= oldest_s}

    def _look_for_low(self) -> None:
        self._forget_old()
        low = {peer for peer, report in self._reports.items() if report.disk.is_low}
        self._low = frozenset(low | {self.node_id} if self._is_low else low)

    # --- what comes of it ----------------------------------------------------------------------------------------

    def is_low(self, node_id: int) -> bool:
        """Return whether the node has reported that its disk has no room; a node without a report counts as having
        room.
        """
        return node_id in self._low

    def low(self) -> frozenset[int]:
        """Return the nodes whose disks have no room by their last report."""
        return self._low

    def is_slow(self, node_id: int) -> bool:
        """Return whether the node's disk takes many times as long for a sync as a majority needs."""
        return node_id in self.slow()

    def slow(self) -> frozenset[int]:
        """Return the nodes whose disks are slow. A slow disk counts as slow until it is well below the bounds."""
        known_ms = {node_id: disk.sync_ms for node_id, disk in self.known().items() if disk.sync_ms is not None}
        pace_ms = pace(known_ms, self._voters())
        if pace_ms is None:
            self._slow.clear()
            return frozenset()
        self._slow = {
            node_id
            for node_id, sync_ms in known_ms.items()
            if (sync_ms >= SLOW_MS and sync_ms >= SLOW_FACTOR * pace_ms)
            or (node_id in self._slow and sync_ms >= SLOW_UNTIL_MS and sync_ms >= SLOW_UNTIL_FACTOR * pace_ms)
        }
        return frozenset(self._slow)


def pace(known_ms: dict[int, int], voters: Collection[int]) -> int | None:
    """Return the sync time in ms of the slowest disk of the fastest majority; None while fewer are known. Learners do
    not count.
    """
    counted = sorted(sync_ms for node_id, sync_ms in known_ms.items() if node_id in voters)
    majority = len(voters) // 2 + 1
    return counted[majority - 1] if len(counted) >= majority else None
