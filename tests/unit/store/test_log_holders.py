"""Each holder of the log lets go at its own moment: docs/retention.md has the table."""

from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import pytest

from store.commands.entry import Command
from store.commands.entry import Proposal as Proposed
from store.commands.groups import (
    CommitOffsets,
    DeleteGroup,
    GiveBack,
    GivenBack,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import CancelScheduled, FireTimers
from store.commands.pops import AckPopped, ChangeInvisible, ExpirePopped, Pop, PopHandle, Popped
from store.commands.retention import ExpiredQueue, ExpireMessages, Released, ReleaseMessages, SweepIndex
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide, Discard, ResumeTransaction
from store.errors import Refused
from store.limits import (
    DEFAULT_RETENTION_MS,
    EXPIRED_QUEUES_MAX,
    EXPIRED_ROWS_MAX,
    REPLAYED_KEPT_MS,
    TRANSACTION_RETENTION_MS,
)
from store.messages.log_references import Holder
from tests.unit.store.references import assert_references_hold
from tests.unit.store.replica import Replica, header, prepare, produce
from tests.whole_state import trace_of

Found = TypeVar("Found")

KEPT_MS = 10_000
DAY_MS = 24 * 3_600_000
RETRY, DLQ = "%RETRY%g", "%DLQ%g"
SYSTEM = (
    RETRY,
    DLQ,
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
)
Step = Proposed | Command


@pytest.fixture
def exact(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    """Return a replica that counts every log position for itself."""
    replica = Replica(tmp_path_factory.mktemp("exact") / "index", log_range_bytes=1)
    replica.do(PutTopic("orders", 1, KEPT_MS), PutGroup("g", retry_max_attempts=2, retry_delays_ms=(0,)))
    return replica


def settle(replica: Replica, at_ms: int) -> None:
    """Do the work of the leader's retention service until it finds nothing more to do."""
    replica.now_ms = max(replica.now_ms, at_ms)
    machine = replica.machine
    while (queues := list(filter(None, machine.expired_queues(replica.now_ms)))) or machine.has_expired_others(
        replica.now_ms
    ):
        replica.one(ExpireMessages(tuple(queues), 100))
    while (topics := list(filter(None, machine.releasable(replica.now_ms)))) or machine.has_dropped_timers:
        assert isinstance(replica.one(ReleaseMessages(tuple(topics), 100)), Released)
    assert_references_hold(replica.index, 1)


def holds(replica: Replica, at_ms: int) -> bool:
    """Return whether anything of the log is still needed at that time."""
    settle(replica, at_ms)
    return replica.machine.log_floor <= replica.machine.applied_index


def given_back(topic: str, offset: int, delay_ms: int | None = None) -> Command:
    return GiveBack("g", None, None, (GivenBack(topic, 0, offset, delay_ms=delay_ms),))


def processed(offset: int) -> Command:
    return CommitOffsets("g", None, None, (QueueOffset(RETRY, 0, offset + 1),))


ONE = produce(header(batch_id="b"))
LATER = produce(msgspec.structs.replace(header(batch_id="b", message_ids=["m"]), deliver_at_ms=40 * DAY_MS))
HALF = prepare("t", header(batch_id="b"))
DEAD = (ONE, given_back("orders", 0), given_back(RETRY, 0), given_back(RETRY, 1), processed(1))
FORCED = Decide("t", "commit", "operator", force=True, operator="ann", reason="by phone")


RETRY_OVER_MS = 1_000 + DEFAULT_RETENTION_MS
DISCARD_OVER_MS = 1_000 + TRANSACTION_RETENTION_MS
SKIP = ResetOffsets("g", (QueueOffset(RETRY, 0, 1),))
RESUMED = (HALF, Discard(("t",)), ResumeTransaction("t", "ann", "why", 0))
TWICE = (ONE, given_back("orders", 0), given_back(RETRY, 0))
ONCE = (ONE, given_back("orders", 0))
FOR_EVER = (PutTopic("orders", retention_ms=-1), ONE)
SHORT = PutTopic("orders", retention_ms=1)


class Case(NamedTuple):
    name: str
    begin: Sequence[Step]
    """Steps that make the holder."""
    kind: Holder
    until_ms: int | None
    """Time when the holder lets go by itself; None when it waits for something else."""
    end: Sequence[Step] = ()
    """Steps that make the holder let go earlier."""
    left_ms: int = 0
    """Time for which the effects of `end` hold the log."""


CASES = (
    Case("message", (ONE,), Holder.MESSAGE, 1_000 + KEPT_MS),
    Case("message for ever", FOR_EVER, Holder.MESSAGE, None, (DeleteTopic("orders"),)),
    Case("message that is kept for less", (ONE,), Holder.MESSAGE, 1_000 + KEPT_MS, (SHORT,), 1),
    Case("scheduled", (LATER,), Holder.SCHEDULED, None, (CancelScheduled("orders", "m"),)),
    Case("scheduled in a deleted topic", (LATER,), Holder.SCHEDULED, None, (DeleteTopic("orders"),)),
    Case("undecided, committed", (HALF,), Holder.TRANSACTION, None, (Decide("t", "commit"),), KEPT_MS),
    Case("undecided, rolled back", (HALF,), Holder.TRANSACTION, None, (Decide("t", "rollback"),)),
    Case("discarded", (HALF, Discard(("t",))), Holder.TRANSACTION, DISCARD_OVER_MS),
    Case("discarded, forced", (HALF, Discard(("t",))), Holder.TRANSACTION, DISCARD_OVER_MS, (FORCED,), KEPT_MS),
    Case("resumed", RESUMED, Holder.TRANSACTION, None, (Decide("t", "rollback"),)),
    Case("given back", ONCE, Holder.RETRY, RETRY_OVER_MS),
    Case("given back, processed", ONCE, Holder.RETRY, RETRY_OVER_MS, (processed(0),)),
    Case("given back, group deleted", ONCE, Holder.RETRY, RETRY_OVER_MS, (DeleteGroup("g"),)),
    Case("given back, skipped", ONCE, Holder.RETRY, RETRY_OVER_MS, (SKIP,)),
    Case("given back twice", TWICE, Holder.RETRY, RETRY_OVER_MS, (processed(1),)),
    Case("given back, waiting", (ONE, given_back("orders", 0, DAY_MS)), Holder.SCHEDULED, None, (DeleteGroup("g"),)),
    Case("dead", DEAD, Holder.DEAD_LETTER, RETRY_OVER_MS),
    Case("dead, deleted", DEAD, Holder.DEAD_LETTER, RETRY_OVER_MS, (DeleteGroup("g", with_dead_letters=True),)),
    Case(
        "dead, replayed",
        DEAD,
        Holder.DEAD_LETTER,
        RETRY_OVER_MS,
        (ReplayDeadLetters("g", (0,)), processed(2)),
        REPLAYED_KEPT_MS,
    ),
)


def to_the_end(walk: Generator[None, None, Found]) -> Found:
    """Run all steps of a walk at once and return its result."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: Found = end.value
            return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_holder_lets_go_at_its_moment_and_not_before(exact: Replica, case: Case) -> None:
    for step in case.begin:
        exact.one(step)
    far_ms = 1_000 + 39 * DAY_MS
    settle(exact, 1_000)
    assert to_the_end(exact.machine.find_log_holders())[0].holder in (case.kind, Holder.MESSAGE)
    gone = exact.machine.queue_ranges("orders")[0].min_offset
    assert gone == 0
    last_ms = min(far_ms, (case.until_ms or far_ms + 1) - 1)
    if not case.end:
        assert holds(exact, last_ms)
        assert [each.holder for each in to_the_end(exact.machine.find_log_holders())] == [case.kind]
        exact.reopen()
        assert holds(exact, last_ms)
        assert not holds(exact, last_ms + 1)
        return
    # while the row of the topic is there it holds too; when it is gone, the holder is alone
    alone_ms = 1_000 + KEPT_MS if case.kind is not Holder.MESSAGE else 1_000
    assert holds(exact, alone_ms)
    assert [each.holder for each in to_the_end(exact.machine.find_log_holders())] == [case.kind]
    for step in case.end:
        assert not isinstance(exact.one(step), Refused)
    if case.left_ms:
        assert holds(exact, alone_ms + case.left_ms - 1)
    assert not holds(exact, alone_ms + case.left_ms)
    exact.reopen()
    assert not holds(exact, alone_ms + case.left_ms)


def test_a_scheduled_message_holds_until_it_is_delivered_and_its_retention_is_over(exact: Replica) -> None:
    exact.one(LATER)
    assert holds(exact, 40 * DAY_MS - 1)
    exact.now_ms = 40 * DAY_MS
    exact.one(FireTimers(10))
    assert holds(exact, 40 * DAY_MS + KEPT_MS - 1)
    assert not holds(exact, 40 * DAY_MS + KEPT_MS)


def pop(replica: Replica) -> PopHandle:
    popped = replica.one(Pop("g", "orders", "c", 1, 5_000))
    assert isinstance(popped, Popped)
    return popped.messages[0].handle(popped.messages[0].offsets[0])


def test_what_was_popped_from_the_retries_holds_until_it_is_acknowledged(exact: Replica) -> None:
    exact.one(ONE)
    exact.one(ChangeInvisible("g", pop(exact), 0))
    handle = pop(exact)
    assert holds(exact, 1_000 + KEPT_MS)
    assert exact.machine.row_of(RETRY, 0, 0) is not None
    exact.one(AckPopped("g", (handle,)))
    assert not holds(exact, 1_000 + KEPT_MS)


def test_what_was_popped_and_not_acknowledged_is_given_back_and_holds_on(exact: Replica) -> None:
    exact.one(ONE)
    exact.one(ChangeInvisible("g", pop(exact), 0))
    pop(exact)
    exact.now_ms = 6_000
    exact.one(ExpirePopped(10))
    assert holds(exact, 1_000 + KEPT_MS)
    assert exact.machine.row_of(RETRY, 0, 0) is None  # it came again behind it
    exact.one(AckPopped("g", (pop(exact),)))
    assert not holds(exact, 1_000 + KEPT_MS)


def test_only_what_is_processed_goes_from_the_retries(exact: Replica) -> None:
    exact.one(produce(header(batch_id="b", count=3)))
    for offset in range(3):
        exact.one(given_back("orders", offset))
    exact.one(processed(1))
    expected = Released((ExpiredQueue(RETRY, 0, 2, 2),), 0)
    assert list(filter(None, exact.machine.releasable(exact.now_ms))) == [RETRY]
    assert exact.one(ReleaseMessages((RETRY,), 100)) == expected
    assert exact.machine.row_of(RETRY, 0, 1) is None
    assert exact.machine.row_of(RETRY, 0, 2) is not None
    assert exact.one(ReleaseMessages((RETRY, DLQ, "orders", "gone"), 100)) == Released((), 0)
    assert list(filter(None, exact.machine.releasable(exact.now_ms))) == []


def test_an_entry_releases_no_more_than_it_says(exact: Replica) -> None:
    exact.one(produce(header(batch_id="b", count=3)))
    for offset in range(3):
        exact.one(given_back("orders", offset))
    exact.one(processed(2))
    released = [exact.one(ReleaseMessages((RETRY,), 2)) for _ in range(3)]
    assert [sum(each.messages for each in result.queues) for result in released if isinstance(result, Released)] == [
        2,
        1,
        0,
    ]


def test_timers_of_a_deleted_topic_go_in_portions(exact: Replica) -> None:
    for number in range(5):
        exact.one(produce(msgspec.structs.replace(header(batch_id=f"b{number}"), deliver_at_ms=40 * DAY_MS)))
    exact.one(DeleteTopic("orders"))
    exact.reopen()
    dropped: list[int] = []
    while exact.machine.has_dropped_timers:
        released = exact.one(ReleaseMessages((), 2))
        assert isinstance(released, Released)
        dropped.append(released.dropped)
    assert dropped == [2, 2, 1]
    assert (exact.machine.timers_pending, exact.machine.next_due_ms()) == (0, None)
    assert not holds(exact, 1_000)


def test_a_replay_that_is_sent_again_is_answered_alike_while_the_letter_is_kept(exact: Replica) -> None:
    for step in (*DEAD, ReplayDeadLetters("g", (0,)), processed(2)):
        exact.one(step)
    settle(exact, 1_000 + REPLAYED_KEPT_MS - 1)
    again = exact.one(ReplayDeadLetters("g", (0,)))
    assert again.messages[0].duplicate  # type: ignore[union-attr]
    settle(exact, 1_000 + REPLAYED_KEPT_MS)
    assert exact.refusal(ReplayDeadLetters("g", (0,))).code == "offset_out_of_range"
    assert b"w" not in {key[:1] for key in exact.dump(effects_only=True)}


def test_the_half_topic_shows_what_the_log_has_and_never_holds_it(exact: Replica) -> None:
    half = "RMQ_SYS_TRANS_HALF_TOPIC"
    exact.one(produce(header(batch_id="kept")))
    exact.do(prepare("t", header(batch_id="h1")), Decide("t", "rollback"))
    exact.do(prepare("u", header(batch_id="h2")), Decide("u", "commit"))
    settle(exact, 1_000)
    assert len(exact.machine.rows(half, 0, 0, 9, 999)) == 2  # the plain message before them holds the log
    (place,) = exact.machine.message_places("orders", "h1-0", 9)
    assert (place.state, place.block is not None) == ("rolled_back", True)
    exact.one(given_back(half, 0, 0))  # what can be read can be given back
    settle(exact, 1_000 + KEPT_MS)
    assert exact.machine.row_of(RETRY, 0, 0) is not None
    assert [row.transaction_id for row in exact.machine.rows(half, 0, 0, 9, 999)] == ["t", "u"]
    exact.one(processed(0))
    settle(exact, 1_000 + KEPT_MS)
    assert exact.machine.queue_ranges(half)[0].min_offset == 2
    (place,) = exact.machine.message_places("orders", "h1-0", 9)
    assert (place.state, place.block) == ("rolled_back", None)  # it is told, without its body
    assert exact.machine.timeline("t")


def test_discarded_halves_are_listed_until_they_are_decided(exact: Replica) -> None:
    discarded = "TRANS_CHECK_MAX_TIME_TOPIC"
    for number in range(3):
        exact.do(prepare(f"t{number}", header(batch_id=f"h{number}")), Discard((f"t{number}",)))
    exact.one(Decide("t0", "rollback", "operator", force=True, operator="ann", reason="by phone"))
    exact.one(ResumeTransaction("t1", "ann", "why", 0))
    settle(exact, 2_000)
    assert [row.transaction_id for row in exact.machine.rows(discarded, 0, 0, 9, 999)] == ["t1", "t2"]


def test_the_trace_of_a_message_outlives_its_row_among_the_retries(exact: Replica) -> None:
    exact.one(PutTopic("orders", retention_ms=-1))
    for step in (ONE, given_back("orders", 0), processed(0)):
        exact.one(step)
    settle(exact, 2_000)
    assert exact.machine.row_of(RETRY, 0, 0) is None
    exact.one(SweepIndex(1_000))
    (place,) = exact.machine.message_places("orders", "b-0", 9)
    assert [event.event for event in trace_of(exact.machine, place)] == [
        "produced",
        "given_back",
        "given_again",
        "consumed",
    ]


@pytest.mark.parametrize(
    "command",
    [
        ReleaseMessages((), 0),
        ReleaseMessages((), EXPIRED_ROWS_MAX + 1),
        ReleaseMessages(("t",) * (EXPIRED_QUEUES_MAX + 1), 1),
    ],
)
def test_limits_are_enforced(exact: Replica, command: Command) -> None:
    assert exact.refusal(command).code == "invalid_request"
