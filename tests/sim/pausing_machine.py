"""A state machine whose apply pauses at random, between entries and within them.

In some seeds it stays within an entry for several turns, each of which takes time, as an entry that costs much does:
messages, cuts of the log and requests come in between. In the other seeds a pause is over within the same instant.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cluster.core.long_poll import AppliedWaiters, WakingStateMachine
from store.commands.entry import Result
from store.errors import Refused
from store.index.index import Index
from store.log.record import Entry

from .checkers.whole_entries import check_said, check_snapshot

if TYPE_CHECKING:
    from .replica import Replica
    from .settings import Settings

PAUSE_PROBABILITY = 0.1
"""Share of the places at which apply pauses, besides those where its time is over."""
LASTING_PROBABILITY = 0.25
"""Share of the seeds in which pauses within an entry last ..."""
OFTEN_PROBABILITY = 0.3
"""... and come at this share of the places."""
TURNS_MAX = 6
"""Maximum number of turns for which a pause lasts."""
SNAPSHOT_PROBABILITY = 0.05
"""Share of these pauses at which a snapshot is looked at, which costs as much as reading the whole state."""
TURN_US = 2_000
"""Time that each of these turns takes, in microseconds."""


class PausingMachine(WakingStateMachine):
    def __init__(self, replica: "Replica", index: Index, waiters: AppliedWaiters, settings: "Settings") -> None:
        log_range_bytes = settings.services.log_range_bytes
        super().__init__(index, waiters, flush_entries=settings.flush_entries, log_range_bytes=log_range_bytes)
        self._replica = replica
        world = replica.world
        self._pauses = world.random_of(f"pauses {replica.node_id}")
        self._lasting = world.random_of(f"lasting pauses {replica.node_id}")
        self._lasts = world.random_of("lasting pauses").random() < LASTING_PROBABILITY
        self._probability = OFTEN_PROBABILITY if self._lasts else PAUSE_PROBABILITY
        self._turns_left = 0

    @property
    def stays_within_an_entry(self) -> bool:
        """True while a pause lasts."""
        return self._lasts and self.is_paused

    def apply(
        self, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
    ) -> list[list[Result | Refused]]:
        if self._turns_left:
            self._stay()
            return []
        results = super().apply(entries, lambda: self._pauses.random() >= self._probability and may_go_on())
        if self.is_paused:
            check_said(self._replica)
            if self._lasts:
                self._turns_left = self._lasting.randint(1, TURNS_MAX)
                if self._lasting.random() < SNAPSHOT_PROBABILITY:
                    check_snapshot(self._replica)
                self._stay()
        return results

    def _stay(self) -> None:
        self._turns_left -= 1
        self._replica.take(TURN_US)
