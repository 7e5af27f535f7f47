"""Broken ways to make messages visible at a time."""

import store.messages.placement
from store.commands.messages import BatchHeader, Position
from store.messages.dedupe import SeenBatch
from store.messages.placement import At, Placement
from store.messages.timers import Timer, TimerKey, Timers
from store.messages.topics import Topic
from store.state.delivery import Delivery
from store.steps import Steps
from tests.sim.variant import Swap, mutant

_due, _due_within, _deliver = Timers.due, Timers.due_within, Delivery._deliver


def delays_nothing(header: BatchHeader, clock_ms: int) -> int | None:
    """A delayed message is visible at once."""
    return None


def delivers_before_the_time(timers: Timers, until_ms: int, limit: int, ids_max: int) -> list[tuple[TimerKey, Timer]]:
    """Timers that are not due are delivered with one that is due."""
    return _due(timers, until_ms + 3_600_000, limit, ids_max)


def counts_before_the_time(timers: Timers, until_ms: int, limit: int, writes_max: int) -> int:
    """The leader counts them too; else it would ask for no more than are due."""
    return _due_within(timers, until_ms + 3_600_000, limit, writes_max)


def loses_what_is_due(placement: Placement, topic: Topic, key: TimerKey, timer: Timer, at: At) -> int:
    """A timer that is due is taken out, and its messages are appended nowhere."""
    return topic.ends[timer.queue]


def fires_a_timer_twice(delivery: Delivery, key: TimerKey, timer: Timer, at: At) -> Steps[Position | None]:
    """Messages of a due timer are delivered two times."""
    yield from _deliver(delivery, key, timer, at)
    return (yield from _deliver(delivery, key, timer, at))


def forgets_the_ids_that_wait(timers: Timers, topic_id: int, batch_id: str) -> SeenBatch | None:
    """A delayed batch that is sent again before its time is scheduled again."""
    return None


MUTANTS = (
    mutant(4, Swap(store.messages.placement, "due_ms_of", delays_nothing)),
    mutant(4, Swap(Timers, "due", delivers_before_the_time), Swap(Timers, "due_within", counts_before_the_time)),
    mutant(1, Swap(Placement, "deliver", loses_what_is_due)),
    mutant(9, Swap(Delivery, "_deliver", fires_a_timer_twice)),
    mutant(9, Swap(Timers, "batch", forgets_the_ids_that_wait)),
)
