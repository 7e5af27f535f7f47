"""An id is delivered once within the window, and forgotten after it."""

from pathlib import Path

import msgspec
import pytest

from store.commands.messages import BatchHeader, BatchPlaced, Cancelled, CancelScheduled, MessagePlaced, Produced
from store.commands.topics import PutTopic
from store.commands.transactions import Decide
from store.errors import Refused
from store.index import keys
from store.index.index import Index
from store.limits import DEDUPE_MAX_ENTRIES, DEDUPE_WINDOW_MS, DELAY_MAX_MS
from store.messages.dedupe import DedupeCounters, DedupeWindow, SeenBatch, SeenMessage
from tests.unit.store.replica import Replica, header, placed, prepare, produce


@pytest.fixture(autouse=True)
def topic(replica: Replica) -> None:
    replica.one(PutTopic("orders", 2))


def test_a_retried_batch_gets_the_first_answer(replica: Replica) -> None:
    placed(replica, header(batch_id="b1", count=3))
    placed(replica, header(batch_id="b2"))
    # The broker may have chosen another queue for the retry.
    assert placed(replica, header(queue=1, batch_id="b1", count=3)) == (BatchPlaced("orders", 0, 0, 3, True),)
    replica.reopen()
    assert placed(replica, header(batch_id="b1", count=3)) == (BatchPlaced("orders", 0, 0, 3, True),)
    assert replica.machine.max_offset("orders", 0) == 4
    assert replica.machine.max_offset("orders", 1) == 0


def test_a_batch_id_with_other_content_is_refused(replica: Replica) -> None:
    placed(replica, header(batch_id="b1", count=3))
    refused = replica.refusal(produce(header(batch_id="b0"), header(batch_id="b1", count=3, content=9)))
    assert (refused.code, refused.extra["batch_id"]) == ("idempotency_conflict", "b1")
    assert replica.refusal(produce(header(batch_id="b1", count=2))).code == "idempotency_conflict"
    assert replica.refusal(prepare("tx", header(batch_id="b1", content=9))).code == "idempotency_conflict"


def test_a_batch_id_twice_in_one_command(replica: Replica) -> None:
    twice = header(batch_id="b1", count=2)
    assert [item.duplicate for item in placed(replica, twice, twice)] == [False, True]
    assert replica.machine.max_offset("orders", 0) == 2
    conflict = produce(header(batch_id="b2"), header(batch_id="b2", content=1))
    assert replica.refusal(conflict).code == "idempotency_conflict"


def test_batch_ids_are_per_topic(replica: Replica) -> None:
    replica.one(PutTopic("other"))
    placed(replica, header(batch_id="b1"))
    assert placed(replica, header("other", batch_id="b1", content=5))[0].duplicate is False


def test_only_new_messages_of_a_batch_are_appended(replica: Replica) -> None:
    placed(replica, header(batch_id="b1", count=2, message_ids=["a", "b"]))
    (mixed,) = placed(replica, header(batch_id="b2", count=4, message_ids=["c", "b", None, "a"]))
    expected = (
        MessagePlaced("c", 0, 2, False),
        MessagePlaced("b", 0, 1, True),
        MessagePlaced("b2-2", 0, 3, False),
        MessagePlaced("a", 0, 0, True),
    )
    assert mixed == BatchPlaced("orders", 0, 2, 2, False, expected)
    row = replica.machine.rows("orders", 0, 2, 1, 1_000)[0]
    assert (row.base_offset, row.count, row.skip) == (2, 2, (1, 3))
    # The retry of the mixed batch says where everything is, and that nothing is new.
    replica.reopen()
    (again,) = placed(replica, header(batch_id="b2", count=4, message_ids=["c", "b", None, "a"]))
    all_known = tuple(MessagePlaced(item.message_id, item.queue, item.offset, True) for item in expected)
    assert again == BatchPlaced("orders", 0, 2, 2, True, all_known)


def test_a_batch_of_known_messages_appends_nothing(replica: Replica) -> None:
    placed(replica, header(batch_id="b1", count=2, message_ids=["a", "b"]))
    (known,) = placed(replica, header(queue=1, batch_id="b2", count=2, message_ids=["b", "a"]))
    assert known == BatchPlaced(
        "orders", 0, 1, 0, True, (MessagePlaced("b", 0, 1, True), MessagePlaced("a", 0, 0, True))
    )
    assert replica.machine.max_offset("orders", 1) == 0
    assert replica.machine.rows("orders", 1, 0, 10, 1_000) == []


def test_a_message_id_twice_in_one_batch(replica: Replica) -> None:
    (mixed,) = placed(replica, header(batch_id="b1", count=3, message_ids=["a", "a", "b"]))
    assert mixed.messages == (
        MessagePlaced("a", 0, 0, False),
        MessagePlaced("a", 0, 0, True),
        MessagePlaced("b", 0, 1, False),
    )


def test_ids_are_forgotten_after_the_window_and_not_before(replica: Replica) -> None:
    placed(replica, header(batch_id="b1", message_ids=["a"]))
    replica.now_ms += DEDUPE_WINDOW_MS - 1
    replica.one(PutTopic("orders"))
    assert placed(replica, header(batch_id="b1", message_ids=["a"]))[0].duplicate is True
    replica.now_ms += 1
    replica.one(PutTopic("orders"))
    assert placed(replica, header(batch_id="b1", message_ids=["a"]))[0] == BatchPlaced("orders", 0, 1, 1, False)


def test_the_youngest_ids_survive_a_clock_that_leaps_ahead(tmp_path: Path) -> None:
    """Found by simulation: a new leader's clock was an hour ahead, and a retry was stored twice."""
    replica = Replica(tmp_path / "leap", dedupe_min_entries=3)
    replica.one(PutTopic("orders", 1))
    for number in range(6):
        placed(replica, header(batch_id=f"b{number}"))
    replica.now_ms += 4 * DEDUPE_WINDOW_MS
    for _ in range(3):
        replica.one(PutTopic("orders"))
    assert [placed(replica, header(batch_id=f"b{number}"))[0].duplicate for number in range(3, 6)] == [True] * 3
    assert placed(replica, header(batch_id="b2"))[0].duplicate is False
    replica.close()


@pytest.mark.parametrize("max_entries", [4, DEDUPE_MAX_ENTRIES])
def test_a_large_record_goes_only_when_enough_ids_stay(tmp_path: Path, max_entries: int) -> None:
    index = Index.open(str(tmp_path / "large"))
    window = DedupeWindow(index, DedupeCounters(), window_ms=100, max_entries=max_entries, min_entries=3)
    for ordinal in range(10):
        window.remember_messages(1, [(f"large{ordinal}", SeenMessage(0, ordinal))])
    window.end_entry(clock_ms=1_000)
    for number in range(3):
        assert window.counters.entries == 10 + number
        assert all(window.message(1, f"large{ordinal}") for ordinal in range(10))
        window.remember_messages(1, [(f"small{number}", SeenMessage(0, 10 + number))])
        window.end_entry(clock_ms=5_000)
    assert window.counters.entries == 3
    assert not any(window.message(1, f"large{ordinal}") for ordinal in range(10))
    assert all(window.message(1, f"small{number}") for number in range(3))
    index.close()


def test_nothing_is_left_of_expired_ids(replica: Replica) -> None:
    before = {key for key in replica.dump() if key[:1] in b"bie"}
    assert before == set()
    for number in range(5):
        replica.do(
            produce(header(batch_id=f"x{number}", message_ids=[f"i{number}"])),
            produce(header(batch_id=f"y{number}", count=2)),
        )
    replica.reopen()
    replica.now_ms += DEDUPE_WINDOW_MS
    for _ in range(3):
        replica.one(PutTopic("orders"))
    assert {key for key in replica.dump() if key[:1] in b"bie"} == set()


def test_a_half_message_does_not_reserve_its_ids(replica: Replica) -> None:
    replica.one(prepare("tx", header(batch_id="h", count=2, message_ids=["a", "b"])))
    assert placed(replica, header(batch_id="b1", message_ids=["a"]))[0].duplicate is False
    replica.one(Decide("tx", "commit"))
    rows = replica.machine.rows("orders", 0, 0, 10, 1_000)
    assert [(row.batch_id, row.count, row.skip) for row in rows] == [("b1", 1, ()), ("h", 1, (0,))]


def test_ids_of_a_committed_transaction_are_known(replica: Replica) -> None:
    replica.do(prepare("tx", header(batch_id="h", message_ids=["a"])), Decide("tx", "commit"))
    assert placed(replica, header(batch_id="h", message_ids=["a"]))[0].duplicate is True
    assert placed(replica, header(batch_id="b1", message_ids=["a"]))[0].duplicate is True
    assert replica.machine.max_offset("orders", 0) == 1


def test_ids_of_a_rolled_back_transaction_are_free(replica: Replica) -> None:
    replica.do(prepare("tx", header(batch_id="h", message_ids=["a"])), Decide("tx", "rollback"))
    assert placed(replica, header(batch_id="h", message_ids=["a"]))[0].duplicate is False


def test_a_batch_prepared_twice_is_delivered_once(replica: Replica) -> None:
    replica.do(prepare("tx1", header(batch_id="h")), prepare("tx2", header(batch_id="h")))
    replica.do(Decide("tx2", "commit"), Decide("tx1", "commit"))
    assert [row.transaction_id for row in replica.machine.rows("orders", 0, 0, 10, 1_000)] == ["tx2"]
    first, second = replica.machine.transaction("tx1"), replica.machine.transaction("tx2")
    assert first is not None
    assert second is not None
    assert first.positions == second.positions


def test_a_commit_delivers_a_batch_whose_id_was_used_otherwise_meanwhile(replica: Replica) -> None:
    replica.one(prepare("tx", header(batch_id="h", content=1)))
    placed(replica, header(batch_id="h", content=2))
    replica.one(Decide("tx", "commit"))
    rows = replica.machine.rows("orders", 0, 0, 10, 1_000)
    assert [(row.transaction_id, row.crc32c) for row in rows] == [(None, 2), ("tx", 1)]
    assert placed(replica, header(batch_id="h", content=2))[0] == BatchPlaced("orders", 0, 0, 1, True)


def test_the_number_of_ids_is_bounded(tmp_path: Path) -> None:
    """The window with a small bound; the bound of the broker is DEDUPE_MAX_ENTRIES."""
    index = Index.open(str(tmp_path / "bounded"))
    window = DedupeWindow(index, DedupeCounters(), DEDUPE_WINDOW_MS, max_entries=10, min_entries=0)
    for entry in range(50):
        window.remember_batch(1, f"b{entry}", SeenBatch(1, 0, 0, 0, entry, 1))
        window.end_entry(clock_ms=1_000)
        assert window.counters.entries == min(entry + 1, 10)
    known = [number for number in range(50) if window.batch(1, f"b{number}") is not None]
    assert known == list(range(40, 50))
    index.close()


def test_expiry_catches_up_after_a_burst(tmp_path: Path) -> None:
    index = Index.open(str(tmp_path / "burst"))
    window = DedupeWindow(index, DedupeCounters(), window_ms=100, max_entries=DEDUPE_MAX_ENTRIES, min_entries=0)
    for entry in range(20):
        window.remember_batch(1, f"old{entry}", SeenBatch(1, 0, 0, 0, entry, 1))
        window.end_entry(clock_ms=1_000)
    for entry in range(20):
        window.remember_batch(1, f"new{entry}", SeenBatch(1, 0, 0, 0, entry, 1))
        window.end_entry(clock_ms=1_100)
    assert window.counters.entries == 20
    assert all(window.batch(1, f"old{number}") is None for number in range(20))
    index.close()


def test_the_batches_of_a_send_are_looked_up_once_each(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.one(PutTopic("orders", 8))
    looked_up: list[bytes] = []
    get = replica.index.get

    def counted(key: bytes) -> bytes | None:
        looked_up.append(key)
        return get(key)

    monkeypatch.setattr(replica.index, "get", counted)
    replica.one(produce(*(header(queue=queue, batch_id=f"b{queue}") for queue in range(8))))
    assert [key[:1] for key in looked_up].count(keys.BATCH_ID) == 8
    twice = replica.one(produce(header(batch_id="new"), header(batch_id="other"), header(batch_id="new")))
    assert isinstance(twice, Produced)
    assert [each.duplicate for each in twice.results] == [False, False, True]


def test_an_id_that_was_unknown_is_looked_up_once_and_found_once_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.messages.dedupe.UNKNOWN_KEPT", 2)
    index = Index.open(str(tmp_path / "unknown"))
    window = DedupeWindow(index, DedupeCounters(), window_ms=100, max_entries=DEDUPE_MAX_ENTRIES, min_entries=0)
    looked_up: list[bytes] = []
    get = index.get

    def counted(key: bytes) -> bytes | None:
        looked_up.append(key)
        return get(key)

    monkeypatch.setattr(index, "get", counted)
    assert [window.batch(1, "half"), window.batch(1, "half"), window.batch(2, "half")] == [None] * 3
    assert looked_up == [keys.batch_id(1, "half"), keys.batch_id(2, "half")]
    seen = SeenBatch(1, 0, 0, 0, 7, 1)
    window.remember_batch(1, "half", seen)
    window.end_entry(clock_ms=1_000)
    assert window.batch(1, "half") == seen
    index.commit()
    assert window.batch(1, "half") == seen
    for number in range(5):  # more than are kept
        assert window.batch(1, f"other{number}") is None
    window.end_entry(clock_ms=1_100)
    assert window.batch(1, "half") is None, "it is as old as the window"
    index.close()


def delayed(batch_id: str) -> BatchHeader:
    return msgspec.structs.replace(header(batch_id=batch_id, message_ids=["a"]), delay_ms=DELAY_MAX_MS)


def cancels(replica: Replica) -> bool:
    result = replica.one(CancelScheduled("orders", "a"))
    assert isinstance(result, Cancelled) or (isinstance(result, Refused) and result.code == "not_scheduled")
    return isinstance(result, Cancelled)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 2)])
def test_cancelling_again_is_answered_alike_for_another_window(replica: Replica, first: int, second: int) -> None:
    begin_ms = replica.now_ms
    for number, level in enumerate((first, second, second)):
        replica.raise_level(level)
        replica.now_ms = begin_ms + number * DEDUPE_WINDOW_MS // 5 * 2
        placed(replica, delayed(f"b{number}"))
        assert cancels(replica)
    last_ms = replica.now_ms
    replica.now_ms = last_ms + DEDUPE_WINDOW_MS // 2
    replica.do()
    replica.reopen()
    assert cancels(replica) is (second == 2), "the window of the first time is over"
    replica.now_ms = last_ms + DEDUPE_WINDOW_MS - 1
    replica.do()
    assert cancels(replica) is (second == 2), "and that of the second"
    replica.now_ms += 1
    replica.do()
    assert not cancels(replica)
    assert keys.cancelled_message(4, "a") not in replica.dump()
    assert replica.machine._dedupe.counters.entries == 0


@pytest.mark.parametrize("level", [1, 2])
def test_cancelling_twice_in_one_entry(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    cancel = CancelScheduled("orders", "a")
    replica.do(produce(delayed("b1")), cancel, produce(delayed("b2")), cancel)
    assert cancels(replica)
    replica.now_ms += DEDUPE_WINDOW_MS
    replica.do()
    assert not cancels(replica)
    assert keys.cancelled_message(4, "a") not in replica.dump()
    assert replica.machine._dedupe.counters.entries == 0
