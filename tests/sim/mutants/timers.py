"""Broken ways to make messages visible at a time."""

import msgspec

import store.messages.placement
import store.state.delivery
from store.commands.messages import BatchHeader, Cancelled, CancelScheduled, Position
from store.errors import NOT_SCHEDULED, Refused
from store.messages.block_location import BlockLocation
from store.messages.dedupe import KnownMessage, SeenBatch
from store.messages.placement import At, CheckedBatch, Placement
from store.messages.queues import OfTransaction
from store.messages.timers import Found, Timer, TimerKey, Timers, due_ms_of, left_out
from store.messages.topics import Topic
from store.state.delivery import Delivery
from store.steps import Steps
from tests.sim.variant import Swap, mutant

_due, _due_within, _deliver = Timers.due, Timers.due_within, Delivery._deliver
_left_out = left_out
_due_ms_of, _place, _cancel = due_ms_of, Placement._place, Delivery.cancel


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


def waits_half_its_delay(header: BatchHeader, clock_ms: int) -> int | None:
    """A delay is half of what was asked for, and answers say so."""
    if header.delay_ms is not None:
        header = msgspec.structs.replace(header, delay_ms=header.delay_ms // 2)
    return _due_ms_of(header, clock_ms)


def delivers_a_transaction_at_once(
    placement: Placement,
    batch: CheckedBatch,
    known: tuple[KnownMessage, ...],
    block: BlockLocation,
    at: At,
    transaction: OfTransaction | None,
) -> SeenBatch:
    """Delayed messages of a transaction are visible with its commit."""
    if transaction is not None:
        batch = batch._replace(header=msgspec.structs.replace(batch.header, delay_ms=None, deliver_at_ms=None))
    return _place(placement, batch, known, block, at, transaction)


def delivers_what_was_taken_back(delivery: Delivery, command: CancelScheduled, at: At) -> Cancelled:
    """A message that waits is said to be taken back, and waits on."""
    topic = delivery._topics.require(command.topic)
    if delivery._timers.find(topic.id, command.message_id) is not None:
        return Cancelled(command.topic, command.message_id)
    return _cancel(delivery, command, at)


def takes_back_what_is_there(delivery: Delivery, command: CancelScheduled, at: At) -> Cancelled:
    """A message that was delivered is said to be taken back."""
    try:
        return _cancel(delivery, command, at)
    except Refused as refused:
        if refused.code == NOT_SCHEDULED:
            return Cancelled(command.topic, command.message_id)
        raise


def takes_back_the_whole_batch(found: Found) -> Timer:
    """All of a batch is taken back with one of its messages."""
    timer = _left_out(found)
    return msgspec.structs.replace(timer, count=0)


MUTANTS = (
    mutant(4, Swap(store.messages.placement, "due_ms_of", delays_nothing)),
    mutant(4, Swap(Timers, "due", delivers_before_the_time), Swap(Timers, "due_within", counts_before_the_time)),
    mutant(1, Swap(Placement, "deliver", loses_what_is_due)),
    mutant(9, Swap(Delivery, "_deliver", fires_a_timer_twice)),
    mutant(9, Swap(Timers, "batch", forgets_the_ids_that_wait)),
    mutant(13, Swap(store.messages.placement, "due_ms_of", waits_half_its_delay)),
    mutant(13, Swap(Placement, "_place", delivers_a_transaction_at_once)),
    mutant(13, Swap(Delivery, "cancel", delivers_what_was_taken_back)),
    mutant(13, Swap(Delivery, "cancel", takes_back_what_is_there)),
    mutant(13, Swap(store.state.delivery, "left_out", takes_back_the_whole_batch)),
)
