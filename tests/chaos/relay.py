"""A bad cable in user space: `python -m tests.chaos.relay --trouble '{"delay_ms":[20,40]}' --seed 7 link1:relay1`.

The relay is for kernels without sch_netem. A frame that arrives at one interface of a pair leaves at the other one,
later, twice, out of order, or with a bit flipped. The relay prints `ready` when it listens, and its counts when
SIGTERM ends it; frames that it holds then are sent on at once.
"""

import argparse
import heapq
import random
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

ETHERNET_HEADER_BYTES: Final = 14
FRAME_BYTES_MAX: Final = 1 << 17
BUFFER_BYTES: Final = 8 << 20
READY: Final = "ready"
_ALL_PROTOCOLS: Final = 3
_IPV4: Final = b"\x08\x00"
_OUTGOING: Final = 4  # PACKET_OUTGOING: frames sent by this machine, including the relay's
_RECEIVE_BUFFER_FORCE: Final = 33  # SO_RCVBUFFORCE
_FRAMES_AT_ONCE: Final = 64


class Trouble(msgspec.Struct, frozen=True):
    """Describes the treatment of frames. Times are from-to in milliseconds, shares are percentages of all frames."""

    delay_ms: tuple[float, float] = (0.0, 0.0)
    """Each frame is late by a time of its own; the order stays."""
    held_percent: float = 0.0
    held_ms: tuple[float, float] = (0.0, 0.0)
    """Frames of this share are held back for this time, and others overtake them."""
    twice_percent: float = 0.0
    twice_ms: tuple[float, float] = (0.0, 0.0)
    """Frames of this share come a second time after this delay."""
    flipped_percent: float = 0.0
    """One bit of these frames is wrong. Only IP packets are damaged: address resolution has no checksums."""


class Counts(msgspec.Struct):
    frames: int = 0
    held: int = 0
    twice: int = 0
    flipped: int = 0
    refused: int = 0
    """Number of frames that the other interface did not take."""


class Departures:
    """Decides when each frame leaves, and with which content. Does no I/O: `due` returns each frame with its `out`, the
    descriptor of the interface to which the caller sends it.
    """

    def __init__(self, trouble: Trouble, rng: random.Random) -> None:
        self.counts = Counts()
        self._trouble = trouble
        self._rng = rng
        self._waiting: list[tuple[float, int, int, bytes]] = []  # when, a counter for the order, out, frame
        self._last_s: dict[int, float] = {}  # per direction: when the last frame in order leaves

    def take(self, frame: bytes, out: int, now_s: float) -> None:
        trouble, counts = self._trouble, self.counts
        counts.frames += 1
        at_s = now_s + self._between(trouble.delay_ms)
        if self._happens(trouble.flipped_percent) and frame[12:14] == _IPV4:
            counts.flipped += 1
            frame = self._flipped(frame)
        if self._happens(trouble.held_percent):
            counts.held += 1
            self._leave(at_s + self._between(trouble.held_ms), out, frame)
        else:
            at_s = max(at_s, self._last_s.get(out, 0.0))
            self._last_s[out] = at_s
            self._leave(at_s, out, frame)
        if self._happens(trouble.twice_percent):
            counts.twice += 1
            self._leave(at_s + self._between(trouble.twice_ms), out, frame)

    def due(self, now_s: float) -> Iterator[tuple[int, bytes]]:
        """Yield the frames that leave now, in order."""
        while self._waiting and self._waiting[0][0] <= now_s:
            _, _, out, frame = heapq.heappop(self._waiting)
            yield out, frame

    def wait_s(self, now_s: float) -> float | None:
        """Return the seconds until the next frame leaves; None when none waits."""
        return max(0.0, self._waiting[0][0] - now_s) if self._waiting else None

    def _leave(self, at_s: float, out: int, frame: bytes) -> None:
        heapq.heappush(self._waiting, (at_s, self.counts.frames + self.counts.twice, out, frame))

    def _happens(self, percent: float) -> bool:
        return percent > 0 and self._rng.random() * 100 < percent

    def _between(self, span_ms: tuple[float, float]) -> float:
        """Return a random time of the span, in seconds."""
        return self._rng.uniform(*span_ms) / 1000 if span_ms[1] else 0.0

    def _flipped(self, frame: bytes) -> bytes:
        damaged = bytearray(frame)
        bit = self._rng.randrange(ETHERNET_HEADER_BYTES * 8, len(frame) * 8)
        damaged[bit // 8] ^= 1 << bit % 8
        return bytes(damaged)


class Relay:
    """Joins pairs of interfaces until it is told to stop."""

    def __init__(self, pairs: list[tuple[str, str]], departures: Departures) -> None:
        self._departures = departures
        self._sockets: dict[int, socket.socket] = {}
        self._other: dict[int, int] = {}
        for pair in pairs:
            one, two = (_listen(interface) for interface in pair)
            self._other |= {one.fileno(): two.fileno(), two.fileno(): one.fileno()}
            self._sockets |= {each.fileno(): each for each in (one, two)}

    def run(self, stop: int) -> None:
        """Run until the descriptor `stop` is readable; no frame is held any more on return."""
        departures = self._departures
        poll = select.epoll()
        for descriptor in (stop, *self._sockets):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            wait_s = departures.wait_s(time.monotonic())
            ready = [descriptor for descriptor, _ in poll.poll(wait_s)]
            for descriptor in ready:
                if descriptor in self._sockets:
                    self._take(descriptor)
            self._send(time.monotonic())
            if stop in ready:
                self._send(float("inf"))
                return

    def _take(self, descriptor: int) -> None:
        for _ in range(_FRAMES_AT_ONCE):
            try:
                frame, address = self._sockets[descriptor].recvfrom(FRAME_BYTES_MAX)
            except OSError:  # nothing more, or the interface is down for the moment
                return
            if address[2] != _OUTGOING:
                self._departures.take(frame, self._other[descriptor], time.monotonic())

    def _send(self, now_s: float) -> None:
        for out, frame in self._departures.due(now_s):
            try:
                self._sockets[out].send(frame)
            except OSError:
                self._departures.counts.refused += 1


def _listen(interface: str) -> socket.socket:
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    found.setblocking(False)
    try:
        found.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, BUFFER_BYTES)
    except PermissionError:  # in a user namespace the system's limit holds
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    found.bind((interface, _ALL_PROTOCOLS))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.relay", description=__doc__)
    parser.add_argument("--trouble", required=True, help="JSON that describes the treatment of frames")
    parser.add_argument("--seed", required=True, help="seed that decides which frames are chosen")
    parser.add_argument("pairs", nargs="+", metavar="INTERFACE:INTERFACE")
    given = parser.parse_args()
    trouble = msgspec.json.decode(given.trouble, type=Trouble)
    departures = Departures(trouble, random.Random(given.seed))
    read, write = socket.socketpair()
    write.setblocking(False)
    signal.set_wakeup_fd(write.fileno())
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    pairs = [(one, two) for one, _, two in (pair.partition(":") for pair in given.pairs)]
    relay = Relay(pairs, departures)
    print(READY, flush=True)
    relay.run(read.fileno())
    print(msgspec.json.encode(departures.counts).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
