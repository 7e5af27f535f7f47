"""Ledgers of the messages of every worker and their outcomes: 17 bytes per message, so that millions can be judged."""

import asyncio
import enum
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from tests.chaos.message import WORKERS_MAX, number_of

_QUEUE_BITS: Final = 10
_OFFSET_BITS: Final = 44


class Outcome(enum.IntEnum):
    """The caller's knowledge about a message."""

    UNKNOWN = 0
    """The message was sent, and never answered: it may be stored once, or not at all."""
    ACKED = 1
    FAILED = 2
    """The answer was that certainly nothing was stored."""
    TAKEN_BACK = 3
    """The message was stored, and the answer was that it will never be delivered."""


class Place(NamedTuple):
    """Place of a message according to its acknowledgement."""

    topic: str
    queue: int
    offset: int


class WorkerLedger:
    """The messages of one worker by sequence. With `transactional` the database decides whether they are delivered.

    With `keys`, message s has the sharding key s % keys. With `expires`, the messages are in their queues only for a
    while.
    """

    def __init__(
        self,
        book: "Book",
        worker: int,
        name: str,
        *,
        keys: int = 0,
        transactional: bool = False,
        expires: bool = False,
    ) -> None:
        self.worker = worker
        self.name = name
        self.keys = keys
        self.transactional = transactional
        self.expires = expires
        self.outcomes = bytearray()
        self.counts = dict.fromkeys(Outcome, 0)
        self.due_ms: dict[int, int] = {}
        """Time, by the replicated clock, before which a message must not be delivered, by the message's sequence."""
        self._book = book
        self._places = array("Q")
        self._raft_indexes = array("Q")

    def __len__(self) -> int:
        return len(self.outcomes)

    def begin(self, count: int = 1) -> int:
        """Note that `count` messages are about to be sent; returns the sequence of the first. Their outcome is unknown
        until set.
        """
        first = len(self.outcomes)
        self.outcomes.extend(bytes(count))
        self._places.extend([0] * count)
        self._raft_indexes.extend([0] * count)
        self.counts[Outcome.UNKNOWN] += count
        return first

    def numbers(self, first: int, count: int) -> list[int]:
        base = number_of(self.worker, first)
        return list(range(base, base + count))

    def acked(self, first: int, count: int, place: Place, raft_index: int) -> None:
        """Note acknowledged messages: `place` is that of the first, the others follow it. `raft_index` is 0 if the
        entry is not known (a duplicate).
        """
        packed = self._book.pack(place)
        self._places[first : first + count] = array("Q", range(packed, packed + count))
        self._raft_indexes[first : first + count] = array("Q", [raft_index] * count)
        self._settle(first, count, Outcome.ACKED)
        self._book.note_ack()

    def acked_without_place(self, first: int, count: int, raft_index: int) -> None:
        """Note messages that are stored durably but not in a queue: half messages."""
        self._raft_indexes[first : first + count] = array("Q", [raft_index] * count)
        self._settle(first, count, Outcome.ACKED)
        self._book.note_ack()

    def failed(self, first: int, count: int) -> None:
        self._settle(first, count, Outcome.FAILED)

    def taken_back(self, sequence: int) -> None:
        self._settle(sequence, 1, Outcome.TAKEN_BACK)

    def place(self, sequence: int) -> Place | None:
        """Return the acknowledged place; None when no acknowledgement told one."""
        packed = self._places[sequence]
        return self._book.unpack(packed) if packed else None

    def raft_index(self, sequence: int) -> int:
        """Return the Raft index of the receipt; 0 when unknown."""
        return self._raft_indexes[sequence]

    def _settle(self, first: int, count: int, outcome: Outcome) -> None:
        self.outcomes[first : first + count] = bytes([outcome]) * count
        self.counts[Outcome.UNKNOWN] -= count
        self.counts[outcome] += count


class Book:
    """Owns all ledgers, and the time of the last acknowledged write."""

    def __init__(self, topics: Sequence[str], now_s: Callable[[], float] = time.monotonic) -> None:
        self.workers: list[WorkerLedger] = []
        self.last_ack_s = 0.0
        self.longest_silence_s = 0.0
        self._now_s = now_s
        self._next_ack: asyncio.Future[float] | None = None
        self._topics = list(topics)
        self._codes = {topic: code for code, topic in enumerate(topics, start=1)}  # 0: no place

    def worker(self, name: str, *, keys: int = 0, transactional: bool = False, expires: bool = False) -> WorkerLedger:
        """Return a new ledger with the next worker number. Raises ValueError beyond WORKERS_MAX workers."""
        if len(self.workers) >= WORKERS_MAX:
            raise ValueError(f"more than {WORKERS_MAX} workers")
        number = len(self.workers)
        ledger = WorkerLedger(self, number, name, keys=keys, transactional=transactional, expires=expires)
        self.workers.append(ledger)
        return ledger

    def ledger_of(self, worker: int) -> WorkerLedger | None:
        return self.workers[worker] if worker < len(self.workers) else None

    def total(self, outcome: Outcome) -> int:
        return sum(worker.counts[outcome] for worker in self.workers)

    def note_ack(self) -> None:
        now_s = self._now_s()
        if self.last_ack_s:
            self.longest_silence_s = max(self.longest_silence_s, now_s - self.last_ack_s)
        self.last_ack_s = now_s
        if self._next_ack is not None and not self._next_ack.done():
            self._next_ack.set_result(now_s)

    def next_ack(self) -> asyncio.Future[float]:
        """Return a future of the time of the next acknowledgement. Only the last future returned is resolved."""
        self._next_ack = asyncio.get_running_loop().create_future()
        return self._next_ack

    def pack(self, place: Place) -> int:
        return (self._codes[place.topic] << _QUEUE_BITS | place.queue) << _OFFSET_BITS | place.offset

    def unpack(self, packed: int) -> Place:
        queue = packed >> _OFFSET_BITS
        return Place(
            self._topics[(queue >> _QUEUE_BITS) - 1],
            queue & ((1 << _QUEUE_BITS) - 1),
            packed & ((1 << _OFFSET_BITS) - 1),
        )
