"""Retention: which messages go, when, and which part of the log the others need."""

from random import Random

import msgspec
import pytest

from store.commands.entry import Command
from store.commands.entry import Proposal as Proposed
from store.commands.groups import CommitOffsets, GiveBack, GivenBack, PutGroup, QueueOffset, ReplayDeadLetters
from store.commands.messages import BatchHeader, CancelScheduled, FireTimers, Produce
from store.commands.retention import Expired, ExpiredQueue, ExpireMessages, ReleaseMessages, SweepIndex, Swept
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide, Decision, Discard, ResumeTransaction
from store.commands.views import QueueRange
from store.index import keys
from store.limits import DELAY_MAX_MS, EXPIRED_QUEUES_MAX, EXPIRED_ROWS_MAX, SWEPT_KEYS_MAX, TRANSACTION_RETENTION_MS
from store.messages.block_location import BlockLocation
from store.messages.log_references import Holder
from store.messages.message_index import key_hash
from tests.unit.store.references import assert_references_hold, floor
from tests.unit.store.replica import Replica, apply_all, dump, header, prepare, produce

KEPT_MS = 10_000
ALL = tuple((topic, queue) for topic in ("orders", "%RETRY%g", "%DLQ%g") for queue in range(2))
SYSTEM = tuple((f"{name}", 0) for name in ("RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"))


@pytest.fixture
def kept(replica: Replica) -> Replica:
    """Return a replica with a topic that keeps messages for 10 s, and three batches in queue 0, stored at 1000, 2000,
    3000.
    """
    replica.one(PutTopic("orders", 2, KEPT_MS))
    for number in range(3):
        replica.now_ms = 1_000 * (number + 1)
        replica.one(produce(header(batch_id=f"b{number}", count=2)))
    return replica


def expire(replica: Replica, at_ms: int, limit: int = 100, queues: tuple[tuple[str, int], ...] = ALL) -> Expired:
    replica.now_ms = at_ms
    result = replica.one(ExpireMessages(queues, limit))
    assert isinstance(result, Expired), result
    return result


def expired_queues(replica: Replica, at_ms: int) -> list[tuple[str, int]]:
    return [found for found in replica.machine.expired_queues(at_ms) if found is not None]


def starts(replica: Replica) -> list[int]:
    return [each.min_offset for each in replica.machine.queue_ranges("orders")]


def test_messages_go_when_their_time_is_over_and_not_a_millisecond_before(kept: Replica) -> None:
    assert expired_queues(kept, 1_000 + KEPT_MS - 1) == []
    assert expire(kept, 1_000 + KEPT_MS - 1) == Expired((), 0, 0)
    assert starts(kept) == [0, 0]
    assert expired_queues(kept, 1_000 + KEPT_MS) == [("orders", 0)]
    assert expire(kept, 1_000 + KEPT_MS) == Expired((ExpiredQueue("orders", 0, 2, 2),), 1, 0)
    assert starts(kept) == [2, 0]
    assert [row.base_offset for row in kept.machine.rows("orders", 0, 0, 9, 999)] == [2, 4]
    kept.reopen()
    assert kept.machine.queue_ranges("orders")[0] == QueueRange(0, 2, 6)
    assert kept.machine.row_of("orders", 0, 1) is None
    assert kept.machine.offset_at("orders", 0, 0) == (2, 2_000)


def test_offsets_go_on_when_everything_is_gone(kept: Replica) -> None:
    assert expire(kept, 50_000).rows == 3
    assert kept.machine.queue_ranges("orders")[0] == QueueRange(0, 6, 6)
    assert kept.machine.rows("orders", 0, 0, 9, 999) == []
    assert expired_queues(kept, 1 << 40) == []
    kept.one(produce(header(batch_id="next")))
    assert kept.machine.rows("orders", 0, 0, 9, 999)[0].base_offset == 6


def test_an_entry_removes_no_more_than_it_says(kept: Replica) -> None:
    assert expire(kept, 50_000, limit=2) == Expired((ExpiredQueue("orders", 0, 4, 4),), 2, 0)
    assert expire(kept, 50_000, limit=2).rows == 1


def test_retention_can_change_and_be_for_ever(kept: Replica) -> None:
    kept.one(PutTopic("orders", retention_ms=-1))
    assert expired_queues(kept, 1 << 50) == []
    assert expire(kept, 1 << 50).rows == 0
    kept.one(PutTopic("orders", retention_ms=1))
    assert expire(kept, 1 << 50).rows == 3
    for retention_ms in (0, -2):
        assert kept.refusal(PutTopic("orders", retention_ms=retention_ms)).code == "invalid_request"


def test_nothing_that_a_group_has_not_consumed_goes_earlier_or_later(kept: Replica) -> None:
    kept.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 1),)))
    expire(kept, 2_000 + KEPT_MS)
    (offset,) = kept.machine.offsets("g") or []
    assert (offset.offset, offset.lag) == (1, 2)


def test_deleted_topics_and_queues_that_are_not_there_are_passed_by(kept: Replica) -> None:
    assert expire(kept, 50_000, queues=(("gone", 0), ("orders", 7))) == Expired((), 0, 0)


@pytest.mark.parametrize(
    "command",
    [
        ExpireMessages((), 0),
        ExpireMessages((), EXPIRED_ROWS_MAX + 1),
        ExpireMessages((("t", 0),) * (EXPIRED_QUEUES_MAX + 1), 1),
        SweepIndex(0),
        SweepIndex(SWEPT_KEYS_MAX + 1),
    ],
)
def test_limits_are_enforced(kept: Replica, command: Command) -> None:
    assert kept.refusal(command).code == "invalid_request"


# What of the log is needed


@pytest.fixture
def exact(tmp_path_factory: pytest.TempPathFactory) -> Replica:
    """Return a replica that counts every log position for itself."""
    replica = Replica(tmp_path_factory.mktemp("exact") / "index", log_range_bytes=1)
    replica.one(PutTopic("orders", 2, KEPT_MS))
    return replica


def entry_of(replica: Replica, *proposals: Proposed | Command) -> int:
    replica.do(*proposals)
    return replica.machine.applied_index


def test_without_messages_the_log_is_not_needed(exact: Replica) -> None:
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def test_the_log_is_needed_from_the_first_message_that_is_kept(exact: Replica) -> None:
    first = entry_of(exact, produce(header(batch_id="b0")))
    exact.now_ms += 1
    second = entry_of(exact, produce(header(batch_id="b1", queue=1)))
    assert exact.machine.log_floor == first
    expire(exact, 1_000 + KEPT_MS)
    assert exact.machine.log_floor == second
    exact.reopen()
    assert exact.machine.log_floor == second
    expire(exact, 2_000 + KEPT_MS)
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def delayed(batch_id: str, due_ms: int) -> BatchHeader:
    return msgspec.structs.replace(header(batch_id=batch_id), deliver_at_ms=due_ms)


def test_a_timer_keeps_its_block_and_so_does_what_it_delivered(exact: Replica) -> None:
    scheduled = entry_of(exact, produce(delayed("d", 100_000)))
    expire(exact, 99_000)
    assert exact.machine.log_floor == scheduled
    exact.now_ms = 100_000
    exact.one(FireTimers(10))
    assert exact.machine.log_floor == scheduled
    expire(exact, 100_000 + KEPT_MS)
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def test_a_timer_that_was_taken_back_keeps_nothing(exact: Replica) -> None:
    exact.one(produce(delayed("d", 100_000)))
    exact.one(CancelScheduled("orders", "d-0"))
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def test_nothing_begins_to_point_at_what_nothing_pointed_at(exact: Replica) -> None:
    """The log may lack it, and the floor is that of the first range there is."""
    exact.one(produce(header(batch_id="b0")))
    references = exact.machine._references
    with pytest.raises(AssertionError, match="nothing pointed at log position 0"):
        references.add(BlockLocation(0, 0, 1, 0, "b"), Holder.MESSAGE)


def test_a_message_that_was_given_back_keeps_its_block(exact: Replica) -> None:
    produced = entry_of(exact, produce(header(batch_id="b0", count=3)))
    exact.one(PutGroup("g", retry_max_attempts=1, retry_delays_ms=(0,)))
    exact.one(GiveBack("g", None, None, (GivenBack("orders", 0, 1),)))
    exact.one(GiveBack("g", None, None, (GivenBack("%RETRY%g", 0, 0),)))
    expire(exact, 1_000 + KEPT_MS)
    assert exact.machine.row_of("orders", 0, 1) is None
    assert exact.machine.log_floor == produced
    exact.one(ReplayDeadLetters("g", (0,)))
    assert expire(exact, 1_000 + KEPT_MS + TRANSACTION_RETENTION_MS).rows == 3
    assert exact.machine.log_floor == exact.machine.applied_index + 1
    assert exact.refusal(ReplayDeadLetters("g", (0,))).code == "offset_out_of_range"
    left = {key[:1] for key in exact.dump(effects_only=True)}
    assert b"w" not in left


def test_dead_letters_of_a_group_that_is_gone_expire(exact: Replica) -> None:
    exact.one(produce(header(batch_id="b0")))
    exact.one(PutGroup("g", retry_max_attempts=1, retry_delays_ms=(0,)))
    exact.one(GiveBack("g", None, None, (GivenBack("orders", 0, 0),)))
    exact.one(GiveBack("g", None, None, (GivenBack("%RETRY%g", 0, 0),)))
    del exact.machine._groups._groups["g"]
    assert expire(exact, 1_000 + TRANSACTION_RETENTION_MS).rows == 3
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def test_an_undecided_transaction_keeps_its_block_for_ever(exact: Replica) -> None:
    prepared = entry_of(exact, prepare("tx", header(batch_id="b0")))
    assert expire(exact, 1 << 40, queues=SYSTEM).rows == 1  # the view of it
    assert exact.machine.log_floor == prepared
    assert exact.machine.timeline("tx")


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_decided_transaction_goes_with_its_timeline_when_its_time_is_over(exact: Replica, decision: Decision) -> None:
    exact.one(prepare("tx", header(batch_id="b0")))
    exact.now_ms = 5_000
    exact.one(Decide("tx", decision))
    over_ms = 5_000 + TRANSACTION_RETENTION_MS
    assert not exact.machine.has_expired_others(over_ms - 1)
    assert expire(exact, over_ms - 1, queues=(*ALL, *SYSTEM)).transactions == 0
    assert exact.machine.timeline("tx")
    assert exact.machine.has_expired_others(over_ms)
    assert expire(exact, over_ms, queues=(*ALL, *SYSTEM)).transactions == 1
    assert exact.machine.transaction("tx") is None
    assert exact.machine.log_floor == exact.machine.applied_index + 1
    assert exact.machine.transactions().transactions == ()
    assert not {key[:1] for key in exact.dump(effects_only=True)} & {b"x", b"y", b"v", b"s", b"c"}
    assert exact.refusal(Decide("tx", "commit")).code == "transaction_not_found"


def test_a_transaction_that_was_resumed_stays(exact: Replica) -> None:
    exact.do(prepare("tx", header(batch_id="b0")), Discard(("tx",)))
    exact.one(ResumeTransaction("tx", "ann", "why", 0))
    assert expire(exact, 1 << 40).transactions == 1  # the note of the discard, nothing else
    assert exact.machine.transaction("tx") is not None
    exact.one(Decide("tx", "commit"))
    assert expire(exact, (1 << 40) + TRANSACTION_RETENTION_MS).transactions == 1
    assert exact.machine.transaction("tx") is None


def test_a_message_of_a_forgotten_transaction_is_delivered_in_its_time(exact: Replica) -> None:
    later_ms = 2 * TRANSACTION_RETENTION_MS
    exact.do(prepare("tx", delayed("d", later_ms)), Decide("tx", "commit"))
    expire(exact, later_ms - 1)
    assert exact.machine.transaction("tx") is None
    exact.now_ms = later_ms
    exact.one(FireTimers(10))
    assert exact.machine.rows("orders", 0, 0, 9, 999)[0].transaction_id == "tx"


def test_rows_of_a_deleted_topic_go_in_portions(exact: Replica) -> None:
    first = entry_of(exact, *(produce(header(batch_id=f"b{number}")) for number in range(5)))
    exact.one(DeleteTopic("orders"))
    exact.reopen()
    assert exact.machine.log_floor == first
    assert exact.machine.has_expired_others(0)
    assert [expire(exact, 1_000, limit=2).rows for _ in range(4)] == [2, 2, 1, 0]
    assert not exact.machine.has_expired_others(0)
    assert exact.machine.log_floor == exact.machine.applied_index + 1


def test_what_entries_did_goes_with_the_entries(exact: Replica) -> None:
    first = entry_of(exact, produce(header(batch_id="b0")))
    for number in range(300):
        exact.one(produce(header(batch_id=f"c{number}", queue=1)))
    before = exact.machine.first_outcome
    expire(exact, 1_000 + KEPT_MS, limit=1)
    assert exact.machine.first_outcome == before
    assert exact.machine.log_floor == first + 1
    expire(exact, 1_000 + KEPT_MS, limit=300)
    assert exact.machine.first_outcome == exact.machine.applied_index
    assert exact.machine.outcomes(1, 1 << 40, 9) == []


# What is kept for those who search


def sweep(replica: Replica, limit: int = 7) -> None:
    while True:
        assert replica.one(SweepIndex(limit)) == Swept()
        if not replica.machine.sweep_is_under_way:
            return


@pytest.mark.parametrize("level", [1, 2])
def test_ids_keys_commits_and_what_groups_did_are_swept_out(exact: Replica, level: int) -> None:
    exact.raise_level(level)
    keyed = BatchHeader("orders", 0, 2, "k", ("id-1", None), 0, 20, keys=(key_hash("a"), key_hash("b")))
    exact.one(Proposed(Produce((keyed,)), (bytes(20),)))
    exact.one(produce(delayed("d", 5_000)))
    exact.do(prepare("tx", header(batch_id="half", message_ids=["id-2"])), Decide("tx", "rollback"))
    exact.one(GiveBack("g", None, None, (GivenBack("orders", 0, 1, delay_ms=0),)))
    exact.one(CommitOffsets("g", None, None, (QueueOffset("orders", 0, 2),)))
    exact.now_ms = 5_000
    exact.one(FireTimers(10))
    kinds = {key[:2] for key in exact.dump() if key[:1] in (b"k", b"n")}
    assert {kind[:1] for kind in kinds} == {b"k", b"n"}
    before = exact.dump()
    sweep(exact)
    searched = {key for key in before if key[:1] in (b"k", b"n")}
    assert searched <= exact.dump().keys()  # nothing has expired
    expire(exact, 2 * TRANSACTION_RETENTION_MS, queues=(*ALL, *SYSTEM))
    sweep(exact)
    sweep(exact)  # some keys go one walk after others
    assert not [key for key in exact.dump() if key[:1] in (b"k", b"n")]
    assert exact.machine.message_places("orders", "id-1", 9) == []


@pytest.mark.parametrize("level", [1, 2])
def test_ids_of_messages_that_are_ids_of_batches_too_are_swept_out(exact: Replica, level: int) -> None:
    exact.raise_level(level)
    ids = {"same": "same", "a": "b", "b": "a"}  # of messages, by those of their batches
    exact.do(*(produce(header(batch_id=batch_id, message_ids=[each])) for batch_id, each in ids.items()))
    half, waiting = header(batch_id="half", message_ids=["half"]), header(batch_id="waiting", message_ids=["waiting"])
    exact.one(prepare("tx", half))
    exact.one(produce(msgspec.structs.replace(waiting, delay_ms=DELAY_MAX_MS)))
    before = exact.dump()
    sweep(exact)
    assert {key for key in before if key[:1] == b"k"} <= exact.dump().keys()
    expire(exact, 2 * TRANSACTION_RETENTION_MS)
    sweep(exact)
    swept = before.keys() - exact.dump().keys()
    for batch_id, each in (*ids.items(), ("half", "half"), ("waiting", "waiting")):
        (key,) = keys.batch_of_messages(4, batch_id, [(0, each)])
        assert (key in swept) is (level == 2 and batch_id in ids), batch_id


# The same everywhere


def random_commands(random: Random) -> list[Proposed | Command]:
    number = random.randrange(1 << 30)
    topic, queue = random.choice((("orders", 0), ("orders", 1), ("points", 0)))
    plain = header(topic, queue, f"b{number}", random.randint(1, 3))
    places = (*ALL, *SYSTEM, ("points", 0), ("TRANS_CHECK_MAX_TIME_TOPIC", 0))
    decision: Decision = random.choice(("commit", "rollback"))
    choices: tuple[list[Proposed | Command], ...] = (
        [PutTopic("points", 1, random.choice((1_000, KEPT_MS, -1)))],
        [DeleteTopic("points")],
        [produce(plain)],
        [produce(plain)],
        [produce(delayed(f"d{number}", number % 90_000))],
        [prepare(f"t{number % 5}", header(batch_id=f"h{number % 5}"))],
        [Decide(f"t{number % 5}", decision)],
        [Discard((f"t{number % 5}",))],
        [ResumeTransaction(f"t{number % 5}", "ann", "why", 0)],
        [FireTimers(random.randint(1, 3))],
        [GiveBack("g", None, None, (GivenBack("orders", 0, number % 20, delay_ms=number % 3_000),))],
        [CommitOffsets("g", None, None, (QueueOffset("orders", 0, number % 20),))],
        [ExpireMessages(places, random.randint(1, 4))],
        [ExpireMessages(places, 100)],
        [ReleaseMessages(tuple(topic for topic, _ in places), random.randint(1, 9))],
        [CommitOffsets("g", None, None, (QueueOffset("%RETRY%g", 0, number % 9),))],
        [GiveBack("g", None, None, (GivenBack(SYSTEM[0][0], 0, number % 9, delay_ms=number % 2),))],
        [SweepIndex(random.randint(1, 9))],
    )
    return random.choice(choices)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_the_counts_are_those_of_what_is_there(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A second replica, which applies the same entries in other portions and starts anew meanwhile, has the same
    counts.
    """
    random = Random(seed)
    directory = tmp_path_factory.mktemp("counts")
    replica = Replica(directory / "one", log_range_bytes=512)
    replica.one(PutTopic("orders", 2, KEPT_MS))
    for step in range(400):
        replica.now_ms += random.choice((0, 1, 100, 3_000, TRANSACTION_RETENTION_MS // 20))
        replica.do(*random_commands(random), *random_commands(random))
        if step % 10 == 0:
            assert_references_hold(replica.index, 512)
            assert replica.machine.log_floor == floor(replica.index, replica.machine.applied_index)
    assert_references_hold(replica.index, 512)
    replica.reopen()
    other = Replica(directory / "other", log_range_bytes=512)
    entries = replica.log.entries[1:]
    while entries:
        count = random.randint(1, 60)
        apply_all(other.machine, entries[:count])
        entries = entries[count:]
        if random.random() < 0.2:
            other.reopen()
    assert other.machine.state_hash == replica.machine.state_hash
    assert other.machine.log_floor == replica.machine.log_floor
    assert dump(other.index) == dump(replica.index)
    assert any(key.startswith(keys.QUEUE_STARTS) for key in dump(other.index))
    other.close()
    replica.close()
