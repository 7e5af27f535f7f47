"""Tracks which nodes are present: those from which a message arrived lately. An open connection proves nothing: the
kernel of a node that is stopped, or whose machine hangs, keeps it open.
"""

from raft.library import now
from raft.membership import MEMBERS_MAX

PRESENT_TIMEOUTS = 2
"""Election timeouts without a message after which a node is absent; every node sends vital signs once per timeout."""
REMEMBERED_MAX = 2 * MEMBERS_MAX


class Presence:
    """Remembers when each node was heard last. Use it only on the event loop."""

    def __init__(self, election_timeout_ms: int) -> None:
        self._limit_s = PRESENT_TIMEOUTS * election_timeout_ms / 1000
        self._heard: dict[int, float] = {}

    def heard(self, peer: int) -> None:
        """Note that a message of the node has arrived."""
        self._heard[peer] = now()
        if len(self._heard) > REMEMBERED_MAX:  # drop the node that was silent for longest
            del self._heard[min(self._heard, key=lambda each: self._heard[each])]

    def silent_s(self, peer: int) -> float | None:
        """Return the seconds since the node was heard last; None if it never was."""
        heard_s = self._heard.get(peer)
        return None if heard_s is None else max(0.0, now() - heard_s)

    def is_present(self, peer: int) -> bool:
        """Return whether the node was heard within two election timeouts."""
        silent_s = self.silent_s(peer)
        return silent_s is not None and silent_s <= self._limit_s
