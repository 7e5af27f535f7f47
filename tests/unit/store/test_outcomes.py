"""The outcomes of entries are kept. They leave out refusals and duplicates, and are the same after a restart and on a
replay.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from store.commands.entry import decode_entry
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    GiveBack,
    GivenBack,
    JoinGroup,
    LeaveGroup,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
    TopicFilter,
)
from store.commands.messages import CancelScheduled, FireTimers
from store.commands.pops import Pop
from store.commands.retention import ExpireMessages
from store.commands.topics import DeleteTopic, PurgeTopic, PutTopic
from store.commands.transactions import Decide, Discard, RecordChecks, ResumeTransaction
from store.errors import Refused
from store.index import keys
from store.log.record import Entry
from store.messages.outcomes import Event, MessagesOf
from tests.unit.store.replica import Replica, apply_all, header, prepare, produce

RETRY, DLQ = "%RETRY%g", "%DLQ%g"


@pytest.fixture(autouse=True)
def topic(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2), PutTopic("points", 1))


def events(replica: Replica) -> tuple[Event, ...]:
    """Return the events of the last entry."""
    last = replica.machine.applied_index
    found = replica.machine.outcomes(last, last, 10)
    return found[0].outcome.events if found else ()


def told(replica: Replica) -> list[tuple[Any, ...]]:
    """Return type, topic, queue, first offset and number of messages of each event of the last entry."""
    return [(event.type, event.topic, event.queue, event.offset, event.rows) for event in events(replica)]


def place(entry: Entry, command: int = 0, batch: int = 0) -> tuple[int, int]:
    return entry.position, decode_entry(entry.payload).block_offsets[command][batch]


def test_each_batch_of_a_group_commit_has_its_place(replica: Replica) -> None:
    replica.do(produce(header("orders", 0, "a", 2), header("orders", 1, "b", 3)), produce(header("orders", 0, "c", 1)))
    entry = replica.log.entries[-1]
    assert events(replica) == (
        Event("PUBLISH", None, "orders", 0, 0, messages=MessagesOf(*place(entry), 2)),
        Event("PUBLISH", None, "orders", 1, 0, messages=MessagesOf(*place(entry, 0, 1), 3)),
        Event("PUBLISH", None, "orders", 0, 2, messages=MessagesOf(*place(entry, 1), 1)),
    )
    (found,) = replica.machine.outcomes(1, entry.index, 10)
    assert (found.raft_index, found.outcome.term, found.outcome.clock_ms) == (entry.index, 1, replica.now_ms)


def test_what_was_known_before_is_not_told_again(replica: Replica) -> None:
    replica.one(produce(header("orders", 0, "a", 2, ["x", "y"])))
    replica.one(produce(header("orders", 0, "a", 2, ["x", "y"])))
    assert events(replica) == ()
    replica.one(produce(header("orders", 1, "b", 3, ["y", "z", "x"])))
    (event,) = events(replica)
    assert (event.offset, event.messages) == (0, MessagesOf(*place(replica.log.entries[-1]), 1, (0, 2)))
    replica.one(produce(header("orders", 1, "c", 2, ["x", "z"])))
    assert events(replica) == ()


def test_refused_commands_and_what_is_no_message_leave_no_row(replica: Replica) -> None:
    before = replica.machine.applied_index
    assert isinstance(replica.one(produce(header("nowhere"))), Refused)
    assert isinstance(replica.one(Decide("tx", "commit")), Refused)
    replica.do(PutGroup("g"), JoinGroup("g", "m", "c", ("orders",), 30_000))
    replica.machine.apply([replica.log.append_noop()])
    assert replica.machine.outcomes(before + 1, replica.machine.applied_index, 10) == []


def test_a_read_of_outcomes_ends_with_the_entry_that_has_enough_events(replica: Replica) -> None:
    """An entry may have thousands of events: 64 of them read at once kept the loop from everything else."""
    first = replica.machine.applied_index + 1
    for number in range(3):
        replica.one(produce(*(header(batch_id=f"{number}-{each}") for each in range(4))))
    last = replica.machine.applied_index
    found = [len(replica.machine.outcomes(first, last, 10, events)) for events in (1, 4, 5, 8, 9, 100)]
    assert found == [1, 1, 2, 2, 3, 3]


def test_a_command_refused_half_way_takes_back_its_events(replica: Replica) -> None:
    replica.one(prepare("tx", header("orders", 0, "a"), header("points", 0, "b")))
    replica.one(DeleteTopic("points"))
    replica.do(produce(header("orders", 0, "c")), Decide("tx", "commit"), produce(header("orders", 0, "d")))
    assert told(replica) == [("PUBLISH", "orders", 0, 0, 1), ("PUBLISH", "orders", 0, 1, 1)]


def test_a_transaction_with_several_topics(replica: Replica) -> None:
    replica.one(prepare("tx", header("orders", 1, "a", 2), header("points", 0, "b", 1)))
    prepared = replica.log.entries[-1]
    assert told(replica) == [("HALF", "orders", 1, None, 2), ("HALF", "points", 0, None, 1)]
    replica.one(prepare("tx", header("orders", 1, "a", 2), header("points", 0, "b", 1)))
    assert events(replica) == ()
    replica.one(RecordChecks(("tx", "unknown"), "c9", "poll", 30_000))
    assert events(replica) == (Event("CHECK", "tx", group="pg", client="c9", attempt=1),)
    replica.one(Decide("tx", "unknown"))
    assert events(replica) == ()
    replica.one(Decide("tx", "commit", client_id="c2"))
    assert events(replica) == (
        Event("COMMIT", "tx", group="pg", client="c2"),
        Event("PUBLISH", None, "orders", 1, 0, messages=MessagesOf(*place(prepared), 2)),
        Event("PUBLISH", None, "points", 0, 0, messages=MessagesOf(*place(prepared, 0, 1), 1)),
    )
    replica.one(Decide("tx", "commit"))
    assert events(replica) == ()


def test_transactions_that_end_otherwise(replica: Replica) -> None:
    replica.do(prepare("a", header(batch_id="a")), prepare("b", header(batch_id="b")))
    replica.one(Decide("a", "rollback", client_id="c2"))
    assert events(replica) == (Event("ROLLBACK", "a", group="pg", client="c2"),)
    replica.one(Discard(("a", "b")))
    assert events(replica) == (Event("DISCARD", "b", group="pg"),)
    replica.one(ResumeTransaction("b", "ann", "why", 30_000))
    assert events(replica) == (Event("RESUME", "b", group="pg"),)


def test_timers_are_told_when_scheduled_and_when_due(replica: Replica) -> None:
    late = msgspec.structs.replace(header("orders", 0, "a", 3), delay_ms=5_000)
    replica.one(produce(late))
    scheduled = replica.log.entries[-1]
    assert told(replica) == [("SCHEDULE", "orders", 0, None, 3)]
    replica.one(CancelScheduled("orders", "a-1"))
    assert events(replica) == (Event("CANCEL", None, "orders", 0, messages=MessagesOf(*place(scheduled), 1, only=1)),)
    replica.one(CancelScheduled("orders", "a-1"))
    assert events(replica) == ()
    replica.one(produce(header("orders", 0, "now")))
    replica.now_ms += 5_000
    replica.one(FireTimers(10))
    assert events(replica) == (Event("PUBLISH", None, "orders", 0, 1, messages=MessagesOf(*place(scheduled), 2, (1,))),)


def test_a_timer_whose_topic_is_gone_expires(replica: Replica) -> None:
    replica.one(produce(msgspec.structs.replace(header("points", 0, "a", 3), delay_ms=5_000)))
    scheduled = replica.log.entries[-1]
    replica.one(DeleteTopic("points"))
    replica.now_ms += 5_000
    replica.one(FireTimers(10))
    assert events(replica) == (Event("EXPIRE", messages=MessagesOf(*place(scheduled), 3)),)


def test_where_a_group_begins_is_no_consumption(replica: Replica) -> None:
    replica.one(produce(header("orders", 0, "a", 9)))
    begin = CommitOffsets("g", None, None, (QueueOffset("orders", 0, 4),), begins=True)
    replica.one(begin)
    assert events(replica) == ()
    replica.one(begin)
    assert events(replica) == ()
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 6),)))
    assert [(event.offset, event.offset_end) for event in events(replica)] == [(4, 6)]
    # It has an offset now: a commit is a commit, whatever it says of itself.
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 9),), begins=True))
    assert [(event.offset, event.offset_end) for event in events(replica)] == [(6, 9)]


def test_moves_of_a_group_are_ranges(replica: Replica) -> None:
    replica.do(produce(header("orders", 0, "a", 9)), JoinGroup("g", "m", "consumer", ("orders",), 30_000))
    commit = CommitOffsets("g", "m", 1, (QueueOffset("orders", 0, 4), QueueOffset("orders", 1, 0)))
    replica.one(commit)
    assert events(replica) == (Event("ACK", None, "orders", 0, 0, 4, "g", "consumer"),)
    replica.one(commit)
    assert events(replica) == ()
    replica.one(CommitOffsets("g", "m", 1, (QueueOffset("orders", 0, 6), QueueOffset("orders", 0, 9))))
    assert [(event.offset, event.offset_end) for event in events(replica)] == [(4, 6), (6, 9)]
    replica.one(ResetOffsets("g", (QueueOffset("orders", 0, 2),)))
    assert events(replica) == ()
    replica.one(CommitOffsets("g", "m", 2, (QueueOffset("orders", 0, 3),)))
    assert [(event.offset, event.offset_end) for event in events(replica)] == [(2, 3)]


FILTERED = JoinGroup(
    "g",
    "m",
    "c",
    ("orders", "points"),
    30_000,
    (TopicFilter("orders", "tags", "a || b"), TopicFilter("points", "sql", "n > 1")),
)


def test_a_commit_of_a_group_that_selects_messages_says_what_it_selects(replica: Replica) -> None:
    replica.raise_level(2)
    replica.do(
        produce(header("orders", 0, "a", 9)), produce(header("orders", 1, "b")), produce(header("points")), FILTERED
    )
    offsets = (QueueOffset("orders", 0, 4), QueueOffset("orders", 1, 1), QueueOffset("points", 0, 1))
    replica.one(CommitOffsets("g", "m", 1, offsets))
    (found,) = replica.machine.outcomes(replica.machine.applied_index, replica.machine.applied_index, 1)
    assert found.outcome.filters == ("TAGS IN ('a', 'b')", "n > 1"), "each once"
    assert [event.filter for event in found.outcome.events] == [0, 0, 1]
    replica.do(LeaveGroup("g", "m"), CommitOffsets("g", None, None, (QueueOffset("orders", 0, 6),)))
    assert events(replica) == (Event("ACK", None, "orders", 0, 4, 6, "g"),), "nobody knows what this client selects"
    assert (
        replica.machine.outcomes(replica.machine.applied_index, replica.machine.applied_index, 1)[0].outcome.filters
        == ()
    )


def test_where_a_group_is_set_is_told(replica: Replica) -> None:
    replica.raise_level(2)
    replica.one(produce(header("orders", 0, "a", 9)))
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 4),), begins=True))
    assert events(replica) == (Event("RESET", None, "orders", 0, None, 4, "g"),)
    replica.one(ResetOffsets("g", (QueueOffset("orders", 0, 7), QueueOffset("orders", 1, 0))))
    assert events(replica) == (
        Event("RESET", None, "orders", 0, 4, 7, "g"),
        Event("RESET", None, "orders", 1, None, 0, "g"),
    )
    replica.one(CloneOffsets("h", "g"))
    assert [(event.type, event.group, event.offset_end) for event in events(replica)] == [
        ("RESET", "h", 7),
        ("RESET", "h", 0),
    ]
    replica.one(Pop("p", "orders", "c", 1, 30_000, True))
    assert [(event.type, event.group, event.offset_end) for event in events(replica)] == [("RESET", "p", 9)]


@pytest.mark.parametrize("level", [1, 2])
def test_where_a_group_is_set_is_told_from_the_second_level_on(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    replica.one(produce(header("orders", 0, "a", 9)))
    for command in (
        CommitOffsets("g", None, None, (QueueOffset("orders", 0, 4),), begins=True),
        ResetOffsets("g", (QueueOffset("orders", 0, 7),)),
        CloneOffsets("h", "g"),
        Pop("p", "orders", "c", 1, 30_000, True),
    ):
        replica.one(command)
        assert [event.type for event in events(replica)] == (["RESET"] if level == 2 else []), command


@pytest.mark.parametrize("level", [1, 2])
def test_the_removal_of_a_topic_is_told_from_the_second_level_on(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    replica.do(produce(header("orders", 0, "a", 9)))
    replica.one(DeleteTopic("orders"))
    assert events(replica) == ((Event("TOPIC_DELETE", None, "orders"),) if level == 2 else ())
    replica.one(DeleteTopic("orders"))
    assert events(replica) == (), "there was none any more"


def test_a_purge_tells_which_messages_it_removed(replica: Replica) -> None:
    replica.raise_level(2)
    replica.do(produce(header("orders", 0, "a", 9)), produce(header("orders", 1, "b", 2)))
    replica.one(PurgeTopic("orders", 1))
    assert events(replica) == (Event("PURGE", None, "orders", 1, 0, 2),)
    replica.one(produce(header("orders", 1, "c", 3)))
    replica.one(PurgeTopic("orders"))
    assert events(replica) == (Event("PURGE", None, "orders", 0, 0, 9), Event("PURGE", None, "orders", 1, 2, 5))
    replica.one(PurgeTopic("orders"))
    assert events(replica) == ()


@pytest.mark.parametrize("level", [1, 2])
def test_messages_that_were_removed_before_a_commit_are_not_acknowledged(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    replica.one(PutTopic("orders", retention_ms=1_000))
    replica.one(produce(header("orders", 0, "old", 3)))
    replica.now_ms += 2_000
    replica.one(produce(header("orders", 0, "new", 2)))
    replica.one(ExpireMessages((("orders", 0),), 10))
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 3),)))
    assert [(event.offset, event.offset_end) for event in events(replica)] == ([] if level == 2 else [(0, 3)])
    replica.one(CommitOffsets("h", None, None, (QueueOffset("orders", 0, 5),)))
    assert [(event.offset, event.offset_end) for event in events(replica)] == [(3 if level == 2 else 0, 5)]


def test_a_cluster_at_the_first_level_tells_what_its_version_knows(replica: Replica) -> None:
    replica.do(produce(header("orders", 0, "a", 9)), FILTERED)
    replica.one(CommitOffsets("g", "m", 1, (QueueOffset("orders", 0, 4),)))
    row = replica.index.get(keys.outcome(replica.machine.applied_index))
    assert row is not None
    (_, _, (event,)) = msgspec.msgpack.decode(row)
    assert event == ["ACK", None, "orders", 0, 0, 4, "g", "c", None, None, None]
    replica.one(ResetOffsets("g", (QueueOffset("orders", 0, 0),)))
    assert events(replica) == ()


def test_messages_given_back_until_they_are_dead(replica: Replica) -> None:
    replica.do(PutGroup("g", 1, (0,)), produce(header("orders", 0, "a", 3)))
    block = place(replica.log.entries[-1], 1)
    replica.one(GiveBack("g", None, None, (GivenBack("orders", 0, 2),)))
    one = MessagesOf(*block, 1, only=2)
    assert events(replica) == (
        Event("RETRY", None, "orders", 0, 2, None, "g", attempt=1, messages=one),
        Event("PUBLISH", None, RETRY, 0, 0, attempt=1, messages=one),
    )
    replica.one(GiveBack("g", None, None, (GivenBack("orders", 0, 2),)))
    assert events(replica) == ()
    replica.one(GiveBack("g", None, None, (GivenBack(RETRY, 0, 0),)))
    assert events(replica) == (
        Event("DLQ", None, "orders", 0, 2, None, "g", attempt=2, messages=one),
        Event("PUBLISH", None, DLQ, 0, 0, attempt=2, messages=one),
    )
    replica.one(ReplayDeadLetters("g", (0,)))
    assert [(event.type, event.topic, event.offset, event.attempt) for event in events(replica)] == [
        ("RETRY", "orders", 2, 0),
        ("PUBLISH", RETRY, 1, 0),
    ]


def test_a_retry_that_waits_is_published_when_it_is_due(replica: Replica) -> None:
    replica.one(produce(header("orders", 0, "a", 3)))
    replica.one(GiveBack("g", None, None, (GivenBack("orders", 0, 1, delay_ms=50),)))
    assert told(replica) == [("RETRY", "orders", 0, 1, 1)]
    replica.now_ms += 50
    replica.one(FireTimers(10))
    assert told(replica) == [("PUBLISH", RETRY, 0, 0, 1)]


def test_a_message_that_the_broker_made_is_named(replica: Replica) -> None:
    replica.one(prepare("tx", header()))
    replica.one(Decide("tx", "rollback"))
    replica.one(GiveBack("g", None, None, (GivenBack("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0, 0, delay_ms=0),)))
    assert [(event.type, event.message_id, event.transaction_id, event.messages) for event in events(replica)] == [
        ("RETRY", "op-0-0", "tx", None),
        ("PUBLISH", "op-0-0", "tx", None),
    ]


def test_a_restart_and_a_replay_give_the_same_rows(replica: Replica, tmp_path: Path) -> None:
    replica.one(prepare("tx", header("orders", 0, "a", 2)))
    replica.do(Decide("tx", "commit"), produce(header("orders", 0, "b")))
    replica.reopen()
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 2),)))
    again = Replica(tmp_path / "again")
    apply_all(again.machine, replica.log.entries[1:])
    rows = [{key: value for key, value in each.dump().items() if key[:1] == keys.OUTCOME} for each in (replica, again)]
    again.close()
    assert len(rows[0]) == 3
    assert rows[0] == rows[1]


def test_an_index_of_an_older_version_tells_from_where_it_knows(replica: Replica) -> None:
    assert replica.machine.first_outcome == 1
    replica.one(produce(header("orders", 0, "a")))
    applied = msgspec.msgpack.decode(replica.dump()[keys.META_APPLIED])
    replica.index.put(keys.META_APPLIED, msgspec.msgpack.encode(applied[:8]))
    replica.index.commit()
    replica.reopen()
    begins = replica.machine.applied_index + 1
    assert replica.machine.first_outcome == begins
    replica.one(produce(header("orders", 0, "b")))
    replica.reopen()
    assert replica.machine.first_outcome == begins
    assert told(replica) == [("PUBLISH", "orders", 0, 1, 1)]
