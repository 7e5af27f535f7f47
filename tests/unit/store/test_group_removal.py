"""Deleting a group removes all of its own data, and nothing else."""

import pytest

from store.commands.groups import (
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    GroupDeleted,
    JoinGroup,
    LeaveGroup,
    PutGroup,
    QueueOffset,
)
from store.commands.messages import Fired, FireTimers
from store.commands.pops import Pop
from store.commands.topics import PutTopic
from store.commands.transactions import Decide, Decided, RecordChecks
from store.messages.topics import DISCARDED_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tests.unit.store.replica import Replica, header, prepare, produce
from tests.whole_state import trace_of


@pytest.fixture(autouse=True)
def used(replica: Replica) -> None:
    """Make a group that has everything a group can have."""
    replica.one(PutTopic("orders", 1))
    replica.one(produce(header(count=10)))
    replica.one(PutGroup("g", retry_max_attempts=1, retry_delays_ms=(1_000,)))
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 2),)))
    replica.one(GiveBack("g", None, None, (GivenBack("orders", 0, 3), GivenBack("orders", 0, 4, "", 0))))
    replica.one(GiveBack("g", None, None, (GivenBack("%RETRY%g", 0, 0),)))


def test_nothing_of_it_stays_but_its_dead_letters(replica: Replica) -> None:
    deleted = replica.one(DeleteGroup("g", operator="ann", reason="not needed"))
    assert deleted == GroupDeleted("g", ("%RETRY%g",))
    replica.now_ms += 1_000
    fired = replica.one(FireTimers(10))
    assert isinstance(fired, Fired)
    assert (fired.positions, fired.dropped) == ((), 1)
    for _ in range(2):
        assert replica.machine.group("g") is None
        assert replica.machine.offsets("g") is None
        assert replica.machine.topic("%RETRY%g") is None
        assert len(replica.machine.rows("%DLQ%g", 0, 0, 10, 1 << 20)) == 1
        assert not [key for key in replica.dump() if key[:1] in b"gown"]
        replica.reopen()
    assert replica.refusal(DeleteGroup("g")).code == "group_not_found"


def test_dead_letters_go_when_they_are_told_to(replica: Replica) -> None:
    assert replica.one(DeleteGroup("g", with_dead_letters=True)) == GroupDeleted("g", ("%RETRY%g", "%DLQ%g"))
    assert replica.machine.topic("%DLQ%g") is None


def test_a_group_of_the_same_name_begins_anew(replica: Replica) -> None:
    replica.one(DeleteGroup("g"))
    replica.one(JoinGroup("g", "m", "c", ("orders",), 30_000))
    view = replica.machine.group("g")
    assert view is not None
    assert (view.retry_max_attempts, view.generation) == (16, 1)
    assert replica.machine.offsets("g") == []


def test_a_group_that_is_used_stays(replica: Replica) -> None:
    replica.one(JoinGroup("g", "m", "c", ("orders",), 30_000))
    assert replica.refusal(DeleteGroup("g")).code == "group_has_members"
    replica.one(LeaveGroup("g", "m"))
    replica.one(Pop("g", "orders", "w", 1, 1_000))
    assert replica.refusal(DeleteGroup("g")).code == "group_is_popped"
    assert replica.refusal(DeleteGroup("g", reason="x" * 256)).code == "invalid_request"


def test_others_do_not_notice(replica: Replica) -> None:
    replica.one(CommitOffsets("h", None, None, (QueueOffset("orders", 0, 7),)))
    replica.one(GiveBack("h", None, None, (GivenBack("orders", 0, 8, "", 0),)))
    replica.one(DeleteGroup("g", with_dead_letters=True))
    offsets = replica.machine.offsets("h") or ()
    assert {(each.topic, each.offset) for each in offsets} == {("orders", 7), ("%RETRY%h", 0)}
    assert len(replica.machine.rows("%RETRY%h", 0, 0, 10, 1 << 20)) == 1


def test_transactions_of_a_producer_group_of_that_name_go_on(replica: Replica) -> None:
    """RocketMQ issue 2133: deleting a group took the queue of decisions with it, and checks went wrong from then on."""
    for number in range(2):
        replica.one(prepare(f"t{number}", header(batch_id=f"t{number}"), producer_group="g"))
    before = replica.machine.max_offset(OP_HALF_TOPIC, 0)
    replica.one(DeleteGroup("g", with_dead_letters=True))
    assert len(replica.machine.due_checks(replica.now_ms + 60_000, 10)) == 2
    replica.one(RecordChecks(("t0", "t1"), "c", "poll", 30_000))
    decided = replica.one(Decide("t0", "commit", producer_group="g"))
    assert isinstance(decided, Decided)
    assert decided.positions
    replica.one(Decide("t1", "rollback", producer_group="g"))
    assert replica.machine.max_offset(OP_HALF_TOPIC, 0) == before + 2
    for topic in (HALF_TOPIC, OP_HALF_TOPIC, DISCARDED_TOPIC):
        assert replica.machine.topic(topic) is not None
    assert replica.machine.transactions_undecided == 0


def test_a_trace_does_not_go_on_with_a_message_of_a_later_group_of_that_name(replica: Replica) -> None:
    def events_of_message(offset: int) -> list[tuple[str, str | None]]:
        (place,) = (
            found for found in replica.machine.message_places("orders", f"b1-{offset}", 10) if found.offset == offset
        )
        return [(event.event, event.topic) for event in trace_of(replica.machine, place)]

    before = events_of_message(4)
    assert before == [
        ("produced", "orders"),
        ("given_back", None),
        ("given_again", "%RETRY%g"),
        ("given_back", None),
        ("dead_lettered", "%DLQ%g"),
    ]
    replica.one(DeleteGroup("g"))
    replica.one(GiveBack("g", None, None, (GivenBack("orders", 0, 9, "", 0),)))  # at offset 0 of the new retry topic
    replica.one(CommitOffsets("g", None, None, (QueueOffset("%RETRY%g", 0, 1),)))
    without_place = [(event, None if topic == "%RETRY%g" else topic) for event, topic in before]
    assert events_of_message(4) == without_place
    assert events_of_message(9)[-1] == ("consumed", "%RETRY%g")
