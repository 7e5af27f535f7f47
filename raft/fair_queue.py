"""Proposals that wait for a place in the log: senders take turns when more waits than one entry holds."""

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, Protocol, TypeVar

OWN: Final = ""
"""The node itself as a sender: what it proposes is little, and comes before all that clients send later. So a member
that is removed and joins again is not removed anew.
"""
FINISHES_KEPT: Final = 1_000


def equal_weight(sender: str) -> int:
    """Return 1: nobody has more turns than others."""
    return 1


class Outcome(Protocol):
    def cancelled(self) -> bool:
        """Return whether nobody waits for the outcome any more."""
        ...


class Waiting(Protocol):
    @property
    def sender(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def work_bytes(self) -> int: ...

    @property
    def future(self) -> Outcome: ...


W = TypeVar("W", bound=Waiting)


class FairQueue(Generic[W]):
    """Divides the proposals that wait into entries of at most `entry_bytes` and `entry_work_bytes`.

    While all that waits fits one entry, the order is that of arrival. Otherwise the next one is always that of the
    sender who has had least for its weight since it began to wait, measured by the share of an entry that its
    proposals take (start-time fair queueing): while all have enough waiting, they get entries in the ratio of their
    weights. `weight_of` is asked at each turn, so another weight holds for what waits already; it is at least 1, and
    the node itself has none. One sender's proposals keep their order. What is cancelled is left out, and told to
    `on_left_out`: under overload nothing else would be carried out in the end.
    """

    def __init__(
        self,
        entry_bytes: int,
        entry_work_bytes: int,
        on_left_out: Callable[[W], None],
        weight_of: Callable[[str], int] = equal_weight,
    ) -> None:
        self._entry_bytes = entry_bytes
        self._entry_work_bytes = entry_work_bytes
        self._on_left_out = on_left_out
        self.weight_of = weight_of
        self._arrived: deque[W] = deque()
        """In their order; the senders' queues are made of them once turns are needed."""
        self._arrived_bytes = self._arrived_work_bytes = 0
        self._senders: dict[str, deque[W]] = {}
        """Not empty: senders whose turn is to come, each with what it has waiting."""
        self._turns: list[tuple[float, int, str]] = []
        """Heap of the senders: the virtual time at which the next proposal starts, and the order of turns."""
        self._finishes: dict[str, float] = {}
        """Virtual time at which the last proposal of a sender without any waiting ends."""
        self._finishes_max = FINISHES_KEPT
        """Number of them from which on those that are past are forgotten; at least twice what was left last time."""
        self._time = 0.0
        self._turn = 0

    def __bool__(self) -> bool:
        return bool(self._arrived or self._senders)

    def append(self, waiting: W) -> None:
        self._arrived.append(waiting)
        self._arrived_bytes += waiting.size_bytes
        self._arrived_work_bytes += waiting.work_bytes

    def drain(self) -> Iterator[W]:
        """Remove and yield all that waits."""
        for queue in [*self._senders.values(), self._arrived]:
            while queue:
                yield queue.popleft()
        self._begin_anew()

    def take(self) -> list[W]:
        """Remove and return the proposals of the next entry: at least one if any waits that is not cancelled."""
        if self._senders or not self._all_fits():
            self._line_up()
            return self._take_by_turns()
        taken = [waiting for waiting in self._arrived if not waiting.future.cancelled()]
        if len(taken) < len(self._arrived):
            for waiting in self._arrived:
                if waiting.future.cancelled():
                    self._on_left_out(waiting)
        self._arrived.clear()
        self._arrived_bytes = self._arrived_work_bytes = 0
        return taken

    def _all_fits(self) -> bool:
        fits = self._arrived_bytes <= self._entry_bytes and self._arrived_work_bytes <= self._entry_work_bytes
        return fits or len(self._arrived) <= 1

    def _line_up(self) -> None:
        """Put what has arrived into the queues of its senders."""
        while self._arrived:
            waiting = self._arrived.popleft()
            queue = self._senders.get(waiting.sender)
            if queue is None:
                queue = self._senders[waiting.sender] = deque()
                start = max(self._time, self._finishes.pop(waiting.sender, 0.0))
                heapq.heappush(self._turns, (start, self._next_turn(waiting.sender), waiting.sender))
            queue.append(waiting)
        self._arrived_bytes = self._arrived_work_bytes = 0

    def _take_by_turns(self) -> list[W]:
        taken: list[W] = []
        size_bytes = work_bytes = 0
        while self._turns:
            start, _, sender = self._turns[0]
            queue = self._senders[sender]
            waiting, cost = queue[0], 0.0
            if waiting.future.cancelled():
                self._on_left_out(waiting)
            else:
                size_bytes += waiting.size_bytes
                work_bytes += waiting.work_bytes
                if taken and (size_bytes > self._entry_bytes or work_bytes > self._entry_work_bytes):
                    return taken
                taken.append(waiting)
                self._time = start
                cost = self._cost(waiting)
            queue.popleft()
            if queue:
                heapq.heapreplace(self._turns, (start + cost, self._next_turn(sender), sender))
            else:
                heapq.heappop(self._turns)
                del self._senders[sender]
                self._note_finish(sender, start + cost)
        self._begin_anew()
        return taken

    def _cost(self, waiting: W) -> float:
        if waiting.sender == OWN:
            return 0.0
        share = max(waiting.size_bytes / self._entry_bytes, waiting.work_bytes / self._entry_work_bytes)
        return share / self.weight_of(waiting.sender)

    def _next_turn(self, sender: str) -> int:
        """Return what decides between senders whose next proposals start at one time: who came first, and the node
        itself before all.
        """
        self._turn += 1
        return 0 if sender == OWN else self._turn

    def _note_finish(self, sender: str, finish: float) -> None:
        self._finishes[sender] = finish
        if len(self._finishes) > self._finishes_max:
            self._finishes = {each: at for each, at in self._finishes.items() if at > self._time}
            self._finishes_max = max(FINISHES_KEPT, 2 * len(self._finishes))

    def _begin_anew(self) -> None:
        """Forget who has had what: nobody waits."""
        self._arrived_bytes = self._arrived_work_bytes = 0
        self._senders.clear()
        self._turns.clear()
        self._finishes.clear()
        self._finishes_max = FINISHES_KEPT
        self._time, self._turn = 0.0, 0
