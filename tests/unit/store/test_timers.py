"""Delayed messages are scheduled, delivered when their time has come, or taken back before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.commands.messages import (
    BatchHeader,
    BatchPlaced,
    Cancelled,
    CancelScheduled,
    Fired,
    FireTimers,
    MessagePlaced,
    Position,
)
from store.commands.retention import ExpireMessages
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide, Decided
from store.commands.views import ScheduledMessage
from store.errors import Refused
from store.index import keys
from store.limits import DEDUPE_WINDOW_MS, DELAY_MAX_MS, FIRED_IDS_MAX, TRANSACTION_RETENTION_MS
from tests.unit.store.replica import Replica, apply_all, header, placed, prepare, produce

BEGIN_MS = 1_000
"""The clock of a new replica."""


@pytest.fixture(autouse=True)
def topic(replica: Replica) -> None:
    replica.one(PutTopic("orders", 2))


def delayed(batch: BatchHeader, *, delay_ms: int | None = None, deliver_at_ms: int | None = None) -> BatchHeader:
    return msgspec.structs.replace(batch, delay_ms=delay_ms, deliver_at_ms=deliver_at_ms)


def fire(replica: Replica, at_ms: int, limit: int = 100) -> Fired:
    replica.now_ms = at_ms
    result = replica.one(FireTimers(limit))
    assert isinstance(result, Fired), result
    return result


def cancel(replica: Replica, message_id: str, topic: str = "orders") -> bool:
    result = replica.one(CancelScheduled(topic, message_id))
    if isinstance(result, Refused):
        assert result.code == "not_scheduled"
        return False
    assert result == Cancelled(topic, message_id)
    return True


def waiting(replica: Replica, topic: str = "orders") -> list[str]:
    return [message.message_id for message in replica.machine.scheduled(topic).messages]


def test_a_delayed_batch_gets_its_offset_when_it_is_due(replica: Replica) -> None:
    (scheduled,) = placed(replica, delayed(header(batch_id="b1", count=2), delay_ms=500))
    assert scheduled == BatchPlaced("orders", 0, None, 2, False, None, BEGIN_MS + 500)
    assert replica.machine.max_offset("orders", 0) == 0
    assert replica.machine.next_due_ms() == BEGIN_MS + 500
    assert (replica.machine.timers_pending, replica.machine.messages_scheduled) == (1, 2)
    placed(replica, header(batch_id="b2"))
    assert fire(replica, BEGIN_MS + 499) == Fired((), 0)
    assert fire(replica, BEGIN_MS + 500) == Fired((Position("orders", 0, 1, 2, BEGIN_MS + 500),), 0)
    (_, row) = replica.machine.rows("orders", 0, 0, 10, 1_000)
    assert (row.base_offset, row.count, row.batch_id, row.stored_at_ms) == (1, 2, "b1", BEGIN_MS + 500)
    assert (replica.machine.timers_pending, replica.machine.messages_scheduled) == (0, 0)
    assert replica.machine.next_due_ms() is None
    assert fire(replica, BEGIN_MS + 10_000) == Fired((), 0)


def test_due_timers_fire_by_time_and_then_in_the_order_they_were_scheduled(replica: Replica) -> None:
    for batch_id, deliver_at_ms in (("c", 3_000), ("a", 2_000), ("d", 3_000), ("b", 2_500)):
        placed(replica, delayed(header(batch_id=batch_id), deliver_at_ms=deliver_at_ms))
    assert len(fire(replica, 5_000, limit=3).positions) == 3
    assert replica.machine.next_due_ms() == 3_000
    assert len(fire(replica, 5_000, limit=3).positions) == 1
    assert [row.batch_id for row in replica.machine.rows("orders", 0, 0, 10, 1_000)] == ["a", "b", "c", "d"]


def test_a_time_that_is_past_is_now(replica: Replica) -> None:
    for number, when in enumerate(({"deliver_at_ms": BEGIN_MS}, {"deliver_at_ms": 0}, {"delay_ms": 0})):
        batch = delayed(header(batch_id=f"b{number}"), **when)
        assert placed(replica, batch) == (BatchPlaced("orders", 0, number, 1, False),)
    assert replica.machine.timers_pending == 0


def test_longest_delay(replica: Replica) -> None:
    limit_ms = BEGIN_MS + DELAY_MAX_MS
    placed(replica, delayed(header(batch_id="b1"), delay_ms=DELAY_MAX_MS))
    placed(replica, delayed(header(batch_id="b2"), deliver_at_ms=limit_ms))
    for wrong in (
        delayed(header(batch_id="b3"), delay_ms=DELAY_MAX_MS + 1),
        delayed(header(batch_id="b3"), deliver_at_ms=limit_ms + 1),
        delayed(header(batch_id="b3"), delay_ms=-1),
        delayed(header(batch_id="b3"), delay_ms=1, deliver_at_ms=limit_ms),
    ):
        assert replica.refusal(produce(wrong)).code == "invalid_request"
        assert replica.refusal(prepare("tx", wrong)).code == "invalid_request"
    assert len(fire(replica, limit_ms).positions) == 2


def test_a_retry_is_answered_alike_while_it_waits_and_after(replica: Replica) -> None:
    batch = delayed(header(batch_id="b1", count=3), delay_ms=2 * DEDUPE_WINDOW_MS)
    due_ms = BEGIN_MS + 2 * DEDUPE_WINDOW_MS
    placed(replica, batch)
    replica.now_ms += DEDUPE_WINDOW_MS + 1  # the window has passed, the reservation has not
    replica.do()
    assert placed(replica, batch) == (BatchPlaced("orders", 0, None, 3, True, None, due_ms),)
    assert placed(replica, header(queue=1, batch_id="b1", count=3))[0].duplicate
    assert replica.refusal(produce(header(batch_id="b1", count=3, content=7))).code == "idempotency_conflict"
    fire(replica, due_ms)
    assert placed(replica, batch) == (BatchPlaced("orders", 0, 0, 3, True),)
    assert replica.machine.max_offset("orders", 0) == 3


def test_explicit_ids_are_reserved_while_they_wait(replica: Replica) -> None:
    due_ms = BEGIN_MS + 500
    placed(replica, delayed(header(batch_id="b1", count=2, message_ids=["a", "b"]), delay_ms=500))
    (mixed,) = placed(replica, header(queue=1, batch_id="b2", count=3, message_ids=["b", "c", None]))
    assert mixed.messages == (
        MessagePlaced("b", 0, None, True, due_ms),
        MessagePlaced("c", 1, 0, False),
        MessagePlaced("b2-2", 1, 1, False),
    )
    (known,) = placed(replica, header(queue=1, batch_id="b3", message_ids=["a"]))
    assert known == BatchPlaced("orders", 0, None, 0, True, (MessagePlaced("a", 0, None, True, due_ms),), due_ms)
    (partly,) = placed(replica, delayed(header(batch_id="b4", count=3, message_ids=["c", "e", "e"]), delay_ms=600))
    assert partly.messages == (
        MessagePlaced("c", 1, 0, True),
        MessagePlaced("e", 0, None, False, due_ms + 100),
        MessagePlaced("e", 0, None, True, due_ms + 100),
    )
    assert waiting(replica) == ["a", "b", "e"]
    fire(replica, due_ms + 100)
    again = placed(replica, header(queue=1, batch_id="b5", count=3, message_ids=["a", "e", "b"]))[0]
    assert again.messages is not None
    assert [(item.queue, item.offset) for item in again.messages] == [(0, 0), (0, 2), (0, 1)]
    assert [row.skip for row in replica.machine.rows("orders", 0, 0, 10, 1_000)] == [(), (0, 2)]


def test_a_message_is_taken_back_before_it_is_due(replica: Replica) -> None:
    placed(replica, delayed(header(batch_id="b1", count=3, message_ids=[None, "x", None]), delay_ms=500))
    placed(replica, delayed(header(batch_id="b2"), delay_ms=500))
    assert cancel(replica, "b1-2")
    assert cancel(replica, "x")
    assert cancel(replica, "b2-0")
    assert waiting(replica) == ["b1-0"]
    assert (replica.machine.timers_pending, replica.machine.messages_scheduled) == (1, 1)
    for again in ("b1-2", "x", "b2-0"):
        assert cancel(replica, again), "the same answer again"
    assert fire(replica, BEGIN_MS + 500).positions == (Position("orders", 0, 0, 1, BEGIN_MS + 500),)
    (row,) = replica.machine.rows("orders", 0, 0, 10, 1_000)
    assert (row.batch_id, row.skip) == ("b1", (1, 2))
    assert not cancel(replica, "b1-0"), "delivered"


@pytest.mark.parametrize("message_id", ["b1-1", "b1-01", "b1-", "b1", "b2-0", "-", "", "b1-9999999999999999999"])
def test_what_does_not_wait_cannot_be_taken_back(replica: Replica, message_id: str) -> None:
    placed(replica, delayed(header(batch_id="b1"), delay_ms=500))
    placed(replica, header(batch_id="b2"))
    assert replica.refusal(CancelScheduled("orders", message_id)).code == "not_scheduled"
    assert replica.refusal(CancelScheduled("nowhere", message_id)).code == "topic_not_found"
    assert waiting(replica) == ["b1-0"]


def test_a_retry_does_not_bring_back_what_was_taken_back(replica: Replica) -> None:
    batch = delayed(header(batch_id="b1", message_ids=["a"]), delay_ms=500)
    first = placed(replica, batch)[0]
    assert cancel(replica, "a")
    again = placed(replica, batch)[0]
    assert (again.duplicate, again.offset, again.deliver_at_ms) == (True, None, first.deliver_at_ms)
    assert replica.machine.timers_pending == 0


def test_a_message_that_was_taken_back_can_be_sent_at_another_time(replica: Replica) -> None:
    placed(replica, delayed(header(batch_id="b1", message_ids=["a"]), delay_ms=500))
    assert cancel(replica, "a")
    (moved,) = placed(replica, delayed(header(batch_id="b2", message_ids=["a"]), delay_ms=900))
    assert (moved.duplicate, moved.deliver_at_ms) == (False, BEGIN_MS + 900)
    assert fire(replica, BEGIN_MS + 900).positions == (Position("orders", 0, 0, 1, BEGIN_MS + 900),)
    assert not cancel(replica, "a"), "delivered, although it was taken back once"


def test_delay_of_a_half_message_counts_from_its_commit(replica: Replica) -> None:
    half = prepare(
        "tx",
        delayed(header(batch_id="h1"), delay_ms=500),
        header(batch_id="h2"),
        delayed(header(batch_id="h3"), deliver_at_ms=BEGIN_MS + 10_000),
        delayed(header(batch_id="h4"), deliver_at_ms=BEGIN_MS + 100),
    )
    replica.one(half)
    assert replica.machine.timers_pending == 0
    assert fire(replica, 3_000) == Fired((), 0)
    committed = (
        Position("orders", 0, None, 1, 3_500),
        Position("orders", 0, 0, 1),
        Position("orders", 0, None, 1, BEGIN_MS + 10_000),
        Position("orders", 0, 1, 1),  # its time was past at the commit
    )
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", committed)
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", committed)
    replica.reopen()
    fire(replica, 3_500)
    fire(replica, 11_000)
    view = replica.machine.transaction("tx")
    assert view is not None
    assert [position.offset for position in view.positions] == [2, 0, 3, 1]
    assert {row.transaction_id for row in replica.machine.rows("orders", 0, 0, 10, 1_000)} == {"tx"}


def test_a_rolled_back_delay_is_never_delivered(replica: Replica) -> None:
    replica.one(prepare("tx", delayed(header(batch_id="h1"), delay_ms=500)))
    replica.one(Decide("tx", "rollback"))
    assert fire(replica, 5_000) == Fired((), 0)


def test_the_first_to_be_scheduled_or_visible_wins_over_a_half(replica: Replica) -> None:
    replica.one(prepare("tx", delayed(header(batch_id="h1", count=2, message_ids=["a", "b"]), delay_ms=500)))
    placed(replica, header(batch_id="b1", message_ids=["a"]))
    replica.one(Decide("tx", "commit"))
    (skipped,) = placed(replica, header(batch_id="b2", message_ids=["b"]))
    assert skipped.duplicate
    fire(replica, 5_000)
    assert replica.machine.max_offset("orders", 0) == 2


def test_two_contents_of_one_batch_id_both_wait(replica: Replica) -> None:
    """The id was used otherwise between prepare and commit: the commit was promised."""
    replica.one(prepare("tx", delayed(header(batch_id="b", content=1), delay_ms=500)))
    placed(replica, delayed(header(batch_id="b", content=2), delay_ms=400))
    replica.one(Decide("tx", "commit"))
    assert replica.machine.timers_pending == 2
    fire(replica, 5_000)
    assert [row.crc32c for row in replica.machine.rows("orders", 0, 0, 10, 1_000)] == [2, 1]
    assert placed(replica, header(batch_id="b", content=2))[0].duplicate


def test_the_first_use_of_a_batch_id_outlives_another_that_waits(replica: Replica) -> None:
    replica.one(prepare("tx", delayed(header(batch_id="b", content=1), delay_ms=500)))
    placed(replica, header(batch_id="b", content=2))
    replica.one(Decide("tx", "commit"))
    fire(replica, 5_000)
    assert placed(replica, header(batch_id="b", content=2)) == (BatchPlaced("orders", 0, 0, 1, True),)
    assert replica.machine.max_offset("orders", 0) == 2


def test_timers_of_a_deleted_topic_are_dropped(replica: Replica) -> None:
    placed(replica, delayed(header(batch_id="b1", count=3), delay_ms=500))
    replica.one(DeleteTopic("orders"))
    replica.one(PutTopic("orders"))
    assert waiting(replica) == []
    assert not cancel(replica, "b1-0")
    assert placed(replica, delayed(header(batch_id="b1", count=3), delay_ms=600))[0].duplicate is False
    assert fire(replica, 5_000) == Fired((Position("orders", 0, 0, 3, BEGIN_MS + 600),), 3)


@pytest.mark.parametrize(
    ("kind", "plain", "delay", "half", "delayed_half"),
    [
        ("normal", True, False, False, False),
        ("fifo", True, False, False, False),
        ("delay", False, True, False, False),
        ("transaction", False, False, True, True),
        ("any", True, True, True, True),
    ],
)
def test_what_topics_take(
    replica: Replica, kind: str, plain: bool, delay: bool, half: bool, delayed_half: bool
) -> None:
    replica.one(PutTopic("typed", type=msgspec.convert(kind, str)))
    later = delayed(header("typed", batch_id="later"), delay_ms=1)
    proposals = [produce(header("typed")), produce(later), prepare("t1", header("typed")), prepare("t2", later)]
    for proposal, allowed in zip(proposals, (plain, delay, half, delayed_half), strict=True):
        if allowed:
            assert not isinstance(replica.one(proposal), Refused)
        else:
            assert replica.refusal(proposal).code == "topic_type_mismatch"


def test_the_listing_is_by_time_and_paged(replica: Replica) -> None:
    replica.one(PutTopic("other"))
    placed(replica, delayed(header("other", batch_id="o1"), delay_ms=100))
    placed(replica, delayed(header(batch_id="b2", count=3, message_ids=[None, "x", None]), delay_ms=700))
    placed(replica, delayed(header(queue=1, batch_id="b1", count=2), delay_ms=600))
    cancel(replica, "b2-2")
    machine = replica.machine
    everything = machine.scheduled("orders")
    assert everything.next is None
    assert [message.message_id for message in everything.messages] == ["b1-0", "b1-1", "b2-0", "x"]
    assert everything.messages[0] == ScheduledMessage("b1-0", 1, BEGIN_MS + 600, BEGIN_MS, None)
    for limit in (1, 2, 3, 4, 5):
        found: list[ScheduledMessage] = []
        after: str | None = None
        while True:
            page = machine.scheduled("orders", limit=limit, after=after)
            assert len(page.messages) <= limit
            found += page.messages
            after = page.next
            if after is None:
                break
        assert tuple(found) == everything.messages
    for wrong in ("", "1", "1-2", "1-2-3-4", "a-b-c", "1-2-99999999999999999999", "-1-2-3"):
        with pytest.raises(Refused, match="after"):
            machine.scheduled("orders", after=wrong)


def test_one_command_fires_no_more_explicit_ids_than_a_request_brings(replica: Replica) -> None:
    half = FIRED_IDS_MAX // 2
    for batch in range(3):
        ids = [f"m{batch}-{number}" for number in range(half)]
        placed(replica, delayed(header(batch_id=f"b{batch}", count=half, message_ids=ids), delay_ms=500))
    assert len(fire(replica, 5_000).positions) == 2
    assert len(fire(replica, 5_000).positions) == 1


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("decided", [False, True])
def test_a_timer_changes_no_later_transaction_of_its_id(replica: Replica, level: int, decided: bool) -> None:
    replica.raise_level(level)
    due_ms = BEGIN_MS + 2 * TRANSACTION_RETENTION_MS
    replica.one(prepare("tx", delayed(header(batch_id="b1"), deliver_at_ms=due_ms)))
    replica.one(Decide("tx", "commit"))
    replica.now_ms += TRANSACTION_RETENTION_MS
    replica.one(ExpireMessages((), 100))
    assert replica.machine.transaction("tx") is None
    replica.one(prepare("tx", header(queue=1, batch_id="b2")))
    if decided:
        replica.one(Decide("tx", "commit"))
    before = _positions(replica)
    assert before == ((Position("orders", 1, 0, 1),) if decided else ())
    fired = fire(replica, due_ms).positions
    assert fired == (Position("orders", 0, 0, 1, due_ms),)
    assert _positions(replica) == (before if level >= 2 else fired)


def test_a_timer_of_the_first_level_notes_its_place_at_a_later_one(replica: Replica) -> None:
    replica.one(prepare("tx", delayed(header(batch_id="b1"), delay_ms=500)))
    replica.one(Decide("tx", "commit"))
    replica.raise_level()
    fired = fire(replica, BEGIN_MS + 500).positions
    assert _positions(replica) == fired == (Position("orders", 0, 0, 1, BEGIN_MS + 500),)


def _positions(replica: Replica) -> tuple[Position, ...]:
    view = replica.machine.transaction("tx")
    assert view is not None
    return view.positions


def test_timers_survive_a_restart(replica: Replica) -> None:
    placed(replica, delayed(header(batch_id="b1", count=2), delay_ms=500))
    placed(replica, delayed(header(batch_id="b2"), delay_ms=400))
    cancel(replica, "b2-0")
    replica.reopen()
    assert replica.machine.next_due_ms() == BEGIN_MS + 500
    assert replica.machine.timers_pending == 1
    assert fire(replica, BEGIN_MS + 500).positions == (Position("orders", 0, 0, 2, BEGIN_MS + 500),)


def test_a_restart_replays_what_the_index_had_not_flushed(replica: Replica, tmp_path: Path) -> None:
    placed(replica, delayed(header(batch_id="b1"), delay_ms=500))
    cancel(replica, "b1-0")
    placed(replica, delayed(header(batch_id="b2"), delay_ms=600))
    fire(replica, 5_000)
    placed(replica, delayed(header(batch_id="b3"), delay_ms=700))
    again = Replica(tmp_path / "again")
    apply_all(again.machine, replica.log.entries[1:])
    assert again.machine.state_hash == replica.machine.state_hash
    assert again.dump() == replica.dump()
    again.close()


def test_the_next_due_time_is_right_whatever_was_taken_back(replica: Replica) -> None:
    for number in range(6):
        placed(replica, delayed(header(batch_id=f"b{number}"), delay_ms=1_000 - 100 * number))
    expected = [BEGIN_MS + 1_000 - 100 * number for number in range(6)]
    for number in (5, 3, 4):
        assert replica.machine.next_due_ms() == min(expected)
        expected.remove(BEGIN_MS + 1_000 - 100 * number)
        assert cancel(replica, f"b{number}-0")
    assert replica.machine.next_due_ms() == min(expected)
    placed(replica, delayed(header(batch_id="early"), delay_ms=1))
    assert replica.machine.next_due_ms() == BEGIN_MS + 1


def test_what_was_written_before_there_were_delays_is_read(replica: Replica) -> None:
    """Headers, half batches, positions, known messages and counters get fields at their end."""
    placed(replica, header(batch_id="b1", message_ids=["a"]))
    placed(replica, header(batch_id="b2", count=2, message_ids=["a", "b"]))
    replica.one(prepare("tx", header(batch_id="h1")))
    replica.one(prepare("committed", header(batch_id="h2")))
    replica.one(Decide("committed", "commit"))
    cut: dict[bytes, Callable[[Any], Any]] = {
        keys.META_APPLIED: lambda value: value[:7],
        keys.batch_id(4, "b2"): lambda value: [*value[:6], [each[:3] for each in value[6]]],
        keys.transaction("tx"): lambda value: [*value[:5], [each[:5] for each in value[5]], *value[6:]],
        keys.transaction("committed"): lambda value: [*value[:13], [each[:4] for each in value[13]]],
    }
    for key, shorten in cut.items():
        stored = replica.index.get(key)
        assert stored is not None
        value = msgspec.msgpack.decode(stored)
        shortened = shorten(value)
        assert shortened != value
        replica.index.put(key, msgspec.msgpack.encode(shortened))
    replica.index.commit()
    replica.reopen()
    again = placed(replica, header(batch_id="b2", count=2, message_ids=["a", "b"]))[0].messages
    assert again == (MessagePlaced("a", 0, 0, True), MessagePlaced("b", 0, 1, True))
    assert replica.one(Decide("tx", "commit")) == Decided("tx", "committed", (Position("orders", 0, 3, 1),))
    assert replica.one(Decide("committed", "commit")) == Decided(
        "committed", "committed", (Position("orders", 0, 2, 1),)
    )
    old = msgspec.msgpack.encode(["orders", 0, 1, "b9", None, 0, 20])
    assert msgspec.msgpack.decode(old, type=BatchHeader) == BatchHeader("orders", 0, 1, "b9", None, 0, 20)
