"""The simulated world: one clock, one event queue, seeded randomness and a running hash of all that happened."""

import hashlib
import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

MICROSECONDS_PER_SECOND = 1_000_000
EPOCH_MS = 1_700_000_000_000
"""Time of a right wall clock when a simulation begins, in ms since 1970."""

Listener = Callable[[int, tuple[Any, ...]], None]
"""Is told when something happened, in simulated microseconds, and what: a name, then what it is about."""


def print_event(now_us: int, parts: tuple[Any, ...]) -> None:
    """Print an event, for those who want to see everything."""
    print(now_us, *parts)


class OutOfSteps(Exception):
    """Raised when the run has reached `steps_max`: it says nothing more about safety."""


class World:
    """Run scheduled actions in the order of (time, scheduling). Nothing else moves the clock.

    Randomness is handed out by name (`random_of("network")`), so that one more draw in one part of the simulation does
    not shift every other part. `trace()` feeds the hash by which two runs of a seed are compared.
    """

    def __init__(self, seed: int, *, steps_max: int | None = None) -> None:
        self.seed = seed
        self.steps_max = steps_max
        self.now_us = 0
        self.skew_us = 0  # of the node whose code runs at the moment
        self.steps = 0
        self._queue: list[tuple[int, int, Callable[[], None]]] = []  # when, in which order, what
        self._sequence = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self.listeners: list[Listener] = []

    def random_of(self, name: str) -> Random:
        """Return a generator for one part of the world, a function of seed and name only."""
        return Random(f"{self.seed}/{name}")

    def after(self, delay_us: int, action: Callable[[], None]) -> None:
        """Schedule `action` `delay_us` from now. Actions of one instant run in the order they were scheduled."""
        if delay_us < 0:
            raise ValueError(f"delay_us {delay_us} is negative")
        self._sequence += 1
        heapq.heappush(self._queue, (self.now_us + delay_us, self._sequence, action))

    def run(self, duration_us: int, *, until: Callable[[], bool] | None = None) -> bool:
        """Run `duration_us` of simulated time, or until `until()` holds after a step. Returns whether it held.

        Raises OutOfSteps at the limit of steps.
        """
        deadline_us = self.now_us + duration_us
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= deadline_us:
            if self.steps == self.steps_max:
                raise OutOfSteps(f"{self.steps} steps in {self.now_us / MICROSECONDS_PER_SECOND:.1f} simulated seconds")
            self.now_us, _, action = pop(queue)
            self.steps += 1
            action()
            if until is not None and until():
                return True
        self.now_us = deadline_us
        return until is not None and until()

    @contextmanager
    def on_node_with_skew(self, skew_us: int) -> Iterator[None]:
        """Show a monotonic clock that is `skew_us` ahead to the code inside the context."""
        outer, self.skew_us = self.skew_us, skew_us
        try:
            yield
        finally:
            self.skew_us = outer

    def trace(self, *parts: object) -> None:
        """Record an event: it becomes part of the trace hash, and the listeners are told."""
        self._digest.update(f"{self.now_us} {parts}".encode())
        for listener in self.listeners:
            listener(self.now_us, parts)

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()
