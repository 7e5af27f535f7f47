"""A state machine whose apply pauses at random, between entries and within them."""

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from cluster.core.long_poll import AppliedWaiters, WakingStateMachine
from store.commands.entry import Result
from store.errors import Refused
from store.index.index import Index
from store.log.record import Entry

if TYPE_CHECKING:
    from .settings import Settings

PAUSE_PROBABILITY = 0.1
"""Share of the places at which apply pauses, besides those where its time is over."""


class PausingMachine(WakingStateMachine):
    def __init__(self, pauses: Random, index: Index, waiters: AppliedWaiters, settings: "Settings") -> None:
        log_range_bytes = settings.services.log_range_bytes
        super().__init__(index, waiters, flush_entries=settings.flush_entries, log_range_bytes=log_range_bytes)
        self._pauses = pauses

    def apply(
        self, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
    ) -> list[list[Result | Refused]]:
        return super().apply(entries, lambda: self._pauses.random() >= PAUSE_PROBABILITY and may_go_on())
