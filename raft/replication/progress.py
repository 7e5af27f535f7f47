"""The leader's knowledge of one follower: how far its log matches, and which appends are on the way to it.

Two modes, as in etcd's raft: *probing* sends one append at a time until the place where the logs meet is known;
*streaming* keeps a window of appends in flight (row 13), which is narrow while the follower catches up. Dropping an
append on the way is safe: the next one is refused and the leader probes. Rows are those of the table in
docs/safe-pysyncobj.md.
"""

from collections import deque
from typing import NamedTuple

from raft.library import now
from raft.replication.catching_up import CatchUpWindow

WINDOW_MESSAGES = 8
WINDOW_BYTES = 16 * 1024 * 1024


class _Sent(NamedTuple):
    """An append on the way."""

    last_index: int
    size_bytes: int
    at_s: float | None
    """Time when it was sent, if the follower catches up."""


class Progress:
    """Invariants: counted <= acked < next_index; counted and acked never decrease within one term (row 4); the window
    only holds what is unacknowledged.
    """

    def __init__(self, next_index: int) -> None:
        self.acked = 0
        """The follower's fsynced log equals ours up to here, by its own word in this term."""
        self.counted = 0
        """As much of that as may be counted for a commit, by its own word."""
        self.next_index = next_index
        self.announced_commit = 0
        """The commit index in what was sent last."""
        self.votes = False
        """By its own word, its disk holds everything it ever acknowledged."""
        self.probing = True
        self._probe_sent = False
        self._probe_prev = next_index - 1
        self._may_probe_anew = True
        self._stalled = False
        self._in_flight: deque[_Sent] = deque()
        self._in_flight_bytes = 0
        self._catch_up = CatchUpWindow()
        self._restarted = False

    @property
    def is_in_flight(self) -> bool:
        """True when an append with entries is on its way, as far as is known."""
        return bool(self._in_flight)

    def take_restarted(self) -> bool:
        """Return True once after each restart: the data that still waits to be sent is of no use any more."""
        restarted, self._restarted = self._restarted, False
        return restarted

    @property
    def has_room(self) -> bool:
        """False while nothing may be sent, whether the follower catches up or not."""
        return not (self.probing and self._probe_sent) and self._in_flight_bytes < WINDOW_BYTES

    def gains(self, position: int, end: int) -> bool:
        """Return whether it comes back to the `end` of the log although others are spared."""
        return self._catch_up.gains(position, end, now())

    def is_near(self) -> None:
        """Note that it is not far behind: whether it gains is judged from when it falls behind."""
        self._catch_up.is_near()

    def may_send(self, *, catches_up: bool = False) -> bool:
        """Return whether an append with entries may be sent now, to a follower that is far behind or not."""
        appends = self._catch_up.appends if catches_up else WINDOW_MESSAGES
        return self.has_room and (self.probing or len(self._in_flight) < appends)

    def sent(self, last_index: int, size_bytes: int, *, catches_up: bool = False) -> None:
        """Note that an append up to `last_index` has left."""
        if self.probing:
            self._probe_prev = self.next_index - 1
        self.next_index = last_index + 1
        self._in_flight.append(_Sent(last_index, size_bytes, now() if catches_up else None))
        self._in_flight_bytes += size_bytes
        self._probe_sent = self.probing

    def on_ack(self, match_index: int, *, counts: bool = True, heartbeat: bool = False) -> None:
        """The follower has everything up to match_index on disk. A late ack of less changes nothing.

        The answer to a `heartbeat` says nothing of entries on their way. It ends a probe when it
        confirms where the logs meet and all that was sent is there: the answer to the probe itself may be lost.

        When it took only a part of a probe, its disk is full: the rest is tried again, at once while that gets on, then
        with the heartbeats. Until then no answer to something older, or to a heartbeat, opens the window.
        """
        advanced = match_index > self.acked
        waited = bool(self._in_flight)
        self.acked = max(self.acked, match_index)
        if counts:
            self.counted = max(self.counted, match_index)
        self.next_index = max(self.next_index, self.acked + 1)
        sent_s = None
        while self._in_flight and self._in_flight[0].last_index <= self.acked:
            arrived = self._in_flight.popleft()
            self._in_flight_bytes -= arrived.size_bytes
            sent_s = arrived.at_s
        if sent_s is not None:
            self._catch_up.acknowledged(sent_s, now())
        if heartbeat:
            if not self._in_flight and not self._stalled and match_index >= self.next_index - 1:
                self.probing = self._probe_sent = False
            return
        if self.probing and self._in_flight:
            self.restart()
            self._probe_sent = self._stalled = not advanced
        elif waited or advanced or not self._probe_sent:
            self.probing = self._probe_sent = self._stalled = False

    def on_heartbeat(self) -> None:
        """A follower that took nothing of the last probe may be tried again, and a probe that was lost be sent anew."""
        self._may_probe_anew = True
        if self._stalled:
            self._probe_sent = self._stalled = False

    def on_reject(self, rejected_prev: int, hint: int) -> bool:
        """The append after rejected_prev did not fit. Returns whether the news is new: stale refusals are ignored.

        While a probe is on the way, a refusal of anything else is an answer to what was sent before it, or the probe
        was lost: so one between two heartbeats counts. A follower that stood for a minute answers hundreds at once.
        """
        if rejected_prev <= self.acked or (self.probing and rejected_prev >= self.next_index):
            return False
        if self._probe_sent and rejected_prev != self._probe_prev:
            if not self._may_probe_anew:
                return False
            self._may_probe_anew = False
        self.restart(max(self.acked + 1, min(hint, rejected_prev)))
        return True

    def restart(self, next_index: int | None = None) -> None:
        """Forget what is on the way (a lost connection, a refusal, a silent peer) and probe again."""
        self.next_index = self.acked + 1 if next_index is None else next_index
        self.probing, self._probe_sent, self._stalled = True, False, False
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._restarted = True
