"""Sends one snapshot to one peer, at the leader's end.

The messages of a transfer are numbered from 0: begin, portions, end. At most WINDOW_MESSAGES are under way; messages
that are not acknowledged in time are sent again. So memory is bounded and a lost message only costs a pause. Each
acknowledgement causes at most PORTIONS_AT_ONCE reads, so the loop is never blocked for longer than these take.
"""

from collections import deque
from collections.abc import Callable

from raft.library import now
from raft.messages import SnapshotAck, SnapshotBegin, SnapshotChunk, SnapshotEnd, SnapshotMessage
from store.snapshots.snapshot import SnapshotReader

WINDOW_MESSAGES = 8
PORTIONS_AT_ONCE = 2
"""Portions read for each acknowledgement: it takes some milliseconds, and the window is full after a few of them."""
RESEND_TIMEOUTS = 1
"""Election timeouts without an acknowledgement after which every message under way is sent again."""
ABANDON_TIMEOUTS = 30
"""Election timeouts without progress after which the transfer is given up, so that it retains no log for ever."""


class SnapshotSender:
    """Owns one transfer, driven by acknowledgements and ticks. Nothing of it is durable."""

    def __init__(
        self,
        term: int,
        transfer: int,
        reader: SnapshotReader,
        election_timeout_ms: int,
        send: Callable[[SnapshotMessage], None],
    ) -> None:
        self.transfer = transfer
        self.reader = reader
        self.bytes_acked = 0
        self.begun_s = self._progress_s = self._sent_s = now()
        self._term = term
        self._timeout_s = election_timeout_ms / 1000
        self._send = send
        self._window: deque[SnapshotMessage] = deque()
        self._acked = 0  # number of messages
        self._next = 1
        self._last: int | None = None  # number of the end, once it was read
        base = reader.base
        self._hand_over(
            SnapshotBegin(
                *(term, transfer, base.position, base.index, base.term, reader.index),
                *(reader.state_hash, reader.format, reader.estimated_pairs),
            )
        )

    @property
    def is_done(self) -> bool:
        """True when every message was acknowledged: the peer starts with that state, durably."""
        return self._last is not None and self._acked > self._last

    @property
    def is_stalled(self) -> bool:
        return now() - self._progress_s > ABANDON_TIMEOUTS * self._timeout_s

    @property
    def percent(self) -> int:
        """Approximate percentage that was read; 100 only when the transfer is done."""
        if self.is_done:
            return 100
        return min(99, 100 * self.reader.pairs_read // max(1, self.reader.estimated_pairs))

    def on_ack(self, ack: SnapshotAck) -> None:
        """Take an acknowledgement of this transfer. Late ones, and those of more than was sent, change nothing."""
        if not self._acked < ack.received <= self._acked + len(self._window):
            return
        while self._acked < ack.received:
            message = self._window.popleft()
            if isinstance(message, SnapshotChunk):
                self.bytes_acked += len(message.data)
            self._acked += 1
        self._progress_s = self._sent_s = now()
        self._fill()

    def on_waiting(self) -> None:
        """Note that messages still wait in this node: a missing acknowledgement does not mean that they are lost."""
        self._sent_s = now()

    def tick(self) -> None:
        if self._window and now() - self._sent_s > RESEND_TIMEOUTS * self._timeout_s:
            self._sent_s = now()
            for message in self._window:
                self._send(message)

    def _fill(self) -> None:
        for _ in range(PORTIONS_AT_ONCE):
            if len(self._window) >= WINDOW_MESSAGES or self._last is not None:
                return
            portion = self.reader.next_portion()
            number, self._next = self._next, self._next + 1
            if portion:
                self._hand_over(SnapshotChunk(self._term, self.transfer, number, portion))
            else:
                self._last = number
                reader = self.reader
                self._hand_over(SnapshotEnd(self._term, self.transfer, number, reader.pairs_read, reader.checksum))

    def _hand_over(self, message: SnapshotMessage) -> None:
        self._window.append(message)
        self._send(message)
