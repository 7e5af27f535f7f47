"""Data goes in pieces, no faster than it arrives, and no small message waits behind it."""

from collections import deque
from collections.abc import Callable

import pytest
from pysyncobj import syncobj as library

from raft.errors import ProtocolError
from raft.messages import AppendReply, SnapshotChunk, TimeoutNow, make_append
from raft.peers.lanes import (
    ARRIVED_BYTES,
    CONTROL,
    DATA,
    FULL_BYTES,
    PIECE_BYTES,
    WINDOW_BYTES_FIRST,
    WINDOW_BYTES_MAX,
    WINDOW_BYTES_MIN,
    DataLane,
    lane_of,
)
from store.log.record import KIND_ENTRY, Entry

ELECTION_TIMEOUT_MS = 1_000
STEP_S = 0.001
MIB = 1024 * 1024


class Link:
    """A link that carries `bytes_per_s` in one unlimited queue. The receiver reports as the transport does."""

    def __init__(self, bytes_per_s: float, delay_s: float = 0.0005) -> None:
        self.now_s = 100.0
        self.bytes_per_s, self.delay_s = bytes_per_s, delay_s
        self.lane = DataLane(lambda parts: self.carry(b"".join(parts)), ELECTION_TIMEOUT_MS)
        self.received = bytearray()
        self.most_queued_bytes = 0
        self._queued: deque[bytes] = deque()
        self._queued_bytes = 0
        self._free = 0.0
        self._reported = 0
        self._later: deque[tuple[float, Callable[[], None]]] = deque()

    def carry(self, data: bytes) -> None:
        self._queued.append(data)
        self._queued_bytes += len(data)
        self.most_queued_bytes = max(self.most_queued_bytes, self._queued_bytes)

    def run(self, until: Callable[[], bool], limit_s: float = 300.0) -> float:
        """Run until the condition holds and return the seconds that this took."""
        begun_s = self.now_s
        while not until():
            assert self.now_s - begun_s < limit_s, f"{len(self.received)} bytes after {limit_s} s"
            self.now_s += STEP_S
            self._free = min(self._free + self.bytes_per_s * STEP_S, self.bytes_per_s * STEP_S)
            while self._queued and self._free > 0:
                data = self._queued.popleft()
                self._free -= len(data)
                self._queued_bytes -= len(data)
                self._later.append((self.now_s + self.delay_s, lambda data=data: self._arrive(data)))  # type: ignore[misc]
            while self._later and self._later[0][0] <= self.now_s:
                self._later.popleft()[1]()
        return self.now_s - begun_s

    def _arrive(self, data: bytes) -> None:
        self.received += data
        total = len(self.received)
        if total - self._reported >= ARRIVED_BYTES:
            self._reported = total
            self._later.append((self.now_s + self.delay_s, lambda: self.lane.arrived(total)))


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Link]:
    made: list[Link] = []

    def make(bytes_per_s: float) -> Link:
        made.append(Link(bytes_per_s))
        return made[0]

    monkeypatch.setattr(library, "monotonicTime", lambda: made[0].now_s if made else 100.0)
    return make


@pytest.mark.parametrize("bytes_per_s", [125_000, 1_000_000, 12_500_000])
def test_what_stands_in_the_queue_of_a_slow_link_is_gone_soon(
    link: Callable[[float], Link], bytes_per_s: float
) -> None:
    """A heartbeat waits behind a bounded number of bytes at any moment, however much there is to send."""
    slow = link(bytes_per_s)
    payload = bytes(range(256)) * (16 * 1024)
    for _ in range(2):
        slow.lane.send([b"head", payload])
    took_s = slow.run(lambda: len(slow.received) > MIB)
    assert slow.most_queued_bytes <= 2 * WINDOW_BYTES_FIRST or bytes_per_s > MIB, (
        "at first nothing is known of the link"
    )
    slow.most_queued_bytes = 0
    took_s += slow.run(lambda: len(slow.received) == 2 * (4 + len(payload)))
    assert bytes(slow.received) == (b"head" + payload) * 2, "in order, each byte once"
    assert took_s < 1.3 * 2 * len(payload) / bytes_per_s + 0.1, "and the link is not idle"
    bound_s = max(0.4 * ELECTION_TIMEOUT_MS / 1000, 2 * WINDOW_BYTES_MIN / bytes_per_s)
    assert slow.most_queued_bytes <= bound_s * bytes_per_s


def test_a_quick_link_opens_the_window(link: Callable[[float], Link]) -> None:
    quick = link(1e9)
    for number in range(1, 9):
        quick.lane.send([bytes(4 * MIB)])
        quick.run(lambda number=number: len(quick.received) == number * 4 * MIB)  # type: ignore[misc]
    assert WINDOW_BYTES_FIRST < quick.most_queued_bytes <= WINDOW_BYTES_MAX
    before = quick.most_queued_bytes
    quick.lane.send([bytes(2 * MIB)])
    assert quick.lane.waiting_bytes == 0, "it left at once"
    assert quick.most_queued_bytes <= before


def test_a_link_that_was_idle_is_tried_anew(link: Callable[[float], Link]) -> None:
    quick = link(1e9)
    quick.lane.send([bytes(8 * MIB)])
    quick.run(lambda: len(quick.received) == 8 * MIB)
    quick.now_s += 2 * ELECTION_TIMEOUT_MS / 1000
    quick.bytes_per_s = 1_000_000
    quick.most_queued_bytes = 0
    quick.lane.send([b"."])
    quick.lane.send([bytes(8 * MIB)])
    quick.run(lambda: len(quick.received) == 16 * MIB + 1)
    assert quick.most_queued_bytes <= 2 * WINDOW_BYTES_FIRST


def test_small_messages_leave_at_once(link: Callable[[float], Link]) -> None:
    quick = link(1e9)
    parts = [b"frame", b"payload"]
    written: list[object] = []
    lane = DataLane(written.append, ELECTION_TIMEOUT_MS)
    lane.send(parts)
    assert written == [parts], "whole, and not copied"
    assert quick.lane.waiting_bytes == 0


def test_what_has_not_begun_to_leave_can_be_dropped(link: Callable[[float], Link]) -> None:
    slow = link(1_000_000)
    slow.lane.send([b"a" * MIB])
    slow.lane.send([b"b" * FULL_BYTES])
    full = [slow.lane.is_full]
    slow.lane.drop_waiting()
    assert [*full, slow.lane.is_full] == [True, False]
    slow.lane.send([b"c" * MIB])
    slow.run(lambda: len(slow.received) == 2 * MIB)
    assert bytes(slow.received) == b"a" * MIB + b"c" * MIB, "what had begun is whole"


def test_more_cannot_arrive_than_was_sent(link: Callable[[float], Link]) -> None:
    slow = link(1_000_000)
    slow.lane.send([b"x" * PIECE_BYTES])
    with pytest.raises(ProtocolError):
        slow.lane.arrived(PIECE_BYTES + 1)
    slow.lane.arrived(PIECE_BYTES)
    with pytest.raises(ProtocolError):
        slow.lane.arrived(PIECE_BYTES - 1)


def test_only_what_may_be_large_is_data() -> None:
    entry = Entry(b"x", 2, 1, KIND_ENTRY, -1)
    assert lane_of(make_append(1, 1, 1, 0, [entry])) == DATA
    assert lane_of(SnapshotChunk(1, 1, 1, b"x")) == DATA
    for small in (make_append(1, 1, 1, 0, ()), AppendReply(1, True, 1), TimeoutNow(1)):
        assert lane_of(small) == CONTROL
