"""Messages that are given back are scheduled with the group's back-off, are dead in the end, and can be replayed."""

import pytest

from store.commands.entry import Command, decode_entry, encode_entry
from store.commands.entry import Proposal as Proposed
from store.commands.groups import (
    CommitOffsets,
    DeadLetterReplayed,
    DeadLettersReplayed,
    GiveBack,
    GivenBack,
    GroupPut,
    Joined,
    JoinGroup,
    MessageGivenBack,
    MessagesGivenBack,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import FireTimers
from store.commands.retention import ExpireMessages, SweepIndex
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.views import Attempt, Redelivery, Row
from store.index import keys
from store.limits import (
    GIVE_BACK_HISTORY_MAX,
    GIVE_BACK_REASON_BYTES_MAX,
    RETRY_DELAYS_MS,
    RETRY_MAX_ATTEMPTS,
    RETRY_MAX_ATTEMPTS_MAX,
)
from tests.unit.store.replica import Replica, header, produce

RETRY, DLQ = "%RETRY%g", "%DLQ%g"


@pytest.fixture(autouse=True)
def ten_messages(replica: Replica) -> None:
    replica.do(PutTopic("orders", 2))
    replica.do(produce(header("orders", 0, "b0", 4)), produce(header("orders", 0, "b1", 6)))


def give(
    *offsets: int,
    topic: str = "orders",
    queue: int = 0,
    member: str | None = None,
    generation: int | None = None,
    delay_ms: int | None = None,
    reason: str = "",
) -> GiveBack:
    items = tuple(GivenBack(topic, queue, offset, reason, delay_ms) for offset in offsets)
    return GiveBack("g", member, generation, items)


def given(replica: Replica, command: GiveBack) -> tuple[MessageGivenBack, ...]:
    result = replica.one(command)
    assert isinstance(result, MessagesGivenBack), result
    return result.messages


def rows(replica: Replica, topic: str) -> list[Row]:
    return replica.machine.rows(topic, 0, 0, 1_000, 1 << 20)


def fire_all(replica: Replica) -> None:
    due_ms = replica.machine.next_due_ms()
    assert due_ms is not None
    replica.now_ms = due_ms
    replica.one(FireTimers(100))


def test_a_message_comes_again_after_its_delay_with_its_id_and_origin(replica: Replica) -> None:
    (result,) = given(replica, give(6, reason="no money"))
    assert result == MessageGivenBack("orders", 0, 6, 1, "scheduled", 1_000 + RETRY_DELAYS_MS[0])
    assert rows(replica, RETRY) == []
    (waiting,) = replica.machine.scheduled(RETRY).messages
    assert (waiting.message_id, waiting.deliver_at_ms) == ("b1-2", 11_000)
    replica.now_ms = 10_999
    replica.one(FireTimers(100))
    assert rows(replica, RETRY) == []
    replica.reopen()
    fire_all(replica)
    (row,) = rows(replica, RETRY)
    (original,) = [row for row in rows(replica, "orders") if row.batch_id == "b1"]
    assert (row.position, row.block_offset, row.crc32c) == (
        original.position,
        original.block_offset,
        original.crc32c,
    )
    assert (row.batch_id, row.count, list(row.ordinals()), row.stored_at_ms) == ("b1", 1, [2], 11_000)
    assert row.redelivery == Redelivery(2, 6, "orders", 0, 6, 1, (Attempt(1, 1_000, "no money", "", ""),))


def test_the_back_off_is_the_documented_one_and_then_the_message_is_dead(replica: Replica) -> None:
    delays_s = [delay_ms // 1_000 for delay_ms in RETRY_DELAYS_MS]
    assert delays_s == [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert len(RETRY_DELAYS_MS) == RETRY_MAX_ATTEMPTS == 16
    command = give(0, reason="0")
    for attempt in range(1, RETRY_MAX_ATTEMPTS + 1):
        (result,) = given(replica, command)
        assert (result.attempt, result.outcome) == (attempt, "scheduled")
        assert result.due_at_ms == replica.now_ms + RETRY_DELAYS_MS[attempt - 1]
        fire_all(replica)
        command = give(attempt - 1, topic=RETRY, reason=str(attempt))
    (result,) = given(replica, command)
    assert result == MessageGivenBack(RETRY, 0, 15, 17, "dead_lettered", None)
    assert replica.machine.next_due_ms() is None
    (dead,) = rows(replica, DLQ)
    assert dead.redelivery is not None
    assert (dead.batch_id, list(dead.ordinals())) == ("b0", [0])
    assert (dead.redelivery.topic, dead.redelivery.queue, dead.redelivery.offset) == ("orders", 0, 0)
    assert [(entry.attempt, entry.reason) for entry in dead.redelivery.history] == [
        (attempt + 1, str(attempt)) for attempt in range(17)
    ]
    given(replica, command)
    assert len(rows(replica, DLQ)) == 1


def test_given_back_twice_is_given_back_once_until_it_is_committed(replica: Replica) -> None:
    first = given(replica, give(3, 3, delay_ms=50))
    assert [(each.outcome, each.due_at_ms) for each in first] == [("scheduled", 1_050), ("already_given_back", 1_050)]
    replica.reopen()
    (again,) = given(replica, give(3, reason="other"))
    assert again == MessageGivenBack("orders", 0, 3, 1, "already_given_back", 1_050)
    assert replica.machine.messages_scheduled == 1
    replica.do(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 3),)))
    assert given(replica, give(3))[0].outcome == "already_given_back"
    replica.do(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 4),)))
    assert not [key for key in replica.dump() if key[:1] == b"w"]
    refused = replica.refusal(give(4, 3))
    assert (refused.code, refused.extra["committed"]) == ("offset_moves_back", 4)


def test_what_is_read_again_after_a_reset_can_be_given_back_again(replica: Replica) -> None:
    given(replica, give(1, 5))
    replica.do(ResetOffsets("g", (QueueOffset("orders", 0, 0),)))
    assert not [key for key in replica.dump() if key[:1] == b"w"]
    assert given(replica, give(1))[0].outcome == "scheduled"


def test_members_get_the_queue_of_the_retries_and_are_fenced(replica: Replica) -> None:
    joined = replica.one(JoinGroup("g", "m1", "c1", ("orders",), 30_000))
    assert isinstance(joined, Joined)
    assert replica.refusal(give(0)).code == "group_has_members"
    assert replica.refusal(give(0, member="m2", generation=1)).code == "member_not_found"
    assert replica.refusal(give(0, member="m1", generation=0)).code == "stale_generation"
    (result,) = given(replica, give(0, member="m1", generation=1, delay_ms=0))
    assert (result.outcome, result.due_at_ms) == ("scheduled", 1_000)
    found = replica.machine.group("g")
    assert found is not None
    assert (found.generation, found.topics) == (2, ("orders",))
    assert (RETRY, 0) in [(each.topic, each.queue) for each in found.members[0].assignment]
    assert [(each.offset, each.lag) for each in replica.machine.offsets("g", RETRY) or []] == [(0, 1)]
    (row,) = rows(replica, RETRY)
    assert row.redelivery is not None
    assert row.redelivery.history[0].client_id == "c1"
    again = replica.one(JoinGroup("g", "m2", "c2", ("orders",), 30_000))
    assert isinstance(again, Joined)
    owners = {RETRY: "m1"}
    found = replica.machine.group("g")
    assert found is not None
    for member in found.members:
        owners |= {each.topic: member.member_id for each in member.assignment if each.topic == RETRY}
    other = "m2" if owners[RETRY] == "m1" else "m1"
    assert replica.refusal(give(0, topic=RETRY, member=other, generation=3)).code == "not_assigned"
    assert given(replica, give(0, topic=RETRY, member=owners[RETRY], generation=3))[0].attempt == 2


def test_all_or_none(replica: Replica) -> None:
    refused = replica.refusal(give(0, 10))
    assert (refused.code, refused.extra["max_offset"]) == ("offset_out_of_range", 10)
    assert replica.refusal(give(0, topic="none")).code == "topic_not_found"
    assert replica.refusal(give(0, queue=2)).code == "queue_not_found"
    assert replica.refusal(give()).code == "invalid_request"
    assert replica.refusal(give(-1)).code == "invalid_request"
    assert replica.refusal(give(0, delay_ms=-1)).code == "invalid_request"
    assert replica.refusal(give(0, reason="ü" * 128)).code == "invalid_request"
    assert given(replica, give(0, reason="x" * GIVE_BACK_REASON_BYTES_MAX))[0].attempt == 1


def test_nobody_but_the_group_writes_its_topics(replica: Replica) -> None:
    assert replica.refusal(PutTopic(RETRY)).code == "system_topic"
    assert replica.refusal(PutTopic(DLQ)).code == "system_topic"
    given(replica, give(0))
    assert replica.refusal(produce(header(RETRY))).code == "system_topic"
    assert replica.refusal(DeleteTopic(RETRY)).code == "system_topic"
    assert RETRY not in [topic.topic for topic in replica.machine.topics()]
    assert RETRY in [topic.topic for topic in replica.machine.topics(system=True)]


def test_a_group_has_limits_and_delays_of_its_own(replica: Replica) -> None:
    assert replica.one(PutGroup("g", 1, (5,))) == GroupPut("g", True, 1, (5,))
    assert replica.one(PutGroup("g", 2)) == GroupPut("g", False, 2, (5,))
    replica.reopen()
    found = replica.machine.group("g")
    assert found is not None
    assert (found.retry_max_attempts, found.retry_delays_ms) == (2, (5,))
    for attempts in (-1, RETRY_MAX_ATTEMPTS_MAX + 1):
        assert replica.refusal(PutGroup("h", attempts)).code == "invalid_request"
    for delays in ((), (-1,), (0,) * 65):
        assert replica.refusal(PutGroup("h", None, delays)).code == "invalid_request"
    assert given(replica, give(0))[0].due_at_ms == 1_005
    fire_all(replica)
    assert given(replica, give(0, topic=RETRY))[0].due_at_ms == 1_010
    fire_all(replica)
    assert given(replica, give(1, topic=RETRY))[0].outcome == "dead_lettered"
    replica.one(PutGroup("g", 0))
    assert given(replica, give(1))[0].outcome == "dead_lettered"


def test_a_history_keeps_the_last_attempts(replica: Replica) -> None:
    replica.one(PutGroup("g", RETRY_MAX_ATTEMPTS_MAX, (0,)))
    given(replica, give(0))
    for offset in range(GIVE_BACK_HISTORY_MAX):
        given(replica, give(offset, topic=RETRY))
    redelivery = rows(replica, RETRY)[-1].redelivery
    assert redelivery is not None
    assert [entry.attempt for entry in redelivery.history] == list(range(2, GIVE_BACK_HISTORY_MAX + 2))


def test_dead_letters_are_replayed_once(replica: Replica) -> None:
    assert replica.refusal(ReplayDeadLetters("g", (0,))).code == "group_not_found"
    replica.one(PutGroup("g", 0))
    assert replica.refusal(ReplayDeadLetters("g", (0,))).code == "topic_not_found"
    given(replica, give(2, 7, reason="broken"))
    assert replica.refusal(ReplayDeadLetters("g", (0, 2))).code == "offset_out_of_range"
    assert replica.refusal(ReplayDeadLetters("g", ())).code == "invalid_request"
    assert replica.refusal(give(0, topic=DLQ)).code == "invalid_request"
    replica.now_ms = 2_000
    assert replica.machine.replayed_at_ms("g", 1) is None
    assert replica.one(ReplayDeadLetters("g", (1, 1))) == DeadLettersReplayed(
        "g", (DeadLetterReplayed(1, 2_000, False), DeadLetterReplayed(1, 2_000, True))
    )
    replica.do(CommitOffsets("g", None, None, (QueueOffset(DLQ, 0, 2),)))
    replica.reopen()
    replica.now_ms = 3_000
    assert replica.one(ReplayDeadLetters("g", (1,))) == DeadLettersReplayed("g", (DeadLetterReplayed(1, 2_000, True),))
    assert (replica.machine.replayed_at_ms("g", 1), replica.machine.replayed_at_ms("g", 0)) == (2_000, None)
    (row,) = rows(replica, RETRY)
    assert row.redelivery == Redelivery(3, 6, "orders", 0, 7, 0, (Attempt(1, 1_000, "broken", "", ""),))
    replica.one(PutGroup("g", 1))
    (result,) = given(replica, give(0, topic=RETRY))
    assert (result.attempt, result.outcome) == (1, "scheduled")


def test_a_message_of_a_batch_with_left_out_ones_is_the_right_one(replica: Replica) -> None:
    replica.do(produce(header("orders", 1, "k", 1, ["known"])))
    replica.do(produce(header("orders", 1, "c", 3, ["new-1", "known", "new-2"], content=5)))
    given(replica, give(2, queue=1, delay_ms=0))
    (row,) = rows(replica, RETRY)
    assert (row.batch_id, list(row.ordinals())) == ("c", [2])
    assert row.redelivery is not None
    assert row.redelivery.block_count == 3


def test_another_group_starts_anew_with_what_a_group_was_given_again(replica: Replica) -> None:
    given(replica, give(0, delay_ms=0))
    result = replica.one(GiveBack("other", None, None, (GivenBack(RETRY, 0, 0, "", 0),)))
    assert isinstance(result, MessagesGivenBack)
    assert result.messages[0].attempt == 1
    (row,) = rows(replica, "%RETRY%other")
    assert row.redelivery is not None
    assert (row.redelivery.topic, row.redelivery.offset, len(row.redelivery.history)) == (RETRY, 0, 1)


def test_what_is_produced_given_back_and_dead_within_one_apply(replica: Replica) -> None:
    """The leader applies many entries with one write of the index: each sees what those before it did."""
    replica.do(
        PutGroup("g", 1, (0,)),
        JoinGroup("g", "m", "c", ("orders",), 30_000),
        produce(header("orders", 1, "late", 3)),
        give(0, 1, queue=1, member="m", generation=1),
    )
    replica.now_ms = 2_000
    results = replica.do(
        give(1, topic=RETRY, member="m", generation=2),
        give(2, 1, queue=1, member="m", generation=2),
        CommitOffsets("g", "m", 2, (QueueOffset("orders", 1, 3),)),
        ReplayDeadLetters("g", (0,)),
    )
    outcomes = [each.outcome for result in results if isinstance(result, MessagesGivenBack) for each in result.messages]
    assert outcomes == ["dead_lettered", "scheduled", "already_given_back"]
    assert [list(row.ordinals()) for row in rows(replica, RETRY)] == [[0], [1], [2], [1]]
    assert [list(row.ordinals()) for row in rows(replica, DLQ)] == [[1]]
    marks = [key for key in replica.dump() if key[:1] == b"w"]
    assert len(marks) == 2  # of the retry that died, and of the replay


def test_the_commands_read_back_as_written() -> None:
    commands: list[Command] = [give(1, delay_ms=5, reason="r"), PutGroup("g", 3, (1, 2)), ReplayDeadLetters("g", (4,))]
    entry = decode_entry(encode_entry(1, [Proposed(command) for command in commands]))
    assert list(entry.commands) == commands


def noted(replica: Replica, topic_id: int) -> list[tuple[int, int]]:
    """Return queue and offset of the message of each event that traces of the topic's messages show."""
    _, _, prefix = keys.messages_of_topic(topic_id)
    return [keys.place_event_parts(key)[1:] for key in replica.dump() if key.startswith(prefix)]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("messages", [0, 6, 10])
def test_a_late_retry_notes_nothing_of_a_later_topic(replica: Replica, level: int, messages: int) -> None:
    replica.raise_level(level)
    given(replica, give(6))
    replica.do(DeleteTopic("orders"))
    replica.do(PutTopic("orders", 2), *((produce(header("orders", 0, "new", messages)),) if messages else ()))
    fire_all(replica)
    assert len(rows(replica, RETRY)) == 1
    assert noted(replica, 6) == ([(0, 6)] if level == 1 else [])
    given(replica, give(0, topic=RETRY, delay_ms=0))
    assert noted(replica, 6) == ([(0, 6)] * 3 if level == 1 else [])


@pytest.mark.parametrize("level", [1, 2])
def test_a_late_retry_notes_nothing_of_a_queue_that_a_later_topic_lacks(replica: Replica, level: int) -> None:
    replica.raise_level(level)
    replica.do(produce(header("orders", 1, "b2")))
    given(replica, give(0, queue=1))
    replica.do(DeleteTopic("orders"))
    replica.do(PutTopic("orders", 1))
    fire_all(replica)
    assert noted(replica, 6) == ([(1, 0)] if level == 1 else [])
    replica.do(SweepIndex(100))  # which ended every node, and again at each start
    assert noted(replica, 6) == []


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("removed", [False, True])
def test_a_retry_is_noted_of_the_message_it_is_of(replica: Replica, level: int, removed: bool) -> None:
    replica.raise_level(level)
    given(replica, give(6))
    assert noted(replica, 4) == [(0, 6)]
    if removed:
        replica.do(PutTopic("orders", 2, 1_000))
        replica.now_ms += 1_000
        replica.do(ExpireMessages((("orders", 0),), 100))
        assert rows(replica, "orders") == []
    fire_all(replica)
    assert noted(replica, 4) == [(0, 6), (0, 6)]
    given(replica, give(0, topic=RETRY, delay_ms=0))
    assert noted(replica, 4) == [(0, 6)] * 4
