"""Which of the two connections to a peer a message takes, and the pace of the one that carries data.

Control is for what is small and must not wait: votes, heartbeats, answers. Data is for what may be large; it goes in
pieces, and no more of it is under way than arrives soon (docs/decisions.md, 29).
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from raft.errors import ProtocolError
from raft.library import now
from raft.messages import Append, Message, SnapshotBegin, SnapshotChunk, SnapshotEnd

CONTROL, DATA = 0, 1

ARRIVED_BYTES = 32 * 1024
"""The receiver reports the arrival of each such portion; less within an election timeout is no contact."""
PIECE_BYTES = 32 * 1024
WINDOW_BYTES_MIN = ARRIVED_BYTES + PIECE_BYTES
"""With less, what the receiver has not reported yet would keep the next piece back for ever."""
WINDOW_BYTES_FIRST = 128 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
FULL_BYTES = 4 * 1024 * 1024
"""While as much waits in a lane, no more is read from the log for it."""
SLACK_SHARE = 1 / 8
"""Of an election timeout: how long what is handed over may stand in queues on its way."""
BASE_PERIOD_S = 10.0
"""The quickest delay of this period and the one before counts as that of a path without queues."""
BASE_SHARE_MAX = 1 / 4
"""Of an election timeout, at most: a queue that never becomes empty would be taken for the path."""
CUT_MIN = 0.5

Part = bytes | memoryview


class Lanes(Protocol):
    """What the handlers ask of the transport beside sending."""

    def send_behind(self, peer: int, message: Message | Append) -> bool:
        """As `send`, by the data lane whatever it is: it arrives when everything before it has."""
        ...

    def data_waits(self, peer: int) -> bool:
        """Whether data for that peer has not been handed to its connection yet."""
        ...

    def is_full(self, peer: int) -> bool:
        """Whether FULL_BYTES wait, and nothing should be added."""
        ...

    def drop_waiting(self, peer: int) -> None:
        """Forget the data of which nothing has left yet: the peer could not use it any more."""
        ...


class SingleLane:
    """For transports that carry everything at once and in order."""

    def send_behind(self, peer: int, message: Message | Append) -> bool:
        return bool(self.send(peer, message))  # type: ignore[attr-defined]  # of the transport it is mixed into

    def data_waits(self, peer: int) -> bool:
        return False

    def is_full(self, peer: int) -> bool:
        return False

    def drop_waiting(self, peer: int) -> None:
        """Nothing waits."""


def lane_of(message: Message | Append) -> int:
    """Of a message that is just sent: appends with entries and snapshots are data."""
    if isinstance(message, Append):
        return DATA if message.entries else CONTROL
    return DATA if isinstance(message, SnapshotBegin | SnapshotChunk | SnapshotEnd) else CONTROL


class Pace:
    """How many bytes may be under way, from what the receiver says of those that arrived.

    The window grows by what arrives while that comes quickly, and shrinks when what is handed over stands in queues for
    longer than SLACK_SHARE. Invariant: 0 <= arrived <= sent.
    """

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s` is the election timeout."""
        self._slack_s, self._base_s_max, self._idle_s = SLACK_SHARE * timeout_s, BASE_SHARE_MAX * timeout_s, timeout_s
        self._window = WINDOW_BYTES_FIRST
        self._sent = self._arrived = 0
        self._marks: deque[tuple[int, float]] = deque()  # how much was sent, and when
        self._base_s = self._earlier_base_s = float("inf")
        self._base_since_s = self._cut_at_s = self._sent_at_s = now()

    @property
    def under_way_bytes(self) -> int:
        return self._sent - self._arrived

    @property
    def room_bytes(self) -> int:
        """May be negative, when the window has shrunk."""
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
        """The first `total_bytes` of all that was sent have. Raises ProtocolError when that cannot be."""
        if not self._arrived <= total_bytes <= self._sent:
            raise ProtocolError(f"{total_bytes} bytes arrived, of {self._sent} that were sent")
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
            if at_s - self._cut_at_s > delay_s:  # once for what was sent before the last time
                self._cut_at_s = at_s
                shrunk = int(self._window * max(CUT_MIN, self._slack_s / queued_s))
                self._window = max(WINDOW_BYTES_MIN, shrunk)
        elif queued_s < self._slack_s / 2 and 2 * used >= self._window:
            self._window = min(WINDOW_BYTES_MAX, self._window + gained)


class DataLane:
    """Frames on their way into one connection, in order, no faster than `Pace` lets them. `write` never blocks."""

    def __init__(self, write: Callable[[Sequence[Part]], None], election_timeout_ms: int) -> None:
        self._write = write
        self._pace = Pace(election_timeout_ms / 1000)
        self._begun: deque[Part] = deque()  # what is left of the frame that leaves
        self._begun_bytes = 0
        self._frames: deque[tuple[int, list[bytes]]] = deque()
        self.waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        return self.waiting_bytes >= FULL_BYTES

    def send(self, parts: list[bytes]) -> None:
        """The parts of one frame stay the caller's, unchanged until sent."""
        size_bytes = sum(map(len, parts))
        if not self.waiting_bytes and size_bytes <= self._pace.room_bytes:
            self._pace.sent(size_bytes)
            self._write(parts)
            return
        self._frames.append((size_bytes, parts))
        self.waiting_bytes += size_bytes
        self._pump()

    def arrived(self, total_bytes: int) -> None:
        """The receiver has the first `total_bytes` of all that was written. Raises ProtocolError."""
        self._pace.arrived(total_bytes)
        self._pump()

    def drop_waiting(self) -> None:
        """Frames that have not begun to leave never will."""
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
