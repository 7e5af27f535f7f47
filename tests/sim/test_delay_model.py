"""The model of delayed messages accepts each rule kept and accuses each rule broken."""

from collections.abc import Callable

import pytest

from store.commands.messages import (
    BatchHeader,
    BatchPlaced,
    Cancelled,
    CancelScheduled,
    Fired,
    FireTimers,
    Position,
    Produce,
    Produced,
)
from store.commands.transactions import Decide, Decided, Prepare, Prepared
from store.commands.views import Row
from store.errors import NOT_SCHEDULED, Refused

from .broken import broken
from .checkers.delays import Delays
from .checkers.retention import Place

NOW_MS, DUE_MS = 1_000, 1_500
NOT_WAITING = Refused(NOT_SCHEDULED, "")


def row(skip: tuple[int, ...] = ()) -> tuple[Place, Row]:
    return ("orders", 0), Row(5, 0, 0, 9, 2 - len(skip), 0, "b", NOW_MS, 7, None, skip)


def header(delay_ms: int | None = DUE_MS - NOW_MS) -> BatchHeader:
    return BatchHeader("orders", 0, 2, "b", None, 0, 9, delay_ms=delay_ms)


def produced(model: Delays, *, told_ms: int | None = DUE_MS, offset: int | None = None, again: bool = False) -> None:
    placed = BatchPlaced("orders", 0, offset, 2, again, None, told_ms)
    model.on_applied(Produce((header(),)), Produced((placed,)), NOW_MS, () if offset is None else [row()])


def committed(model: Delays, *, told_ms: int | None = DUE_MS, offset: int | None = None) -> None:
    model.on_applied(Prepare("t", "pay", "c", 100, (header(),)), Prepared("t", "prepared", False, 900), 900, ())
    position = Position("orders", 0, offset, 2, told_ms)
    model.on_applied(Decide("t", "commit"), Decided("t", "committed", (position,)), NOW_MS, ())


def fired(model: Delays, clock_ms: int = DUE_MS, skip: tuple[int, ...] = ()) -> None:
    model.on_applied(FireTimers(9), Fired((), 0), clock_ms, [row(skip)])


def cancelled(model: Delays, ordinal: int, result: object = None) -> None:
    message_id = f"b-{ordinal}"
    model.on_applied(CancelScheduled("orders", message_id), result or Cancelled("orders", message_id), NOW_MS, ())


@pytest.mark.parametrize("brings", [produced, committed])
def test_a_message_waits_for_its_time_and_comes_once(brings: Callable[..., None]) -> None:
    model = Delays()
    brings(model)
    assert model.waiting == [("orders", "b")]
    broken("delivered_early", lambda: fired(model, DUE_MS - 1))
    broken("delayed_lost", model.check_all_delivered)
    fired(model)
    model.check_all_delivered()
    broken("delivered_once", lambda: fired(model))


@pytest.mark.parametrize("brings", [produced, committed])
def test_a_time_that_is_not_what_was_asked_for_is_accused(brings: Callable[..., None]) -> None:
    broken("delivered_early", lambda: brings(Delays(), told_ms=DUE_MS - 1))
    broken("delivered_early", lambda: brings(Delays(), told_ms=None, offset=5))


def test_a_batch_that_waits_is_not_there_twice() -> None:
    model = Delays()
    produced(model)
    produced(model, again=True)
    broken("delivered_early", lambda: produced(model, offset=5))


def test_what_is_due_at_once_does_not_wait() -> None:
    placed = BatchPlaced("orders", 0, None, 2, False)
    command = Produce((header(delay_ms=0),))
    broken("delayed_lost", lambda: Delays().on_applied(command, Produced((placed,)), NOW_MS, ()))


def test_a_message_that_was_taken_back_does_not_come() -> None:
    model = Delays()
    produced(model)
    cancelled(model, 1)
    cancelled(model, 1)
    broken("taken_back", lambda: fired(model))
    fired(model, skip=(1,))
    cancelled(model, 0, NOT_WAITING)
    broken("taken_back", lambda: cancelled(model, 0))


def test_a_message_that_waits_can_be_taken_back() -> None:
    model = Delays()
    produced(model)
    broken("taken_back", lambda: cancelled(model, 0, NOT_WAITING))
    cancelled(model, 0)
    cancelled(model, 1)
    model.check_all_delivered()
    broken("taken_back", lambda: fired(model))


def test_a_transaction_that_was_forgotten_and_prepared_once_more_is_another_one() -> None:
    """The batches are those of before: they wait, or were delivered."""
    for again in ({"offset": 5, "told_ms": None}, {"told_ms": DUE_MS + 7}):
        model = Delays()
        committed(model)
        fired(model)
        committed(model, **again)
        fired(model)
        model.check_all_delivered()


def test_timers_of_a_deleted_topic_are_dropped() -> None:
    model = Delays()
    produced(model)
    model.delete_topic("orders")
    model.check_all_delivered()
