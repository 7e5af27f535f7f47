"""How a follower catches up that is far behind: by small appends, and no more of them on the way than help.

What stands before a follower's disk, or before the one loop of either node, is no sooner there for having been sent
sooner: it only delays everything else that these disks and nodes have to do, such as the sends of clients.
"""

from typing import Final

BEHIND_BYTES: Final = 16 * 1024 * 1024
"""Distance in the log's bytes from which on a follower catches up."""
CATCH_UP_BYTES: Final = 512 * 1024
"""Entries in one append to a follower that catches up; a larger entry travels alone, always whole."""
APPENDS_MIN: Final = 2
"""One that the follower works on, and the next one."""
APPENDS_MAX: Final = 32
SLACK: Final = 1.5
"""Ratio to the shortest time of an acknowledgement, up to which another append on the way costs nobody anything."""


class CatchUpWindow:
    """Grows while acknowledgements come about as soon as the soonest one, as over a long way, and shrinks when they
    come later: then appends queue (as TCP Vegas does). Invariant: APPENDS_MIN <= appends <= APPENDS_MAX.
    """

    def __init__(self) -> None:
        self._soonest_s = float("inf")
        self._shrunk_s = float("-inf")
        self.appends = APPENDS_MIN
        """Number of appends that may be on the way."""

    def acknowledged(self, sent_s: float, at_s: float) -> None:
        """Note in which time an append was acknowledged that was sent to catch up, in monotonic seconds."""
        taken_s = at_s - sent_s
        self._soonest_s = min(self._soonest_s, taken_s)
        if taken_s <= SLACK * self._soonest_s:
            self.appends = min(APPENDS_MAX, self.appends + 1)
        elif sent_s >= self._shrunk_s:  # what was sent before says nothing of the window since
            self.appends, self._shrunk_s = max(APPENDS_MIN, self.appends // 2), at_s
