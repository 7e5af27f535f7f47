"""The model of pop consumers accepts each rule kept and accuses each rule broken."""

import pytest

from store.commands.groups import (
    DeleteGroup,
    GroupDeleted,
    GroupPause,
    GroupPauseSet,
    Joined,
    OffsetsReset,
    PauseGroup,
    ResetOffsets,
)
from store.commands.groups import QueueOffset as At
from store.commands.pops import (
    AckOutcome,
    AckPopped,
    ChangeInvisible,
    ExpirePopped,
    InvisibleChanged,
    Pop,
    PopHandle,
    Popped,
    PoppedMessages,
    PopsAcked,
    PopsExpired,
)
from store.errors import GROUP_HAS_MEMBERS, GROUP_IS_POPPED, GROUP_NOT_FOUND, HANDLE_EXPIRED, Refused

from .broken import broken
from .checkers.group_model import GroupModel, KnownGroup
from .checkers.pop_model import PopModel
from .checkers.retention import Retention

FIRST = PopHandle(7, 0, 0)
NOW_MS, INVISIBLE_MS = 1_000, 100
JOINED = Joined("g", "m", 1, (), 1_000)


def messages(*offsets: int, raft_index: int = 7) -> PoppedMessages:
    return PoppedMessages("orders", 0, raft_index, 0, offsets)


def pop(model: PopModel, *offsets: int, raft_index: int = 7, due_ms: int = NOW_MS + INVISIBLE_MS) -> None:
    given = (messages(*offsets, raft_index=raft_index),) if offsets else ()
    model.pop(Pop("g", "orders", "w", 8, INVISIBLE_MS), Popped("g", given, due_ms), NOW_MS)


def ack(model: PopModel, outcome: AckOutcome, handle: PopHandle = FIRST, at_ms: int = NOW_MS) -> None:
    model.ack(AckPopped("g", (handle,)), PopsAcked("g", (outcome,)), at_ms)


def change(model: PopModel, result: InvisibleChanged | Refused, invisible_ms: int | None = 50) -> None:
    model.change(ChangeInvisible("g", FIRST, invisible_ms), result, NOW_MS)


def expire(model: PopModel, at_ms: int, *offsets: int) -> None:
    result = PopsExpired((("g", messages(*offsets)),), len(offsets), 0, 1)
    model.expire(ExpirePopped(10), result, at_ms)


def fresh() -> PopModel:
    retention = Retention()
    return PopModel(GroupModel(retention), retention)


@pytest.fixture
def model() -> PopModel:
    """Return a model in which the messages 0 and 1 are handed out."""
    made = fresh()
    made.ack_kept_ms = 60
    pop(made, 0, 1)
    return made


def test_messages_are_handed_out_once_and_in_order(model: PopModel) -> None:
    broken("popped_twice", lambda: pop(model, 1, raft_index=8))
    broken("pop_order", lambda: pop(model, 3, raft_index=8))
    broken("pop_times", lambda: pop(model, due_ms=NOW_MS + 1))
    ack(model, "acked")
    broken("pop_order", lambda: pop(model, 0, raft_index=8))


def test_a_handle_is_never_used_again(model: PopModel) -> None:
    expire(model, NOW_MS + INVISIBLE_MS, 0)
    model.reset(ResetOffsets("g", (At("orders", 0, 0),)), OffsetsReset("g", 1, ()))
    broken("popped_twice", lambda: pop(model, 0))


def test_acknowledgements_are_fenced(model: PopModel) -> None:
    broken("ack_fencing", lambda: ack(model, "handle_expired"))
    broken("ack_fencing", lambda: ack(model, "acked", PopHandle(8, 0, 0)))
    ack(model, "acked")
    ack(model, "acked")
    broken("ack_fencing", lambda: ack(model, "handle_expired", at_ms=NOW_MS + 59))
    ack(model, "handle_expired", at_ms=NOW_MS + 60)
    expire(model, NOW_MS + INVISIBLE_MS, 1)
    broken("ack_fencing", lambda: ack(model, "acked", PopHandle(7, 0, 1)))


def test_what_comes_again_was_held_and_its_time_was_over(model: PopModel) -> None:
    broken("pop_times", lambda: expire(model, NOW_MS + INVISIBLE_MS - 1, 0))
    expire(model, NOW_MS + INVISIBLE_MS, 0)
    broken("popped_twice", lambda: expire(model, NOW_MS + INVISIBLE_MS, 0))
    ack(model, "acked", PopHandle(7, 0, 1))
    broken("popped_twice", lambda: expire(model, NOW_MS + INVISIBLE_MS, 1))


def test_more_time_is_what_was_asked_for(model: PopModel) -> None:
    broken("pop_times", lambda: change(model, InvisibleChanged("g", "held", NOW_MS + 49)))
    broken("ack_fencing", lambda: change(model, Refused(HANDLE_EXPIRED, "")))
    change(model, InvisibleChanged("g", "held", NOW_MS + 50))
    change(model, InvisibleChanged("g", "scheduled", NOW_MS), 0)
    broken("ack_fencing", lambda: change(model, InvisibleChanged("g", "scheduled", NOW_MS), 0))
    change(model, Refused(HANDLE_EXPIRED, ""))


def test_a_group_has_members_or_pop_consumers(model: PopModel) -> None:
    broken("pop_or_members", lambda: model.join("g", JOINED))
    model.join("g", Refused(GROUP_IS_POPPED, ""))
    broken("pop_or_members", lambda: model.delete(DeleteGroup("g"), GroupDeleted("g", ())))
    other = fresh()
    broken("pop_or_members", lambda: other.join("g", Refused(GROUP_IS_POPPED, "")))
    refused = Refused(GROUP_HAS_MEMBERS, "")
    broken("pop_or_members", lambda: other.pop(Pop("g", "orders", "w", 8, 1), refused, NOW_MS))
    groups = GroupModel(Retention())
    groups.known["g"] = KnownGroup(members={"m"})
    broken("pop_or_members", lambda: pop(PopModel(groups, Retention()), 0))
    PopModel(groups, Retention()).pop(Pop("g", "orders", "w", 8, 1), refused, NOW_MS)


def test_a_paused_group_pops_nothing_and_is_paused_once(model: PopModel) -> None:
    pause, since = PauseGroup("g", True), GroupPause(NOW_MS)
    broken("paused", lambda: model.pause(pause, GroupPauseSet("g", None, changed=True)))
    broken("paused", lambda: model.pause(pause, GroupPauseSet("g", since, changed=False)))
    model.pause(pause, Refused(GROUP_NOT_FOUND, ""))
    pop(model, 2, raft_index=8)
    model.pause(pause, GroupPauseSet("g", since, changed=True))
    model.pause(pause, GroupPauseSet("g", since, changed=False))
    pop(model)
    broken("paused", lambda: pop(model, 3, raft_index=9))
    ack(model, "acked")
    model.pause(PauseGroup("g", False), GroupPauseSet("g", None, changed=True))
    pop(model, 3, raft_index=9)
