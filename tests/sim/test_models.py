"""The models of transactions, groups and given-back messages accept each rule kept and accuse each rule broken."""

from store.commands.cluster import PutSettings, Settings, SettingsPut
from store.commands.groups import (
    AssignedQueue,
    CommitOffsets,
    DeadLetterReplayed,
    DeadLettersReplayed,
    GiveBack,
    GivenBack,
    GroupPut,
    Joined,
    JoinGroup,
    LeaveGroup,
    Left,
    MessageGivenBack,
    MessagesGivenBack,
    OffsetsCommitted,
    OffsetsReset,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import BatchHeader
from store.commands.transactions import (
    ChecksRecorded,
    Decide,
    Decided,
    Discard,
    Discarded,
    Prepare,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
)
from store.commands.views import GroupView, MemberView
from store.errors import (
    MEMBER_NOT_FOUND,
    STALE_GENERATION,
    TRANSACTION_CONFLICT,
    TRANSACTIONS_REJECTED,
    Refused,
)

from .broken import broken
from .checkers.group_model import GroupModel
from .checkers.offset_reads import OffsetReads
from .checkers.redelivery_model import RedeliveryModel
from .checkers.retention import Retention
from .checkers.sessions import SessionChecker
from .checkers.transaction_model import TransactionModel

NOW_MS = 1_000
CONFLICT = Refused(TRANSACTION_CONFLICT, "", {"state": "committed"})


# --- transactions


def prepared(
    model: TransactionModel, transaction_id: str = "t", *, state: str = "prepared", again: bool = False
) -> None:
    command = Prepare(transaction_id, "pay", "c", 100, (BatchHeader("orders", 0, 1, "b", None, 0, 1),))
    model.prepare(command, Prepared(transaction_id, state, again, 1_000), 1_000)  # type: ignore[arg-type]


def decided(model: TransactionModel, decision: str, result: object, group: str | None = "pay") -> None:
    model.decide(Decide("t", decision, "producer", "c", group), result, NOW_MS)  # type: ignore[arg-type]


def checked(model: TransactionModel, at_ms: int = 1_100, *, leaves: bool = True) -> None:
    model.left["t"] += leaves
    model.record(RecordChecks(("t",), "c", "poll", 50), ChecksRecorded(("t",)), at_ms)


def test_the_first_decision_wins() -> None:
    model = TransactionModel()
    prepared(model)
    prepared(model, again=True)
    decided(model, "unknown", Decided("t", "prepared"))
    decided(model, "commit", Decided("t", "committed"))
    decided(model, "commit", Decided("t", "committed"))
    decided(model, "rollback", CONFLICT)
    prepared(model, state="committed", again=True)
    broken("first_decision_wins", lambda: decided(model, "rollback", Decided("t", "rolled_back")))
    broken("first_decision_wins", lambda: decided(model, "commit", CONFLICT))
    broken("first_decision_wins", lambda: prepared(model, again=True))
    broken("first_decision_wins", lambda: decided(model, "commit", Decided("t", "committed"), "strangers"))
    broken("idempotent_prepare", lambda: prepared(model, state="committed"))
    broken("idempotent_prepare", lambda: prepared(model, "u", again=True))


def test_nobody_decides_what_was_never_prepared() -> None:
    broken("phantom", lambda: decided(TransactionModel(), "commit", Decided("t", "committed")))


def test_checks_count_once_they_have_left_a_node() -> None:
    model = TransactionModel()
    prepared(model)
    checked(model)
    assert model.known["t"].check_times == 1
    broken("immunity", lambda: checked(model, 1_099))
    broken("checks_counted", lambda: checked(model, leaves=False))
    broken("checks_counted", lambda: model.record(RecordChecks(("t",), "c", "poll", 50), ChecksRecorded(()), 1_100))


def test_nothing_is_discarded_before_it_was_asked_often_enough() -> None:
    model = TransactionModel()
    model.check_max = 2
    prepared(model)
    checked(model)
    broken("discarded", lambda: model.discard(Discard(("t",)), Discarded(("t",)), NOW_MS))
    checked(model)
    model.discard(Discard(("t",)), Discarded(("t",)), NOW_MS)
    assert not model.undecided
    broken("first_decision_wins", lambda: decided(model, "commit", Decided("t", "committed")))
    broken("discarded", lambda: model.discard(Discard(("t",)), Discarded(("t",)), NOW_MS))


def discarded(model: TransactionModel) -> None:
    model.check_max = 0
    prepared(model)
    model.discard(Discard(("t",)), Discarded(("t",)), NOW_MS)


def forced(model: TransactionModel, decision: str, result: object, *, by: str = "ann", force: bool = True) -> None:
    why = "by phone" if by else ""
    command = Decide("t", decision, "operator", "", None, force=force, reason=why, operator=by)  # type: ignore[arg-type]
    model.decide(command, result, NOW_MS)


def resumed(model: TransactionModel, result: object, *, by: str = "ann") -> None:
    model.resume(ResumeTransaction("t", by, "by phone", 50), result, 2_000)


def refused(state: str) -> Refused:
    return Refused(TRANSACTION_CONFLICT, "", {"state": state})


def test_what_is_discarded_is_decided_by_force_alone() -> None:
    model = TransactionModel()
    discarded(model)
    decided(model, "commit", refused("discarded"))
    forced(model, "commit", refused("discarded"), force=False)
    broken("first_decision_wins", lambda: forced(model, "commit", Decided("t", "committed"), force=False))
    broken("first_decision_wins", lambda: forced(model, "commit", refused("discarded")))
    broken("audit", lambda: forced(model, "commit", Decided("t", "committed"), by=""))
    forced(model, "commit", Decided("t", "committed"))
    assert model.known["t"].audit == [("committed", "ann", "by phone", True)]
    forced(model, "commit", Decided("t", "committed"))
    forced(model, "rollback", refused("committed"))
    assert len(model.known["t"].audit) == 1
    broken("first_decision_wins", lambda: forced(model, "rollback", Decided("t", "rolled_back")))


def test_what_is_discarded_is_resumed_and_asked_about_anew() -> None:
    model = TransactionModel()
    discarded(model)
    broken("resumed", lambda: resumed(model, refused("discarded")))
    broken("resumed", lambda: resumed(model, Resumed("t", "prepared", 2_049)))
    broken("audit", lambda: resumed(model, Resumed("t", "prepared", 2_050), by=""))
    resumed(model, Resumed("t", "prepared", 2_050))
    resumed(model, Resumed("t", "prepared", 2_050))  # the same again
    resumed(model, refused("prepared"), by="bob")
    broken("resumed", lambda: resumed(model, Resumed("t", "prepared", 2_050), by="bob"))
    assert list(model.undecided) == ["t"]
    late = Discard(("t",), (1,))  # proposed before it was resumed
    model.discard(late, Discarded(()), NOW_MS)
    broken("discarded", lambda: model.discard(late, Discarded(("t",)), NOW_MS))
    checked(model)
    model.discard(Discard(("t",)), Discarded(("t",)), NOW_MS)
    resumed(model, Resumed("t", "prepared", 2_050), by="bob")
    decided(model, "rollback", Decided("t", "rolled_back"))
    resumed(model, refused("rolled_back"))
    broken("resumed", lambda: resumed(model, Resumed("t", "prepared", 2_050), by="bob"))
    known = model.known["t"]
    assert (known.discards, known.checks, known.check_times) == (2, 1, 0)
    assert [entry[:2] for entry in known.audit] == [("resumed", "ann"), ("resumed", "bob")]


def test_only_new_transactions_are_rejected_and_only_while_they_are_switched_off() -> None:
    model = TransactionModel()
    rejected = Refused(TRANSACTIONS_REJECTED, "", {})
    command = Prepare("u", "pay", "c", 100, ())
    prepared(model)
    broken("settings", lambda: model.prepare(command, rejected, 1_000))
    broken("settings", lambda: model.put_settings(PutSettings(True), SettingsPut(Settings(False))))
    model.put_settings(PutSettings(True), SettingsPut(Settings(True)))
    model.prepare(command, rejected, 1_000)
    prepared(model, again=True)
    broken("settings", lambda: model.prepare(command, Prepared("u", "prepared", False, 1_000), 1_000))
    broken("settings", lambda: model.prepare(Prepare("t", "pay", "c", 100, ()), rejected, 1_000))
    model.put_settings(PutSettings(False), SettingsPut(Settings(False)))
    model.prepare(command, Prepared("u", "prepared", False, 1_000), 1_000)


# --- groups


def joined(model: GroupModel, member_id: str, generation: int, *queues: int) -> None:
    assignment = tuple(AssignedQueue("orders", queue) for queue in queues)
    model.join(
        JoinGroup("g", member_id, "c", ("orders",), 1_000), Joined("g", member_id, generation, assignment, 1_000)
    )


def committed(model: GroupModel, member_id: str, generation: int, offset: int, *, queue: int = 0) -> None:
    command = CommitOffsets("g", member_id, generation, (QueueOffset("orders", queue, offset),))
    model.commit(command, OffsetsCommitted("g", command.offsets))


def group_of_two() -> GroupModel:
    model = GroupModel(Retention())
    model.processed = {("g", ("orders", queue)): 10 for queue in (0, 1)}
    joined(model, "m", 1, 0, 1)
    joined(model, "n", 2, 1)
    model.on_assigned("g", 2, "m", [("orders", 0)])
    return model


def test_generations_move_on() -> None:
    model = group_of_two()
    joined(model, "n", 2, 1)
    broken("generation", lambda: joined(model, "o", 2))
    broken("generation", lambda: model.leave(LeaveGroup("g", "m"), Left("g", "m", 2)))
    model.leave(LeaveGroup("g", "m"), Left("g", "m", 3))
    broken("group_members", lambda: model.leave(LeaveGroup("g", "m"), Left("g", "m", 4)))
    broken("generation", lambda: model.on_generation("g", 2))


def test_a_queue_has_one_owner() -> None:
    model = group_of_two()
    broken("one_owner", lambda: model.on_assigned("g", 2, "m", [("orders", 1)]))
    broken("one_owner", lambda: committed(model, "m", 2, 1, queue=1))
    members = tuple(
        MemberView(member_id, "c", 1_000, 0, (AssignedQueue("orders", queue),)) for queue, member_id in enumerate("mn")
    )
    view = GroupView("g", 2, ("orders",), members)
    model.check_view(view, {"orders": 2})
    broken("one_owner", lambda: model.check_view(view, {"orders": 3}))
    broken("generation", lambda: model.check_view(GroupView("g", 3, ("orders",), members), {"orders": 2}))


def test_commits_are_fenced() -> None:
    model = group_of_two()
    committed(model, "m", 2, 3)
    stale = CommitOffsets("g", "m", 1, (QueueOffset("orders", 0, 4),))
    model.commit(stale, Refused(STALE_GENERATION, ""))
    broken("group_fencing", lambda: committed(model, "m", 1, 4))
    broken("group_fencing", lambda: committed(model, "stranger", 2, 4))
    now = CommitOffsets("g", "m", 2, (QueueOffset("orders", 0, 4),))
    broken("group_fencing", lambda: model.commit(now, Refused(STALE_GENERATION, "")))
    broken("group_fencing", lambda: model.commit(now, Refused(MEMBER_NOT_FOUND, "")))


def test_offsets_go_on_as_far_as_was_processed() -> None:
    model = group_of_two()
    committed(model, "m", 2, 10)
    broken("group_offsets", lambda: committed(model, "m", 2, 9))
    broken("unprocessed_passed", lambda: committed(model, "m", 2, 11))
    model.reset(ResetOffsets("g", (QueueOffset("orders", 0, 4),)), OffsetsReset("g", 3, (QueueOffset("orders", 0, 4),)))
    committed(model, "m", 3, 9)


# --- what is given back


def given_back(model: RedeliveryModel, outcome: str, offset: int = 3, generation: int = 2) -> None:
    command = GiveBack("g", "m", generation, (GivenBack("orders", 0, offset),))
    given = MessageGivenBack("orders", 0, offset, 1, outcome, 5)  # type: ignore[arg-type]
    model.give_back(command, MessagesGivenBack("g", 2, (given,)))


def limited(model: RedeliveryModel, attempts_max: int) -> None:
    model.put(PutGroup("g", attempts_max), GroupPut("g", False, attempts_max, (0,)))


def test_a_message_is_dead_after_its_last_attempt() -> None:
    model = RedeliveryModel(group_of_two(), Retention())
    broken("given_back", lambda: given_back(model, "dead_lettered"))
    limited(model, 1)
    given_back(model, "scheduled", 4)
    limited(model, 0)
    given_back(model, "dead_lettered", 5)
    broken("given_back", lambda: given_back(model, "scheduled", 6))


def test_a_message_is_given_back_once() -> None:
    groups = group_of_two()
    model = RedeliveryModel(groups, Retention())
    given_back(model, "scheduled")
    given_back(model, "already_given_back")
    broken("given_back", lambda: given_back(model, "scheduled"))
    broken("given_back", lambda: given_back(model, "already_given_back", 4))
    broken("group_fencing", lambda: given_back(model, "scheduled", 5, generation=1))
    assert len(model.scheduled["g"]) == 1


def test_what_is_committed_cannot_be_given_back_until_it_is_reset() -> None:
    groups = group_of_two()
    model = RedeliveryModel(groups, Retention())
    limited(model, 0)
    given_back(model, "dead_lettered")
    limited(model, 1)
    committed(groups, "m", 2, 4)
    model.on_committed("g", ("orders", 0), 4)
    broken("given_back", lambda: given_back(model, "scheduled"))
    given_back(model, "scheduled", 4)
    groups.known["g"].offsets["orders", 0] = 0
    model.on_reset("g", ("orders", 0))
    given_back(model, "scheduled")
    given_back(model, "scheduled", 4)


def test_a_dead_letter_is_replayed_once() -> None:
    groups = GroupModel(Retention())
    groups.put(PutGroup("g", 1), GroupPut("g", True, 1, (0,)))
    model = RedeliveryModel(groups, Retention())

    def replay(*, duplicate: bool) -> None:
        replayed = DeadLettersReplayed("g", (DeadLetterReplayed(0, 5, duplicate),))
        model.replay(ReplayDeadLetters("g", (0,)), replayed)

    replay(duplicate=False)
    replay(duplicate=True)
    broken("given_back", lambda: replay(duplicate=False))


# --- what members are told of offsets


def test_a_leader_knows_what_was_acknowledged_before_it_was_asked() -> None:
    place, reads = ("orders", 0), OffsetReads("g")
    before = reads.asked()
    reads.committed(before, {place: 5})
    reads.committed(reads.asked(), {place: 4})
    reads.answered(before, {place: 3}, 1)  # asked before that was acknowledged
    reads.answered(reads.asked(), {place: 5}, 1)
    broken("offset_read", lambda: reads.answered(reads.asked(), {place: 4}, 1))
    broken("offset_read", lambda: reads.answered(reads.asked(), {}, 1))


def test_a_reset_takes_back_what_was_acknowledged() -> None:
    place, reads = ("orders", 0), OffsetReads("g")
    reads.committed(reads.asked(), {place: 5})
    asked = reads.asked()
    reads.on_reset([place])
    reads.answered(asked, {place: 0}, 1)
    reads.answered(reads.asked(), {place: 0}, 1)
    reads.committed(asked, {place: 7})  # carried out before the reset, or after it: nobody knows
    reads.answered(reads.asked(), {place: 0}, 1)


# --- sessions


def test_a_member_is_expired_after_its_session_only() -> None:
    checker = SessionChecker()
    view = GroupView("g", 1, ("orders",), (MemberView("m", "c", 1_000, 0, ()),))

    def expire(now_s: float, term: int = 1) -> None:
        checker.on_proposed(LeaveGroup("g", "m", "expired"), 1, term, now_s, lambda name: view)

    checker.on_leader(1, 1, 10.0)
    expire(11.0)
    broken("session", lambda: expire(10.9))
    checker.on_heard(1, "g", "m", 11.0)
    broken("session", lambda: expire(11.5))
    expire(12.0)
    checker.on_leader(1, 2, 12.5)
    broken("session", lambda: expire(13.0, term=2))
    checker.on_proposed(LeaveGroup("g", "m"), 1, 2, 12.5, lambda name: view)
