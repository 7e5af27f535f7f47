"""Applies committed entries, and has the index brought to disk as often as applying again what it lacks would last."""

from collections.abc import Callable, Sequence
from typing import Any

from raft.library import now
from store.log.record import Entry
from store.state.machine import StateMachine

FLUSH_WORK_MS = 500
"""The index is brought to disk after this processor time of apply; a restart takes about as long to apply again what is
not there. Entries do not tell: one costs 20 microseconds, another a millisecond."""


class Applying:
    """The function that the applier (raft/entries/applier.py) is given: it applies entries to the state machine, and
    flushes the index. `worked_s` returns the processor time of this process.
    """

    def __init__(self, state_machine: StateMachine, worked_s: Callable[[], float]) -> None:
        self._state_machine = state_machine
        self._worked_s = worked_s
        self._unflushed_s = 0.0
        self._waiting_since_s: float | None = None

    @property
    def waits_for_index(self) -> bool:
        """True while the index takes no writes, so that nothing can be applied: a tick looks again."""
        return self._state_machine.waits_for_index

    def waiting_since(self) -> float | None:
        """Return the time in seconds since which the index takes no writes; None while it does."""
        return self._waiting_since_s

    def __call__(self, entries: Sequence[Entry], may_go_on: Callable[[], bool]) -> list[Any]:
        begun_s = self._worked_s()
        results = self._state_machine.apply(entries, may_go_on)
        self._unflushed_s += self._worked_s() - begun_s
        if not self.waits_for_index:
            self._waiting_since_s = None
        elif self._waiting_since_s is None:
            self._waiting_since_s = now()
        if self._unflushed_s >= FLUSH_WORK_MS / 1000 and self._state_machine.begin_flush():
            self._unflushed_s = 0.0
        return results
