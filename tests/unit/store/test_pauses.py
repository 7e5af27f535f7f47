"""An entry that costs much is applied in steps: neither the state nor a restart knows where it paused."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import pytest

from store.commands.entry import Command, Proposal
from store.commands.groups import (
    CommitOffsets,
    GiveBack,
    GivenBack,
    JoinGroup,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
)
from store.commands.messages import FireTimers, Produce
from store.commands.pops import Pop
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide
from store.features import FEATURES
from store.index.index import Index
from store.log.base import LogBase
from store.log.errors import DiskError
from store.log.record import Entry
from store.messages.timers import Timer, TimerKey, Timers
from store.snapshots.snapshot import SnapshotReader
from store.state.machine import SMALL_PER_STEP, StateMachine
from store.steps import ITEMS_PER_STEP
from tests.patience import PATIENCE_S
from tests.unit.store.paused import never, steps_of
from tests.unit.store.replica import Replica, bring_to_disk, dump, header, prepare, produce
from tests.unit.store.stopped_index import go_on, stop_writes
from tests.versions import golden_log

FEW, MANY = 4, 64
QUEUES = 8
LISTED = 30
"""Instructions for each group, batch or command where they are listed."""
IDS = 3 * ITEMS_PER_STEP


def applied(directory: Path, entries: Sequence[Entry], may_go_on: Callable[[], bool]) -> tuple[list[object], int]:
    """Apply the entries to a new index, by calls that go on as long as `may_go_on` says; return the rows, the hashes
    after each entry, and how many calls have paused.
    """
    index = Index.open(str(directory))
    machine = StateMachine(index, dedupe_min_entries=golden_log.DEDUPE_MIN_ENTRIES)
    hashes, pauses = [], 0
    while entries:
        before = machine.applied_index
        results = machine.apply(entries, may_go_on)
        entries = entries[len(results) :]
        assert machine.is_paused is not bool(results)
        pauses += not results
        assert bring_to_disk(machine) == before + len(results), "what is applied in part is not in the index"
        hashes.append(machine.history.now)
    rows = dump(index)
    index.close()
    return [rows, machine.state_hash, hashes[-1]], pauses


@pytest.mark.parametrize("level", [each.number for each in FEATURES.levels])
def test_pauses_change_nothing(tmp_path: Path, level: int) -> None:
    entries = golden_log.read_log(golden_log.log_file(level))
    at_once, none = applied(tmp_path / "at-once", entries, lambda: True)
    in_steps, pauses = applied(tmp_path / "in-steps", entries, never)
    assert in_steps == at_once
    assert (none, pauses > len(entries) / 4) == (0, True)


def read_by(replica: Replica, groups: int) -> None:
    """Have groups read a topic of QUEUES queues, with a member, pop consumers or neither, and give messages back."""
    replica.one(PutTopic("orders", QUEUES))
    replica.do(*(produce(header(queue=each, batch_id=f"b{each}", count=groups)) for each in range(QUEUES)))
    offsets = tuple(QueueOffset("orders", queue, 0) for queue in range(QUEUES))
    for number in range(groups):
        replica.one(CommitOffsets(f"g{number}", None, None, offsets))
        replica.one(GiveBack(f"g{number}", None, None, (GivenBack("orders", 1, number),)))
        replica.one(JoinGroup(f"g{number}", "m", "c", ("orders",), 9_000))
        replica.one(Pop(f"p{number}", "orders", "c", 1, 9_000))


@pytest.mark.parametrize(
    "command", [PutTopic("orders", QUEUES + 1), DeleteTopic("orders")], ids=lambda each: type(each).__name__
)
def test_the_work_of_a_step_does_not_grow_with_the_groups_of_a_topic(tmp_path: Path, command: Command) -> None:
    worked: list[list[int]] = []
    for groups in (FEW, MANY):
        replica = Replica(tmp_path / str(groups))
        replica.raise_level()
        read_by(replica, groups)
        worked.append(steps_of(replica, command))
        replica.close()
    few, many = worked
    assert len(many) > MANY > len(few)
    assert max(many[:-3]) < max(few[:-3]) + LISTED * MANY, "the last three write the rows, in portions"


def test_the_work_of_a_step_does_not_grow_with_the_batches_of_a_request(replica: Replica) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    few, many = (
        steps_of(replica, produce(*(header(batch_id=f"{batches}-{each}") for each in range(batches))))
        for batches in (FEW, MANY)
    )
    assert len(many) == MANY
    assert max(many[1:-1]) < max(few[1:-1]) + LISTED * MANY, "the first step looks all of them up"


@pytest.mark.parametrize("attempts_max", [16, 0], ids=["again", "dead"])
def test_the_work_of_a_step_does_not_grow_with_the_messages_that_are_given_back(
    replica: Replica, attempts_max: int
) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    replica.one(produce(header(count=FEW + MANY)))
    replica.one(PutGroup("g", attempts_max))
    few, many = (
        steps_of(replica, GiveBack("g", None, None, tuple(GivenBack("orders", 0, each) for each in offsets)))
        for offsets in (range(FEW), range(FEW, FEW + MANY))
    )
    assert (len(few), len(many)) == (FEW, MANY)
    assert max(many[1:-1]) < max(few[1:-1]) + LISTED * MANY, "the first step looks all of them up"
    if not attempts_max:
        few, many = (steps_of(replica, ReplayDeadLetters("g", each)) for each in ((0, 1), tuple(range(2, MANY))))
        assert (len(few), len(many)) == (2, MANY - 2)


def test_the_work_of_a_step_does_not_grow_with_the_commands_of_an_entry(replica: Replica) -> None:
    replica.raise_level()
    few, many = (
        steps_of(replica, *(PutTopic(f"{topics}-{each}", 1) for each in range(topics))) for topics in (FEW, MANY)
    )
    assert (len(few), len(many)) == (FEW, MANY)
    assert max(many[:-1]) < max(few[:-1]) + LISTED * MANY, "the last step is the end of the entry"


def test_a_call_that_goes_on_within_an_entry_ends_with_it(replica: Replica) -> None:
    """Calls that pause in one entry after the other would write and answer none of them."""
    replica.raise_level()
    entries: Sequence[Entry] = [
        replica.log.append(replica.now_ms, [PutTopic(f"{entry}-{each}", 1) for each in range(MANY)])
        for entry in range(FEW)
    ]
    looks_per_call = MANY + MANY // 4  # a call carries out an entry and a part of the next one
    answered: list[int] = []
    while entries:
        looks = iter([True] * looks_per_call)
        results = replica.machine.apply(entries, lambda left=looks: next(left, False))  # type: ignore[misc]
        entries = entries[len(results) :]
        answered.append(len(results))
    assert answered == [0, 2, 0, 2]


def test_a_usual_entry_of_small_commands_is_applied_at_once(replica: Replica) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    usual = [produce(header(batch_id=f"b{each}")) for each in range(SMALL_PER_STEP)]
    more = [produce(header(batch_id=f"c{each}")) for each in range(SMALL_PER_STEP + 1)]
    assert (len(steps_of(replica, *usual)), len(steps_of(replica, *more))) == (1, 2)


@pytest.mark.parametrize("delay_ms", [None, 1_000], ids=["at once", "delayed"])
def test_explicit_ids_are_looked_up_and_noted_in_portions(
    replica: Replica, monkeypatch: pytest.MonkeyPatch, delay_ms: int | None
) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    accesses: list[int] = []
    get, put_all = replica.index.get, replica.index.put_all

    def counted_get(key: bytes) -> bytes | None:
        accesses[-1] += 1
        return get(key)

    def counted_put_all(pairs: Sequence[tuple[bytes, bytes]]) -> None:
        accesses[-1] += len(pairs)
        put_all(pairs)

    monkeypatch.setattr(replica.index, "get", counted_get)
    monkeypatch.setattr(replica.index, "put_all", counted_put_all)
    for batch_id in ("a", "b"):  # the second time all ids are known
        ids = [f"m{each}" for each in range(IDS)]
        sent = msgspec.structs.replace(header(batch_id=batch_id, count=IDS, message_ids=ids), delay_ms=delay_ms)
        entry = replica.log.append(replica.now_ms, [Proposal(Produce((sent,)), produce(sent).blocks)])
        accesses = [0]
        while not replica.machine.apply([entry], never):
            accesses.append(0)
        at_once = IDS if delay_ms and batch_id == "a" else 0
        assert sum(accesses) >= IDS, "they are looked up"
        assert max(accesses) <= at_once + 2 * ITEMS_PER_STEP + 16, "a timer reserves its ids at once"


def test_a_large_write_is_prepared_in_steps(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    prepared: list[bool] = []
    commit = replica.index.try_commit

    def noting() -> bool:
        prepared.append(replica.index.staged_rows - replica.index._prepared_rows <= 1)
        assert replica.machine.shown_index == replica.machine.applied_index
        return commit()

    monkeypatch.setattr(replica.index, "try_commit", noting)
    steps_of(replica, produce(header(count=IDS, message_ids=[f"m{each}" for each in range(IDS)])))
    assert prepared == [True]


def test_queries_within_an_entry_see_a_part_of_it_and_a_restart_does_it_again(replica: Replica) -> None:
    replica.raise_level()
    read_by(replica, FEW)
    before, applied_index = replica.dump(), replica.machine.applied_index
    state_hash = replica.machine.state_hash
    entry = replica.log.append(replica.now_ms, [DeleteTopic("orders"), PutTopic("orders", 1)])
    assert replica.machine.apply([entry], never) == []
    assert replica.machine.is_paused
    assert replica.machine.shown_index == entry.index
    assert replica.machine.topic("orders") is None
    assert [each.topic for each in replica.machine.offsets("g0") or ()] == ["%RETRY%g0"], "its offsets are not shown"
    assert (replica.machine.applied_index, replica.machine.state_hash) == (applied_index, state_hash)
    reader = SnapshotReader(replica.index, LogBase(0, 0, 0))
    assert (reader.index, reader.state_hash) == (applied_index, state_hash)
    assert dict(reader._pairs) == before
    assert bring_to_disk(replica.machine) == applied_index
    del reader
    replica.reopen()
    assert (replica.dump(), replica.machine.state_hash) == (before, state_hash)
    assert replica.machine.apply([entry]) != []
    assert not replica.machine.is_paused


def test_what_an_entry_has_done_before_it_failed_is_not_in_the_index(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.raise_level()
    entry = replica.log.append(replica.now_ms, [PutTopic("orders", 1)])

    def fails() -> None:
        raise OSError("the index cannot be written")

    monkeypatch.setattr(replica.index, "try_commit", fails)
    with pytest.raises(OSError, match="cannot be written"):
        replica.machine.apply([entry])
    assert replica.machine.is_paused


def test_entries_before_one_that_pauses_are_answered_with_it(replica: Replica) -> None:
    replica.raise_level()
    read_by(replica, FEW)
    applied_index = replica.machine.applied_index
    few = replica.log.append(replica.now_ms, [PutTopic("other", 1)])
    many = replica.log.append(replica.now_ms, [DeleteTopic("orders")])
    answers = iter([True, False])
    assert replica.machine.apply([few, many], partial(next, answers)) == []
    assert replica.machine.applied_index == few.index
    assert bring_to_disk(replica.machine) == applied_index, "it is not written: with it, a part of the other would be"
    assert [len(results) for results in replica.machine.apply([few, many])] == [1, 1]
    assert bring_to_disk(replica.machine) == many.index


def test_a_timer_with_many_ids_that_are_sent_again_is_read_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the ids leads to the timer, which holds all of them."""
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    read: list[TimerKey] = []
    existing = Timers._existing

    def counted(timers: Timers, key: TimerKey) -> Timer:
        read.append(key)
        return existing(timers, key)

    monkeypatch.setattr(Timers, "_existing", counted)
    for batch_id in ("a", "b"):
        batch = header(batch_id=batch_id, count=MANY, message_ids=[f"m{each}" for each in range(MANY)])
        replica.one(produce(msgspec.structs.replace(batch, delay_ms=1_000)))
    assert len(read) == 1


def test_a_transaction_knows_the_place_of_a_delayed_message_that_is_visible(replica: Replica) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    batch = header(count=IDS, message_ids=[f"m{each}" for each in range(IDS)])
    replica.do(prepare("tx", msgspec.structs.replace(batch, delay_ms=1_000)), Decide("tx", "commit"))
    replica.now_ms += 1_000
    entry = replica.log.append(replica.now_ms, [FireTimers(1)])
    assert replica.machine.apply([entry], never) == []
    assert replica.machine.max_offset("orders", 0) == IDS
    transaction = replica.machine.transaction("tx")
    assert transaction is not None
    assert [each.offset for each in transaction.positions] == [0]


def test_a_trace_within_the_deletion_of_its_topic_leaves_nothing_behind(replica: Replica) -> None:
    """Passes of groups that are looked up then would not be removed any more."""
    replica.raise_level()
    read_by(replica, FEW)
    groups, topic = replica.machine._groups, replica.machine._topics.require("orders")
    walk = groups.passed(topic, 0, 0)
    assert next(walk) is None
    entry = replica.log.append(replica.now_ms, [DeleteTopic("orders")])
    while any(topic.id in topics for topics in groups._history._passes.values()):
        assert replica.machine.apply([entry], never) == []
    assert replica.machine.apply([entry], never) == []
    assert [*walk] == [None] * (2 * FEW - 1)
    replica.machine.apply([entry])
    assert not any(topic.id in topics for topics in groups._history._passes.values())


def test_timers_fire_in_steps(replica: Replica) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    for number in range(FEW):
        batch = msgspec.structs.replace(header(batch_id=f"b{number}"), delay_ms=1_000)
        replica.one(produce(batch))
    replica.now_ms += 1_000
    assert len(steps_of(replica, FireTimers(FEW))) == FEW
    assert replica.machine.max_offset("orders", 0) == FEW


def test_a_message_is_found_by_its_id_once_it_is_visible(replica: Replica) -> None:
    replica.raise_level()
    replica.one(PutTopic("orders", 1))
    ids = [f"m{each}" for each in range(IDS)]
    sent = header(count=IDS, message_ids=ids)
    entry = replica.log.append(replica.now_ms, [Proposal(Produce((sent,)), produce(sent).blocks)])
    visible: list[bool] = []
    while not replica.machine.apply([entry], never):
        visible.append(replica.machine.max_offset("orders", 0) == IDS)
        if visible[-1]:
            assert all(replica.machine.message_places("orders", each, 1) for each in (ids[0], ids[-1]))
    assert visible.count(True) > 0
    assert visible.count(False) > 0


def test_apply_waits_for_an_index_that_takes_no_writes(replica: Replica) -> None:
    """RocksDB would hold the thread, and with it the loop of the node, until its flushes have kept up."""
    replica.one(PutTopic("orders", 1))
    written = bring_to_disk(replica.machine)
    stop_writes(replica.index)
    entry = replica.log.append(replica.now_ms, [PutTopic("items", 1)])
    touched: list[int] = []
    for _ in range(3):
        assert replica.machine.apply([entry]) == []
        assert replica.machine.waits_for_index
        touched.append(len(replica.index.touched))
    assert len(set(touched)) == 1, "it may be tried for hours"
    assert replica.machine._written_index == written
    go_on(replica.index)
    assert len(replica.machine.apply([entry])) == 1
    assert not replica.machine.waits_for_index
    assert replica.index.figures().write_waits == 1
    assert bring_to_disk(replica.machine) == written + 1


def test_an_index_that_takes_no_writes_is_flushed_later(replica: Replica) -> None:
    """RocksDB refuses to begin a flush meanwhile, which is no failure of the disk."""
    replica.one(PutTopic("orders", 1))
    written = bring_to_disk(replica.machine)
    replica.one(PutTopic("items", 1))
    stop_writes(replica.index)
    assert not replica.machine.begin_flush()
    assert replica.machine.flushed_index == written
    go_on(replica.index)
    assert bring_to_disk(replica.machine) == written + 1


def test_what_a_flush_has_begun_with_counts_once_it_is_on_disk(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica.one(PutTopic("orders", 1))
    before = bring_to_disk(replica.machine)
    replica.one(PutTopic("items", 1))
    assert replica.machine.begin_flush()
    with monkeypatch.context() as patched:
        patched.setattr(type(replica.index), "is_flushing", True)
        replica.one(PutTopic("parts", 1))
        assert not replica.machine.begin_flush()
        assert replica.machine.flushed_index == before
    replica.index.flush()
    assert replica.machine.flushed_index == before + 1, "no flush that it knows of had the last entry"


def test_a_flush_that_has_failed_in_the_background_is_told_once(tmp_path: Path) -> None:
    """RocksDB tells only those who wait: an idle node would not hear of it."""
    replica = Replica(tmp_path / "index")
    replica.one(PutTopic("orders", 1))
    written = bring_to_disk(replica.machine)
    replica.one(PutTopic("items", 1))
    (tmp_path / "index").rename(tmp_path / "gone")
    assert replica.machine.begin_flush()
    deadline_s = time.monotonic() + PATIENCE_S
    while not replica.index._database.property_int_value("rocksdb.background-errors"):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    with pytest.raises(DiskError, match=r"write .*No such file"):
        replica.machine.begin_flush()
    assert not replica.machine.begin_flush()
    assert replica.machine.flushed_index == written
    (tmp_path / "gone").rename(tmp_path / "index")
    with pytest.raises(DiskError):
        replica.close()


def test_apply_does_not_wait_for_an_index_whose_disk_has_failed(tmp_path: Path) -> None:
    """Such an index never takes writes again: to wait for it would hide the error."""
    replica = Replica(tmp_path / "index")
    replica.one(PutTopic("orders", 1))
    bring_to_disk(replica.machine)
    replica.one(PutTopic("items", 1))
    stop_writes(replica.index)
    (tmp_path / "index").rename(tmp_path / "gone")
    with pytest.raises(DiskError):
        replica.index.flush()
    entry = replica.log.append(replica.now_ms, [PutTopic("parts", 1)])
    with pytest.raises(DiskError):
        replica.machine.apply([entry])
    (tmp_path / "gone").rename(tmp_path / "index")
    with pytest.raises(DiskError):
        replica.close()
