"""A paused group in the replicated state: it is handed out nothing, loses nothing, and goes on where it was."""

from pathlib import Path

from store.commands.entry import Proposal, Result
from store.commands.groups import (
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    GroupPause,
    GroupPauseSet,
    JoinGroup,
    PauseGroup,
    PutGroup,
    QueueOffset,
)
from store.commands.messages import FireTimers
from store.commands.pops import AckPopped, ExpirePopped, Pop, PopHandle, Popped, PopsAcked
from store.commands.topics import PutTopic
from store.errors import Refused
from store.groups.record import GroupRecord, encoded_group
from store.index import keys
from store.index.index import Index
from store.limits import OPERATOR_BYTES_MAX, REASON_BYTES_MAX
from store.log.base import LogBase
from store.messages.outcomes import Event
from store.snapshots.snapshot import SnapshotReader, SnapshotWriter
from store.state.machine import StateMachine
from tests.unit.store.replica import Replica, header, produce

PAUSE = PauseGroup("g", True, "ann", "the database is moved")
RESUME = PauseGroup("g", False, "ann", "done")
INVISIBLE_MS = 60_000


def taken(replica: Replica, most: int = 10, *, from_end: bool = False) -> list[PopHandle]:
    popped = replica.one(Pop("g", "orders", "w", most, INVISIBLE_MS, from_end))
    assert isinstance(popped, Popped), popped
    return [each.handle(offset) for each in popped.messages for offset in each.offsets]


def in_force(result: Result | Refused) -> GroupPause | None:
    assert isinstance(result, GroupPauseSet), result
    return result.pause


def begin(replica: Replica, messages: int = 4) -> None:
    replica.raise_level()
    replica.do(PutTopic("orders", 1), PutGroup("g", 3, (1_000,)))
    replica.one(produce(header(count=messages)))


def test_a_paused_group_is_handed_out_nothing_and_goes_on_where_it_was(replica: Replica) -> None:
    begin(replica)
    assert [each.offset for each in taken(replica, 1)] == [0]
    replica.now_ms = 5_000
    pause = GroupPause(5_000, "ann", "the database is moved", "bob")
    assert replica.one(Proposal(PAUSE, principal="bob")) == GroupPauseSet("g", pause, changed=True)
    before = replica.machine.offsets("g")
    assert taken(replica) == []
    assert (replica.machine.offsets("g"), replica.machine.group_pause("g")) == (before, pause)
    assert replica.one(RESUME) == GroupPauseSet("g", None, changed=True)
    assert [each.offset for each in taken(replica)] == [1, 2, 3]


def test_what_was_handed_out_before_is_finished_and_retries_wait(replica: Replica) -> None:
    begin(replica)
    first, second, third, fourth = taken(replica)
    replica.one(PAUSE)
    assert replica.one(AckPopped("g", (first, second))) == PopsAcked("g", ("acked", "acked"))
    replica.now_ms += INVISIBLE_MS
    replica.do(ExpirePopped(10), FireTimers(10))
    assert replica.one(AckPopped("g", (third,))) == PopsAcked("g", ("handle_expired",))
    assert replica.machine.max_offset("%RETRY%g", 0) == 2, "both wait among the retries"
    assert taken(replica) == []
    replica.one(RESUME)
    assert [each.offset for each in taken(replica)] == [0, 1]
    assert fourth.offset == 3


def test_members_join_commit_and_give_back_while_their_group_is_paused(replica: Replica) -> None:
    begin(replica)
    replica.do(PAUSE, JoinGroup("g", "m", "c", ("orders",), 30_000))
    membership = replica.machine.membership("g", "m")
    assert membership is not None
    assert membership.pause is not None
    at = (membership.generation, replica.machine.generation("g"))
    assert at[0] == at[1], "a pause is no rebalance"
    for command in (
        CommitOffsets("g", "m", at[0], (QueueOffset("orders", 0, 2),)),
        GiveBack("g", "m", at[0], (GivenBack("orders", 0, 2),)),
    ):
        assert not isinstance(replica.one(command), Refused)
    assert replica.machine.committed("g", "orders", 0) == 2


def test_a_group_that_is_new_when_it_is_paused_begins_there_and_passes_nothing_by(replica: Replica) -> None:
    begin(replica)
    replica.one(PAUSE)
    assert taken(replica, from_end=True) == []
    replica.one(produce(header(batch_id="later", count=2)))
    replica.one(RESUME)
    assert [each.offset for each in taken(replica, from_end=True)] == [4, 5]


def test_a_pause_outlasts_a_restart(replica: Replica) -> None:
    begin(replica)
    pause = in_force(replica.one(PAUSE))
    replica.machine.begin_flush()
    replica.reopen()
    assert replica.machine.group_pause("g") == pause is not None
    assert taken(replica) == []
    replica.one(RESUME)
    replica.reopen()
    assert replica.machine.group_pause("g") is None


def test_a_pause_is_in_the_state_that_other_nodes_and_backups_are_given(replica: Replica, tmp_path: Path) -> None:
    begin(replica)
    pause = in_force(replica.one(PAUSE))
    copied = Index.open(str(tmp_path / "copied"))
    reader, writer = SnapshotReader(replica.index, LogBase(4096, 7, 2)), SnapshotWriter(copied)
    for portion in iter(reader.next_portion, b""):
        writer.add(portion)
    writer.check(reader.pairs_read, reader.checksum, reader.index, reader.state_hash)
    assert StateMachine(copied).group_pause("g") == pause is not None
    copied.close()


def test_the_first_pause_stays_and_what_changes_nothing_says_so(replica: Replica) -> None:
    begin(replica)
    assert replica.one(RESUME) == GroupPauseSet("g", None, changed=False)
    pause = in_force(replica.one(PAUSE))
    replica.now_ms += 1_000
    assert replica.one(PauseGroup("g", True, "eve", "other")) == GroupPauseSet("g", pause, changed=False)


def test_an_unknown_group_and_long_notes_are_refused(replica: Replica) -> None:
    begin(replica)
    assert replica.refusal(PauseGroup("none", True)).code == "group_not_found"
    assert replica.refusal(PauseGroup("g", True, "é" * OPERATOR_BYTES_MAX)).code == "invalid_request"
    assert replica.refusal(PauseGroup("g", True, "", "x" * (REASON_BYTES_MAX + 1))).code == "invalid_request"


def test_a_pause_goes_with_its_group(replica: Replica) -> None:
    begin(replica)
    replica.one(PAUSE)
    replica.machine.take_paused_groups()
    replica.one(DeleteGroup("g"))
    assert replica.machine.take_paused_groups() == ("g",), "whoever waits for its end is told"
    replica.one(PutGroup("g"))
    assert replica.machine.group_pause("g") is None


def test_pauses_and_resumes_are_told_once(replica: Replica) -> None:
    begin(replica)
    replica.machine.take_paused_groups()
    replica.do(Proposal(PAUSE, principal="bob"), PAUSE, RESUME, PauseGroup("g", True))
    assert replica.machine.take_paused_groups() == ("g",)
    last = replica.machine.applied_index
    ((_, outcome),) = replica.machine.outcomes(last, last, 1)
    assert outcome.events == (
        Event("GROUP_PAUSE", group="g", client="ann"),
        Event("GROUP_RESUME", group="g", client="ann"),
        Event("GROUP_PAUSE", group="g"),
    )
    assert outcome.principal_of(0) == "bob"
    replica.one(PAUSE)
    assert list(replica.machine.outcomes(last + 1, last + 1, 1)) == [], "repeated"


def test_a_group_without_a_pause_is_stored_as_before_there_were_pauses(replica: Replica) -> None:
    begin(replica)
    as_before = replica.index.get(keys.group("g"))
    replica.one(PAUSE)
    paused = replica.index.get(keys.group("g"))
    replica.one(RESUME)
    assert replica.index.get(keys.group("g")) == as_before != paused
    assert encoded_group(GroupRecord(1, 0, (), {}))[0] == 0x97, "seven fields"
