"""Assigns messages to the two connections to a peer, and paces the connection that carries data.

The control lane carries small messages that must not wait: votes, heartbeats, answers. The data lane carries messages
that may be large; they are sent in pieces, and only as much is under way as arrives soon (docs/decisions.md, 29).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from raft.errors import ProtocolError
from raft.library import now
from raft.messages import Append, Message, SnapshotBegin, SnapshotChunk, SnapshotEnd

CONTROL, DATA = 0, 1

ARRIVED_BYTES = 32 * 1024
"""The receiver reports every arrival of this number of bytes; less within an election timeout does not count as
contact.
"""
PIECE_BYTES = 32 * 1024
WINDOW_BYTES_MIN = ARRIVED_BYTES + PIECE_BYTES
"""Minimum window in bytes; with less, bytes that the receiver has not reported yet would block the next piece for ever.
"""
WINDOW_BYTES_FIRST = 128 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
FULL_BYTES = 4 * 1024 * 1024
"""Number of bytes waiting in a lane from which on no more is read from the log for it."""
SLACK_SHARE = 1 / 8
"""Share of an election timeout for which sent data may stand in queues on its way."""
BASE_PERIOD_S = 10.0
"""Length of a period in seconds: the shortest delay of this and the previous period counts as that of an empty path."""
BASE_SHARE_MAX = 1 / 4
"""Maximum share of an election timeout for the base delay: a queue that is never empty would be taken for the path."""
CUT_MIN = 0.5

Part = bytes | memoryview
_OF_SNAPSHOTS = SnapshotBegin, SnapshotChunk, SnapshotEnd


class Lanes(Protocol):
    """The methods that the handlers use of the transport beside sending."""

    def send_behind(self, peer: int, message: Message | Append) -> bool:
        """Send any message by the data lane: it arrives after everything sent there before. Returns whether it was
        taken.
        """
        ...

    def data_waits(self, peer: int) -> bool:
        """Return whether data for the peer has not been handed to its connection yet."""
        ...

    def is_full(self, peer: int) -> bool:
        """Return whether FULL_BYTES are waiting, so that nothing should be added."""
        ...

    def drop_waiting(self, peer: int) -> None:
        """Drop the frames of which no byte has been sent yet: the peer could not use them any more."""
        ...


def lane_of(message: Message | Append) -> int:
    """Return the lane of a message: appends with entries and snapshot messages are data, all others are control."""
    if isinstance(message, Append):
        return DATA if message.entries else CONTROL
    return DATA if isinstance(message, _OF_SNAPSHOTS) else CONTROL


class Pace:
    """Limits how many bytes may be under way, from the receiver's reports of arrived bytes.

    The window grows by the arrived bytes while they arrive quickly, and shrinks when sent data stands in queues for
    longer than SLACK_SHARE. Invariant: 0 <= arrived <= sent.
    """

    def __init__(self, timeout_s: float) -> None:
        """Create a pace; `timeout_s` is the election timeout in seconds."""
        self._slack_s, self._base_s_max, self._idle_s = SLACK_SHARE * timeout_s, BASE_SHARE_MAX * timeout_s, timeout_s
        self._window = WINDOW_BYTES_FIRST
        self._sent = self._arrived = 0
        self._marks: deque[tuple[int, float]] = deque()  # total bytes sent, and the time
        self._base_s = self._earlier_base_s = float("inf")
        self._base_since_s = self._cut_at_s = self._sent_at_s = now()

    @property
    def under_way_bytes(self) -> int:
        return self._sent - self._arrived

    @property
    def room_bytes(self) -> int:
        """Number of bytes that may still be sent; negative after the window has shrunk."""
        return self._window - self.under_way_bytes

    def sent(self, size_bytes: int) -> None:
        at_s = now()
        if at_s - self._sent_at_s > self._idle_s:
            self._window = min(self._window, WINDOW_BYTES_FIRST)
        self._sent_at_s = at_s
        end = self._sent + size_bytes
        self._marks.extend((mark, at_s) for mark in range(self._sent + PIECE_BYTES, end, PIECE_BYTES))
        self._marks.append((end, at_s))
        self._sent = end

    def arrived(self, total_bytes: int) -> None:
        """Note that the first `total_bytes` of all sent bytes arrived. Raises ProtocolError when the number is
        impossible.
        """
        if not self._arrived <= total_bytes <= self._sent:
            raise ProtocolError(
                f"a peer reports {total_bytes} arrived bytes: {self._sent} were sent, and {self._arrived} reported"
            )
        used = self.under_way_bytes
        gained, self._arrived = total_bytes - self._arrived, total_bytes
        sent_at_s = None
        while self._marks and self._marks[0][0] <= total_bytes:
            sent_at_s = self._marks.popleft()[1]
        if sent_at_s is not None:
            self._adapt(now() - sent_at_s, gained, used)

    def _adapt(self, delay_s: float, gained: int, used: int) -> None:
        at_s = now()
        if at_s - self._base_since_s > BASE_PERIOD_S:
            self._base_s, self._earlier_base_s, self._base_since_s = float("inf"), self._base_s, at_s
        self._base_s = min(self._base_s, delay_s)
        queued_s = delay_s - min(self._base_s, self._earlier_base_s, self._base_s_max)
        if queued_s > self._slack_s:
            if at_s - self._cut_at_s > delay_s:  # shrink once for data sent before the last cut
                self._cut_at_s = at_s
                shrunk = int(self._window * max(CUT_MIN, self._slack_s / queued_s))
                self._window = max(WINDOW_BYTES_MIN, shrunk)
        elif queued_s < self._slack_s / 2 and 2 * used >= self._window:
            self._window = min(WINDOW_BYTES_MAX, self._window + gained)


class DataLane:
    """Owns the frames that wait for one connection, and writes them in order, no faster than `Pace` allows. `write`
    never blocks.
    """

    def __init__(self, write: Callable[[Sequence[Part]], None], election_timeout_ms: int) -> None:
        self._write = write
        self._pace = Pace(election_timeout_ms / 1000)
        self._begun: deque[Part] = deque()  # the unsent rest of a frame
        self._begun_bytes = 0
        self._frames: deque[tuple[int, list[bytes]]] = deque()
        self.waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= FULL_BYTES

    def send(self, parts: list[bytes]) -> None:
        """Send the parts of one frame. The parts stay the caller's and must not change until they are sent."""
        size_bytes = sum(map(len, parts))
        if not self.waiting_bytes and size_bytes <= self._pace.room_bytes:
            self._pace.sent(size_bytes)
            self._write(parts)
            return
        self._frames.append((size_bytes, parts))
        self.waiting_bytes += size_bytes
        self._pump()

    def arrived(self, total_bytes: int) -> None:
        """Note that the receiver has the first `total_bytes` of all written bytes. Raises ProtocolError."""
        self._pace.arrived(total_bytes)
        self._pump()

    def drop_waiting(self) -> None:
        """Drop the frames of which no byte has been sent yet."""
        self._frames.clear()
        self.waiting_bytes = self._begun_bytes

    def _pump(self) -> None:
        while self.waiting_bytes:
            next_bytes = self._begun_bytes or self._frames[0][0]
            wanted = min(PIECE_BYTES, next_bytes)
            if self._pace.room_bytes < wanted:
                return
            if not self._begun_bytes:
                self._begun_bytes, parts = self._frames.popleft()
                self._begun = deque(filter(None, parts))
            piece = self._take(wanted)
            self._begun_bytes -= wanted
            self.waiting_bytes -= wanted
            self._pace.sent(wanted)
            self._write(piece)

    def _take(self, size_bytes: int) -> list[Part]:
        piece: list[Part] = []
        while size_bytes:
            part = self._begun.popleft()
            if len(part) > size_bytes:
                view = memoryview(part)
                self._begun.appendleft(view[size_bytes:])
                part = view[:size_bytes]
            piece.append(part)
            size_bytes -= len(part)
        return piece
