"""Consumer groups assign queues, fence members, and keep offsets."""

from typing import NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.commands.groups import (
    AssignedQueue,
    CommitOffsets,
    DeleteGroup,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    OffsetsCommitted,
    OffsetsReset,
    QueueOffset,
    ResetOffsets,
    TopicFilter,
)
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.views import GroupOffset, GroupView
from store.groups.assignment import assign
from store.index import keys
from tests.unit.store.replica import Replica, header, produce
from tests.whole_state import groups_of


@pytest.fixture(autouse=True)
def ten_messages_per_queue(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2), PutTopic("points", 1))
    replica.do(*(produce(header("orders", queue, f"b{queue}", 10)) for queue in range(2)))


def join(member: str = "m1", *topics: str, timeout_ms: int = 30_000) -> JoinGroup:
    return JoinGroup("g", member, f"client of {member}", topics or ("orders",), timeout_ms)


def joined(replica: Replica, command: JoinGroup) -> Joined:
    result = replica.one(command)
    assert isinstance(result, Joined), result
    return result


def commit(offset: int, queue: int = 0, *, member: str | None = "m1", generation: int | None = 1) -> CommitOffsets:
    return CommitOffsets("g", member, generation, (QueueOffset("orders", queue, offset),))


def group(replica: Replica) -> GroupView:
    found = replica.machine.group("g")
    assert found is not None
    return found


def committed(replica: Replica) -> dict[tuple[str, int], int]:
    return {(item.topic, item.queue): item.offset for item in replica.machine.offsets("g") or []}


def test_the_first_member_gets_every_queue(replica: Replica) -> None:
    everything = (AssignedQueue("orders", 0), AssignedQueue("orders", 1), AssignedQueue("points", 0))
    assert joined(replica, join("m1", "points", "orders", "points")) == Joined("g", "m1", 1, everything, 30_000)
    replica.reopen()
    found = group(replica)
    assert (found.generation, found.topics) == (1, ("orders", "points"))
    assert found.members[0].assignment == everything
    assert groups_of(replica.machine) == [found]
    assert replica.machine.group("other") is None


def test_joining_again_without_a_change_keeps_the_generation(replica: Replica) -> None:
    first = joined(replica, join())
    again = joined(replica, join(timeout_ms=10_000))
    assert (again.generation, again.assignment) == (first.generation, first.assignment)
    assert group(replica).members[0].session_timeout_ms == 10_000


def test_a_second_member_takes_its_share_and_no_more(replica: Replica) -> None:
    joined(replica, join("m1"))
    second = joined(replica, join("m2"))
    assert second.generation == 2
    assert second.assignment == (AssignedQueue("orders", 1),)
    assert group(replica).members[0].assignment == (AssignedQueue("orders", 0),)
    third = joined(replica, join("m3"))
    assert (third.generation, third.assignment) == (3, ())


def test_a_leaving_member_gives_its_queues_to_the_others(replica: Replica) -> None:
    joined(replica, join("m1"))
    joined(replica, join("m2"))
    assert replica.one(LeaveGroup("g", "m1", "expired")) == Left("g", "m1", 3)
    assert group(replica).members[0].assignment == (AssignedQueue("orders", 0), AssignedQueue("orders", 1))
    assert replica.one(LeaveGroup("g", "m2")) == Left("g", "m2", 4)
    assert group(replica).members == ()


def test_leaving_what_one_is_not_in_is_refused(replica: Replica) -> None:
    assert replica.refusal(LeaveGroup("g", "m1")).code == "group_not_found"
    joined(replica, join("m1"))
    refused = replica.refusal(LeaveGroup("g", "m2"))
    assert (refused.code, refused.extra) == ("member_not_found", {"generation": 1})


def test_members_subscribe_to_the_same_topics(replica: Replica) -> None:
    joined(replica, join("m1", "orders"))
    refused = replica.refusal(join("m2", "points"))
    assert refused.code == "subscription_mismatch"
    assert refused.extra == {"topics": ["orders"], "generation": 1}


def test_a_member_that_is_alone_may_change_its_topics(replica: Replica) -> None:
    joined(replica, join("m1", "orders"))
    changed = joined(replica, join("m1", "points"))
    assert (changed.generation, changed.assignment) == (2, (AssignedQueue("points", 0),))
    joined(replica, join("m2", "points"))
    assert replica.refusal(join("m1", "orders")).code == "subscription_mismatch"


ORDERS_OVER_3 = TopicFilter("orders", "sql", "price > 3")
POINTS_A_OR_B = TopicFilter("points", "tags", "A || B")


def filtered(member: str, *filters: TopicFilter) -> JoinGroup:
    return JoinGroup("g", member, "c", ("orders", "points"), 30_000, filters)


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ((), "the tags A || B of topic points, this one all messages"),
        ((TopicFilter("points", "tags", "A"),), "the tags A || B of topic points, this one the tags A"),
        ((TopicFilter("points", "sql", "A"),), "the tags A || B of topic points, this one what matches [A]"),
        ((POINTS_A_OR_B, ORDERS_OVER_3), "all messages of topic orders, this one what matches [price > 3]"),
    ],
)
def test_members_read_the_same_messages_of_each_topic(
    replica: Replica, filters: tuple[TopicFilter, ...], words: str
) -> None:
    joined(replica, filtered("m1", POINTS_A_OR_B))
    refused = replica.refusal(filtered("m2", *filters))
    assert refused.code == "subscription_mismatch"
    assert words in refused.detail
    assert refused.extra["generation"] == 1
    assert words.startswith(refused.extra["subscribed"])
    assert words.endswith(refused.extra["requested"])
    assert joined(replica, filtered("m2", POINTS_A_OR_B)).generation == 2


def test_a_member_that_is_alone_may_change_its_filters(replica: Replica) -> None:
    joined(replica, filtered("m1", POINTS_A_OR_B, ORDERS_OVER_3))
    assert group(replica).filters == (ORDERS_OVER_3, POINTS_A_OR_B)
    assert joined(replica, filtered("m1", ORDERS_OVER_3, POINTS_A_OR_B)).generation == 1, "the order means nothing"
    assert joined(replica, filtered("m1", ORDERS_OVER_3)).generation == 2
    replica.one(LeaveGroup("g", "m1"))
    replica.reopen()
    assert group(replica).filters == (ORDERS_OVER_3,)
    assert joined(replica, filtered("m2")).generation == 4
    assert group(replica).filters == ()


def test_a_group_that_was_stored_without_filters_reads_everything(replica: Replica) -> None:
    joined(replica, join("m1"))
    key = keys.group("g")
    stored = replica.index.get(key)
    assert stored is not None
    before, since = msgspec.msgpack.decode(stored)[:4], msgspec.msgpack.decode(stored)[4:]
    assert (len(before), since[0], since[1]) == (4, [], 16)
    replica.index.put(key, msgspec.msgpack.encode(before))
    replica.index.commit()
    replica.reopen()
    assert group(replica).filters == ()
    assert joined(replica, join("m2")).generation == 2


def test_a_subscription_needs_topics_that_exist(replica: Replica) -> None:
    assert replica.refusal(join("m1", "orders", "nowhere")).code == "topic_not_found"
    assert replica.refusal(JoinGroup("g", "m1", "c", (), 30_000)).code == "invalid_request"
    assert groups_of(replica.machine) == []


def test_offsets_are_committed_all_or_none_and_survive_a_restart(replica: Replica) -> None:
    joined(replica, join())
    both = (QueueOffset("orders", 0, 10), QueueOffset("orders", 1, 3))
    assert replica.one(CommitOffsets("g", "m1", 1, both)) == OffsetsCommitted("g", both)
    replica.reopen()
    assert replica.machine.offsets("g") == [
        GroupOffset("orders", 0, 10, 10, 0, 0, 10),
        GroupOffset("orders", 1, 3, 10, 7, 0, 3),
    ]
    assert replica.machine.offsets("g", "points") == []
    assert replica.machine.offsets("other") is None
    half_wrong = (QueueOffset("orders", 1, 5), QueueOffset("orders", 0, 11))
    refused = replica.refusal(CommitOffsets("g", "m1", 1, half_wrong))
    assert (refused.code, refused.extra["max_offset"]) == ("offset_out_of_range", 10)
    assert committed(replica) == {("orders", 0): 10, ("orders", 1): 3}


def test_a_committed_offset_does_not_move_back(replica: Replica) -> None:
    joined(replica, join())
    replica.one(commit(5))
    refused = replica.refusal(commit(4))
    assert refused.code == "offset_moves_back"
    assert (refused.extra["committed"], refused.extra["generation"]) == (5, 1)
    replica.one(commit(5))
    replica.one(commit(6))
    assert committed(replica) == {("orders", 0): 6}


def test_a_commit_is_fenced_by_member_and_generation(replica: Replica) -> None:
    assert replica.refusal(commit(1)).code == "group_not_found"
    joined(replica, join("m1"))
    assert replica.refusal(commit(1, member="m9")).code == "member_not_found"
    for generation in (0, 2, None):
        refused = replica.refusal(commit(1, generation=generation))
        assert (refused.code, refused.extra) == ("stale_generation", {"generation": 1})
    joined(replica, join("m2"))
    assert replica.refusal(commit(1)).code == "stale_generation"
    refused = replica.refusal(commit(1, queue=1, generation=2))
    assert (refused.code, refused.extra["queue"]) == ("not_assigned", 1)
    replica.one(commit(1, queue=1, member="m2", generation=2))
    assert committed(replica) == {("orders", 1): 1}


def test_offsets_of_what_does_not_exist_are_refused(replica: Replica) -> None:
    joined(replica, join())
    for offset, code in (
        (QueueOffset("nowhere", 0, 0), "topic_not_found"),
        (QueueOffset("orders", 2, 0), "queue_not_found"),
        (QueueOffset("orders", 0, -1), "invalid_request"),
        (QueueOffset("orders", 0, 11), "offset_out_of_range"),
    ):
        assert replica.refusal(CommitOffsets("g", "m1", 1, (offset,))).code == code
        assert replica.refusal(ResetOffsets("g", (offset,))).code == code


def test_without_a_member_only_while_the_group_has_none(replica: Replica) -> None:
    replica.one(commit(3, member=None, generation=None))
    assert committed(replica) == {("orders", 0): 3}
    joined(replica, join())
    refused = replica.refusal(commit(4, member=None, generation=None))
    assert (refused.code, refused.extra) == ("group_has_members", {"generation": 1})
    replica.one(LeaveGroup("g", "m1"))
    replica.one(commit(4, member=None, generation=None))
    assert committed(replica) == {("orders", 0): 4}


def test_a_reset_goes_back_and_moves_the_generation_on(replica: Replica) -> None:
    assert replica.refusal(ResetOffsets("g", ())).code == "group_not_found"
    joined(replica, join())
    replica.one(commit(8))
    to = (QueueOffset("orders", 0, 2),)
    assert replica.one(ResetOffsets("g", to)) == OffsetsReset("g", 2, to)
    assert committed(replica) == {("orders", 0): 2}
    assert replica.refusal(commit(9)).code == "stale_generation"
    replica.one(commit(3, generation=2))
    replica.reopen()
    assert committed(replica) == {("orders", 0): 3}
    assert group(replica).generation == 2


def test_new_queues_of_a_topic_are_assigned(replica: Replica) -> None:
    joined(replica, join("m1"))
    joined(replica, join("m2"))
    replica.one(PutTopic("orders", 4))
    found = group(replica)
    assert found.generation == 3
    assert [[item.queue for item in member.assignment] for member in found.members] == [[0, 2], [1, 3]]
    replica.one(PutTopic("orders", retention_ms=5))
    replica.one(PutTopic("points", 3))
    assert group(replica).generation == 3


def test_deleting_a_topic_takes_its_queues_and_offsets(replica: Replica) -> None:
    joined(replica, join("m1", "orders", "points"))
    replica.one(commit(7))
    replica.one(DeleteTopic("orders"))
    assert group(replica).generation == 2
    assert group(replica).members[0].assignment == (AssignedQueue("points", 0),)
    assert committed(replica) == {}
    assert not [key for key in replica.dump() if key[:1] == b"o"]
    # A topic of that name to come is assigned, and its offsets start afresh.
    replica.one(PutTopic("orders", 1))
    replica.reopen()
    assert group(replica).generation == 3
    assert group(replica).members[0].assignment == (AssignedQueue("orders", 0), AssignedQueue("points", 0))
    assert committed(replica) == {}


_members = st.sets(st.text("abcdef", min_size=1, max_size=2), min_size=1, max_size=6)
_queues = st.integers(0, 12).map(lambda count: [("t", queue) for queue in range(count)])


@given(_members, _members, _queues, _queues)
def test_assignment_is_complete_balanced_and_moves_as_few_as_possible(
    before: set[str], after: set[str], old_queues: list[tuple[str, int]], queues: list[tuple[str, int]]
) -> None:
    old = assign({member: [] for member in before}, old_queues)
    held = {member: old.get(member, []) for member in after}
    new = assign(held, queues)
    assert new.keys() == after
    assert sorted(queue for assigned in new.values() for queue in assigned) == queues
    counts = sorted(len(assigned) for assigned in new.values())
    assert counts[-1] - counts[0] <= 1
    # No way to balance keeps more: the best is reached by giving the larger shares to those that hold most.
    share, larger = divmod(len(queues), len(after))
    holding = sorted((len([queue for queue in held[member] if queue in queues]) for member in after), reverse=True)
    best = sum(min(count, share + (rank < larger)) for rank, count in enumerate(holding))
    assert sum(len(set(new[member]) & set(held[member])) for member in after) == best


def test_nobody_to_assign_to() -> None:
    assert assign({}, [("t", 0)]) == {}


def test_new_queues_of_a_topic_are_read_from_their_beginning(replica: Replica) -> None:
    """A group that starts at the latest offset and has no member while the queues fill reads them from there, too."""
    replica.do(join(), JoinGroup("h", "m9", "client of m9", ("points",), 30_000))
    replica.do(commit(3), LeaveGroup("g", "m1", "leave"))
    replica.do(PutTopic("orders", 4), produce(header("orders", 3, "new", 5)))
    assert committed(replica) == {("orders", 0): 3, ("orders", 2): 0, ("orders", 3): 0}
    assert replica.machine.offsets("h", "orders") == []


class NeverWalked(dict[int, dict[int, dict[int, int]]]):
    """The remembered passes of all groups, through which no deletion of a topic or group may look."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("the passes of all groups are walked through")


def test_a_deleted_topic_costs_nothing_of_what_is_remembered_of_others(replica: Replica) -> None:
    replica.do(PutTopic("others", 2), produce(header("others")))
    for topic in ("orders", "others"):
        for group in ("g1", "g2"):
            replica.one(CommitOffsets(group, None, None, (QueueOffset(topic, 0, 1),)))
    history = replica.machine._groups._history
    history._passes = NeverWalked(history._passes)
    assert [len(topics) for topics in history._passes.values()] == [2, 2]
    replica.one(DeleteTopic("orders"))
    assert [len(topics) for topics in history._passes.values()] == [1, 1]
    replica.one(DeleteGroup("g1"))
    assert [len(topics) for topics in history._passes.values()] == [1]
    replica.one(DeleteTopic("others"))
    assert not history._passes
