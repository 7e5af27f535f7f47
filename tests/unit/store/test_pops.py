"""Pop consumers in the replicated state: messages are handed out, acknowledged, held, and come again."""

from collections.abc import Sequence

import pytest

import store.groups.pops
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    GiveBack,
    GivenBack,
    JoinGroup,
    LeaveGroup,
    PutGroup,
    QueueOffset,
    ResetOffsets,
    TopicFilter,
)
from store.commands.pops import (
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    PopHandle,
    Popped,
    PoppedMessages,
    PopPick,
    PopsAcked,
    PopsExpired,
)
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.views import GroupOffset
from store.errors import Refused
from store.limits import POP_ACK_KEPT_MS, POP_ACK_SWEPT_MS, POP_INVISIBLE_MS_MAX, POP_MESSAGES_MAX
from tests.unit.store.replica import Replica, header, produce

INVISIBLE_MS = 60_000


@pytest.fixture(autouse=True)
def ten_messages(replica: Replica) -> None:
    replica.one(PutTopic("orders", 1))
    replica.one(produce(header(count=10)))


def pop(replica: Replica, most: int = 10, invisible_ms: int = INVISIBLE_MS, topic: str = "orders") -> list[PopHandle]:
    popped = replica.one(Pop("g", topic, "w", most, invisible_ms))
    assert isinstance(popped, Popped), popped
    return [each.handle(offset) for each in popped.messages for offset in each.offsets]


def ack(replica: Replica, handles: Sequence[PopHandle]) -> tuple[str, ...]:
    acked = replica.one(AckPopped("g", tuple(handles)))
    assert isinstance(acked, PopsAcked), acked
    return acked.outcomes


def change(replica: Replica, handle: PopHandle, invisible_ms: int | None) -> InvisibleChanged:
    changed = replica.one(ChangeInvisible("g", handle, invisible_ms, "why"))
    assert isinstance(changed, InvisibleChanged), changed
    return changed


def expire(replica: Replica, limit: int = 1_000) -> PopsExpired:
    expired = replica.one(ExpirePopped(limit))
    assert isinstance(expired, PopsExpired)
    return expired


def progress(replica: Replica, topic: str = "orders") -> GroupOffset:
    offsets = replica.machine.offsets("g", topic)
    assert offsets is not None
    return offsets[0]


def test_a_message_is_handed_out_once_and_counts_until_it_is_acknowledged(replica: Replica) -> None:
    first, second = pop(replica, 4), pop(replica, 4)
    assert [handle.offset for handle in (*first, *second)] == list(range(8))
    assert progress(replica) == GroupOffset("orders", 0, 8, 10, 10, 8, 0)
    assert ack(replica, [first[0], second[2], first[3]]) == ("acked",) * 3
    assert progress(replica) == GroupOffset("orders", 0, 8, 10, 7, 5, 1)
    replica.reopen()
    assert progress(replica) == GroupOffset("orders", 0, 8, 10, 7, 5, 1)
    assert ack(replica, [*first, *second]) == ("acked",) * 8
    assert [handle.offset for handle in pop(replica)] == [8, 9]
    assert pop(replica) == []


def test_what_is_not_acknowledged_in_time_comes_again_with_another_handle(replica: Replica) -> None:
    handles = pop(replica, 3)
    ack(replica, handles[1:2])
    replica.now_ms += INVISIBLE_MS - 1
    assert expire(replica) == PopsExpired((), 0, 0, 0)
    replica.now_ms += 1
    assert replica.machine.next_due_ms() == replica.now_ms
    again = PoppedMessages("orders", 0, handles[0].raft_index, 0, (0, 2))
    assert expire(replica) == PopsExpired((("g", again),), 2, 0, 1)
    assert ack(replica, handles) == ("handle_expired", "acked", "handle_expired")
    rows = replica.machine.rows("%RETRY%g", 0, 0, 10, 1 << 20)
    assert [(row.redelivery.offset, row.redelivery.attempt) for row in rows if row.redelivery] == [(0, 1), (2, 1)]
    assert {handle.offset for handle in pop(replica)} == set(range(3, 10)) | {0, 1}
    assert progress(replica, "%RETRY%g") == GroupOffset("%RETRY%g", 0, 2, 2, 2, 2, 0)


def test_an_acknowledgement_a_little_late_counts_if_nobody_else_has_the_message(replica: Replica) -> None:
    handles = pop(replica, 1)
    replica.now_ms += INVISIBLE_MS + 5_000
    assert ack(replica, handles) == ("acked",)
    assert expire(replica).scheduled == 0


def test_an_acknowledgement_may_be_repeated_for_a_while(replica: Replica) -> None:
    handles = pop(replica, 2, POP_INVISIBLE_MS_MAX)
    ack(replica, handles)
    replica.now_ms += POP_ACK_KEPT_MS - 1
    expire(replica)
    assert ack(replica, handles) == ("acked", "acked")
    replica.now_ms += POP_ACK_SWEPT_MS
    expire(replica)
    assert ack(replica, handles) == ("handle_expired", "handle_expired")
    assert not [key for key in replica.dump() if key[:1] in b"pP"], "nothing is left of them"


def test_an_acknowledgement_is_remembered_beyond_the_time_of_its_lease(replica: Replica) -> None:
    """A consumer whose answer got lost asks again. Told that it came too late, it would take back its work, and the
    message would never come again."""
    whole, part, lent = pop(replica, 2, 1_000), pop(replica, 2, 1_000), pop(replica, 2, 1_000)
    acked = [*whole, part[0], lent[0]]
    ack(replica, acked)
    change(replica, lent[1], 2_000)
    replica.now_ms += POP_ACK_KEPT_MS - 1
    assert expire(replica).scheduled == 2
    assert ack(replica, acked) == ("acked",) * 4
    for _ in range(2):
        replica.now_ms += POP_ACK_KEPT_MS + POP_ACK_SWEPT_MS
        expire(replica)
    assert ack(replica, acked) == ("handle_expired",) * 4
    assert not [key for key in replica.dump() if key[:1] in b"pP"], "nothing is left of them"


def test_a_message_is_held_on_to_alone_and_keeps_its_handle(replica: Replica) -> None:
    handles = pop(replica, 3, 1_000)
    assert change(replica, handles[1], 5_000) == InvisibleChanged("g", "held", replica.now_ms + 5_000)
    replica.now_ms += 1_000
    assert expire(replica).scheduled == 2
    assert change(replica, handles[1], 5_000).due_ms == replica.now_ms + 5_000
    assert replica.refusal(ChangeInvisible("g", handles[0], 5_000)).code == "handle_expired"
    assert ack(replica, handles) == ("handle_expired", "acked", "handle_expired")
    assert replica.refusal(ChangeInvisible("g", handles[1], 5_000)).code == "handle_expired"


def test_what_is_held_for_a_shorter_time_leaves_acknowledged_ones_theirs(replica: Replica) -> None:
    """Seed 983284: the last held message of a lease took the others' time along."""
    handles = pop(replica, 2)
    ack(replica, handles[:1])
    change(replica, handles[1], 1_000)
    replica.now_ms += 1_000
    assert expire(replica).scheduled == 1
    assert ack(replica, handles) == ("acked", "handle_expired")


def test_giving_back_is_at_once_or_by_the_groups_back_off(replica: Replica) -> None:
    handles = pop(replica, 3)
    assert change(replica, handles[0], 0) == InvisibleChanged("g", "scheduled", replica.now_ms)
    assert change(replica, handles[1], None) == InvisibleChanged("g", "scheduled", replica.now_ms + 10_000)
    assert ack(replica, handles) == ("handle_expired", "handle_expired", "acked")
    assert {handle.offset for handle in pop(replica)} == {0, *range(3, 10)}
    (row,) = replica.machine.rows("%RETRY%g", 0, 0, 9, 9)
    assert row.redelivery is not None
    assert row.redelivery.history[0].client_id == "w"


def test_what_comes_again_too_often_is_a_dead_letter(replica: Replica) -> None:
    replica.one(PutGroup("g", retry_max_attempts=2))
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 9),)))
    for outcome in ("scheduled", "scheduled", "dead_lettered"):
        (handle,) = pop(replica)
        assert change(replica, handle, 0).outcome == outcome
    assert pop(replica) == []
    (row,) = replica.machine.rows("%DLQ%g", 0, 0, 10, 1 << 20)
    assert row.redelivery is not None
    assert [(each.attempt, each.reason) for each in row.redelivery.history] == [(1, "why"), (2, "why"), (3, "why")]


def test_queues_and_what_comes_again_take_turns(replica: Replica) -> None:
    replica.one(PutTopic("many", 3))
    for queue in range(3):
        replica.one(produce(header("many", queue, f"m{queue}", count=40)))
    popped = [replica.one(Pop("turns", "many", "", 4, 1_000)) for _ in range(3)]
    assert {each.queue for result in popped if isinstance(result, Popped) for each in result.messages} == {0, 1, 2}
    several = replica.do(*[Pop("turns", "many", "", 4, 1_000)] * 3)
    assert len({each.queue for result in several if isinstance(result, Popped) for each in result.messages}) == 3
    everything = replica.one(Pop("turns", "many", "", POP_MESSAGES_MAX, 1_000))
    assert isinstance(everything, Popped)
    assert sum(len(each.offsets) for each in everything.messages) == POP_MESSAGES_MAX


def test_a_filter_hands_out_what_was_picked_unless_somebody_was_there_meanwhile(replica: Replica) -> None:
    only = TopicFilter("orders", "tags", "A")

    def picked(begin: int, end: int, *offsets: int) -> list[int]:
        popped = replica.one(Pop("g", "orders", "w", 10, 1_000, False, only, (PopPick(0, begin, end, offsets),)))
        assert isinstance(popped, Popped)
        return [offset for each in popped.messages for offset in each.offsets]

    assert picked(0, 5, 1, 3) == [1, 3]
    assert progress(replica) == GroupOffset("orders", 0, 5, 10, 7, 2, 1)
    assert picked(0, 9, 7) == []
    assert picked(5, 11, 7) == []
    assert picked(5, 10) == []
    assert progress(replica) == GroupOffset("orders", 0, 10, 10, 2, 2, 1)


def test_a_new_group_begins_where_it_says(replica: Replica) -> None:
    assert replica.one(Pop("late", "orders", "", 5, 1_000, from_end=True)) == Popped("late", (), 2_000)
    replica.one(produce(header(batch_id="b2")))
    popped = replica.one(Pop("late", "orders", "", 5, 1_000))
    assert isinstance(popped, Popped)
    assert popped.messages[0].offsets == (10,)


def test_members_and_pop_consumers_do_not_share_a_group(replica: Replica) -> None:
    join = JoinGroup("g", "m", "c", ("orders",), 30_000)
    (handle,) = pop(replica, 1)
    for command in (
        join,
        CommitOffsets("g", None, None, (QueueOffset("orders", 0, 5),)),
        GiveBack("g", None, None, (GivenBack("orders", 0, 5),)),
    ):
        refused = replica.refusal(command)
        assert (refused.code, refused.extra["held"]) == ("group_is_popped", 1)
    replica.one(CommitOffsets("other", None, None, (QueueOffset("orders", 0, 5),)))
    assert replica.refusal(CloneOffsets("g", "other")).code == "group_is_popped"
    ack(replica, [handle])
    assert not isinstance(replica.one(join), Refused)
    assert replica.refusal(Pop("g", "orders", "", 1, 1)).code == "group_has_members"
    replica.one(LeaveGroup("g", "m"))
    assert [handle.offset for handle in pop(replica, 1)] == [1]


def test_those_who_pop_want_the_same(replica: Replica) -> None:
    replica.one(PutTopic("points", 1))
    (handle,) = pop(replica, 1)
    assert replica.refusal(Pop("g", "points", "", 1, 1)).code == "subscription_mismatch"
    assert replica.refusal(Pop("g", "orders", "", 1, 1, False, TopicFilter("orders", "tags", "A"))).code == (
        "subscription_mismatch"
    )
    change(replica, handle, 0)
    assert len(pop(replica, topic="points")) == 1, "what comes again is for whoever asks"
    assert replica.refusal(Pop("g", "orders", "", 1, 1)).code == "subscription_mismatch"


def test_what_a_member_read_binds_no_pop_consumer(replica: Replica) -> None:
    replica.one(PutTopic("points", 1))
    (handle,) = pop(replica, 1)
    change(replica, handle, 0)
    replica.one(JoinGroup("g", "m", "c", ("points",), 30_000))
    replica.one(LeaveGroup("g", "m"))
    assert {handle.offset for handle in pop(replica)} == {0, *range(1, 10)}


def test_a_clone_begins_before_what_is_held(replica: Replica) -> None:
    handles = pop(replica, 5)
    ack(replica, handles[:2])
    replica.one(CloneOffsets("copy", "g"))
    assert [each.offset for each in replica.machine.offsets("copy") or ()] == [2]


def test_a_reset_or_the_end_of_the_topic_ends_all_handles(replica: Replica) -> None:
    handles = pop(replica, 3)
    replica.one(ResetOffsets("g", (QueueOffset("orders", 0, 1),)))
    assert ack(replica, handles) == ("handle_expired",) * 3
    assert progress(replica) == GroupOffset("orders", 0, 1, 10, 9, 0, 1)
    handles = pop(replica, 3)
    replica.one(DeleteTopic("orders"))
    assert ack(replica, handles) == ("handle_expired",) * 3
    replica.now_ms += INVISIBLE_MS
    assert expire(replica) == PopsExpired((), 0, 0, 0)


def test_limits(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (
        Pop("g", "orders", "", 0, 1),
        Pop("g", "orders", "", POP_MESSAGES_MAX + 1, 1),
        Pop("g", "orders", "", 1, 0),
        Pop("g", "orders", "", 1, POP_INVISIBLE_MS_MAX + 1),
    ):
        assert replica.refusal(command).code == "invalid_request"
    assert replica.refusal(Pop("g", "none", "", 1, 1)).code == "topic_not_found"
    assert replica.refusal(AckPopped("g", (PopHandle(1, 0, 0),))).code == "group_not_found"
    (handle,) = pop(replica, 1)
    assert replica.refusal(ChangeInvisible("g", handle, POP_INVISIBLE_MS_MAX + 1)).code == "invalid_request"
    assert replica.refusal(ChangeInvisible("g", handle, 0, "x" * 256)).code == "invalid_request"
    change(replica, handle, 0)
    assert replica.refusal(Pop("g", "%RETRY%g", "", 1, 1)).code == "invalid_request"
    monkeypatch.setattr(store.groups.pops, "POP_HELD_MAX", 4)
    assert len(pop(replica, 3)) == 3
    assert len(pop(replica, 3)) == 1
    assert replica.refusal(Pop("g", "orders", "", 1, 1)).code == "too_many_held"


def test_a_pop_begins_no_further_batch_beyond_its_bytes(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.groups.pops, "POP_BYTES_MAX", 50)
    for number in range(3):
        replica.one(produce(header(batch_id=f"b-{number}", count=2)))
    replica.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 10),)))
    assert [handle.offset for handle in pop(replica)] == [10, 11, 12, 13]


def test_a_few_leases_expire_at_a_time(replica: Replica) -> None:
    for _ in range(3):
        pop(replica, 2)
    replica.now_ms += INVISIBLE_MS
    assert [expire(replica, limit).leases for limit in (1, 4, 4)] == [1, 2, 0]


def test_acknowledged_leases_are_forgotten_many_at_a_time(replica: Replica) -> None:
    dues = []
    for _ in range(5):
        ack(replica, pop(replica, 2))
        dues.append(replica.machine.next_due_ms())
        replica.now_ms += 10
    assert set(dues) == {-(-(1_000 + INVISIBLE_MS) // POP_ACK_SWEPT_MS) * POP_ACK_SWEPT_MS}
    replica.now_ms += INVISIBLE_MS + POP_ACK_SWEPT_MS
    assert expire(replica) == PopsExpired((), 0, 0, 5)
