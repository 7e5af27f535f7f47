"""Which nodes are there: those of whom something was heard lately. A connection alone says nothing: the kernel of a
node that is stopped, or whose machine hangs, keeps it.
"""

from raft.library import now
from raft.membership import MEMBERS_MAX

PRESENT_TIMEOUTS = 2
"""Every node tells its vital signs once an election timeout."""
REMEMBERED_MAX = 2 * MEMBERS_MAX


class Presence:
    """Loop-only."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._limit_s = PRESENT_TIMEOUTS * election_timeout_ms / 1000
        self._heard: dict[int, float] = {}

    def heard(self, peer: int) -> None:
        """A message of that node has arrived."""
        self._heard[peer] = now()
        if len(self._heard) > REMEMBERED_MAX:  # of nodes that were removed, whoever was silent for longest
            del self._heard[min(self._heard, key=lambda each: self._heard[each])]

    def silent_s(self, peer: int) -> float | None:
        """How long ago that was; None if it never did."""
        heard_s = self._heard.get(peer)
        return None if heard_s is None else max(0.0, now() - heard_s)

    def is_present(self, peer: int) -> bool:
        """Whether that was within two election timeouts."""
        silent_s = self.silent_s(peer)
        return silent_s is not None and silent_s <= self._limit_s
