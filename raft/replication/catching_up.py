"""Way in which a follower catches up that is far behind: by small appends, and no more of them on the way than help.

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
SLACK: Final = 2.5
"""Ratio to the shortest time of an acknowledgement, up to which another append on the way is worth it: one that arrives
during a sync waits for the next one, which is twice that time, and shares it with others.
"""
GAIN_PERIOD_S: Final = 1.0
GAIN: Final = 2
"""Ratio of the bytes sent to a follower and the growth of the log, below which catching up would never end."""


class CatchUpWindow:
    """Grows while acknowledgements come about as soon as the soonest one, as over a long way, and shrinks when they
    come later: then appends queue (as TCP Vegas does). Invariant: APPENDS_MIN <= appends <= APPENDS_MAX.
    """

    def __init__(self) -> None:
        self._looked: tuple[float, int, int] | None = None  # when, and where the follower and the log were
        self._gains = True
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

    def is_near(self) -> None:
        """Begin anew to judge whether the follower gains: one that is sent what is appended, and no more, does not."""
        self._looked, self._gains = None, True

    def gains(self, position: int, end: int, at_s: float) -> bool:
        """Return whether the follower, which is to be sent the log from `position` on, comes back to its `end` although
        others are spared: within the last GAIN_PERIOD_S it was sent GAIN times what was appended.
        """
        if self._looked is None:
            self._looked = at_s, position, end
        looked_s, position_then, end_then = self._looked
        if at_s - looked_s >= GAIN_PERIOD_S:
            sent_bytes = position - position_then
            self._gains = sent_bytes > 0 and sent_bytes >= GAIN * (end - end_then)
            self._looked = at_s, position, end
        return self._gains
