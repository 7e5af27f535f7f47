"""Measures how long entries have been waiting for the disk."""

from typing import Final

from raft.library import now
from store.log.commit_log import CommitLog

OVERDUE_TIMEOUTS: Final = 4
"""A leader whose oldest unsynced entry has waited for this many election timeouts steps down: it can commit nothing."""


class Unsynced:
    """Measures how long the oldest unsynced entry has waited, as exactly as ticks are close. Loop-only."""

    def __init__(self, log: CommitLog, election_timeout_ms: int) -> None:
        self._log = log
        self._limit_s = OVERDUE_TIMEOUTS * election_timeout_ms / 1000
        self._since_s: float | None = None
        self._synced_index = log.synced_index  # when it was last looked at

    def since(self) -> float | None:
        """Return the time since which entries wait for the disk and none has got there; None while none waits."""
        if self._log.synced_index >= self._log.last_index:
            self._since_s = None
        elif self._since_s is None or self._log.synced_index != self._synced_index:
            self._since_s = now()
        self._synced_index = self._log.synced_index
        return self._since_s

    def is_overdue(self) -> bool:
        """Return whether an entry has been waiting for OVERDUE_TIMEOUTS election timeouts."""
        since_s = self.since()
        return since_s is not None and now() - since_s > self._limit_s
