"""Group commit of proposals, driven by hand: the proposals in one entry, and the outcome that each gets."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from raft.errors import FeatureNotEnabled, Overloaded, ProposalTooLarge, UnknownOutcome
from raft.proposals import (
    COMMAND_OVERHEAD_BYTES,
    ENTRY_WORK_BYTES,
    PROPOSAL_OVERHEAD_BYTES,
    Applied,
    ProposalQueue,
)
from store.commands.entry import Proposal, decode_entry
from store.commands.groups import QueueOffset, ResetOffsets
from store.commands.messages import BatchHeader, Produce
from store.commands.topics import DeleteTopic, PurgeTopic
from store.errors import Refused
from store.features import FEATURES, FIRST_LEVEL
from store.log.errors import DiskFull
from store.log.record import KIND_ENTRY, MAX_PAYLOAD_BYTES, Entry

MAX_ENTRY_BYTES = 4_000
MAX_IN_FLIGHT_BYTES = 20_000


class Log:
    """A log that takes entries and lets the test decide when each one is applied."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.outcomes: list[Callable[[Entry | None, Any], None]] = []
        self.error: Exception | None = None

    def append(self, payload: bytes, on_outcome: Callable[[Entry | None, Any], None]) -> int:
        if self.error:
            raise self.error
        self.payloads.append(payload)
        self.outcomes.append(on_outcome)
        return len(self.payloads)

    def topics(self, number: int) -> list[str]:
        commands = decode_entry(self.payloads[number]).commands
        names = []
        for command in commands:
            assert isinstance(command, Produce | DeleteTopic)
            names.append(command.batches[0].topic if isinstance(command, Produce) else command.topic)
        return names

    def apply(self, number: int, results: list[Any]) -> None:
        self.outcomes[number](Entry(self.payloads[number], number + 1, 3, KIND_ENTRY, 0), results)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def queue(log: Log) -> ProposalQueue:
    clock = iter(range(1_000, 100_000))
    return ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: next(clock),
        clock_is_sure=lambda: True,
        max_entry_bytes=MAX_ENTRY_BYTES,
        max_entries_in_flight=2,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )


def proposal(topic: str, size_bytes: int = 0) -> Proposal:
    if not size_bytes:
        return Proposal(DeleteTopic(topic))
    batch = BatchHeader(topic, 0, 1, "b", None, 0, size_bytes)
    return Proposal(Produce((batch,)), (bytes(size_bytes),))


def produce_of(ids: int) -> Proposal:
    batch = BatchHeader("a", 0, ids, "b", tuple(f"id-{number}" for number in range(ids)), 0, 1)
    return Proposal(Produce((batch,)), (b"x",))


async def turn() -> None:
    await asyncio.sleep(0)


async def test_an_entry_holds_no_more_commands_than_are_applied_in_some_milliseconds(log: Log) -> None:
    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: 1_000,
        clock_is_sure=lambda: True,
        max_entry_bytes=MAX_PAYLOAD_BYTES,
        max_entries_in_flight=100,
        max_in_flight_bytes=MAX_PAYLOAD_BYTES,
    )
    few, many = produce_of(ids=1), produce_of(ids=10_000)
    futures = [queue.submit(each) for each in (*[few] * 2_000, many, many)]
    await turn()
    commands = [decode_entry(payload).commands for payload in log.payloads]
    assert sum(map(len, commands)) == len(futures)
    assert all(len(each) < ENTRY_WORK_BYTES // COMMAND_OVERHEAD_BYTES for each in commands)
    assert [len(each) for each in commands][-2:] == [1, 1], "one that is more by itself goes alone"
    assert len(commands) < 12
    queue.fail_waiting(UnknownOutcome("the test ends"))


async def test_nothing_is_stamped_before_the_time_is_known(log: Log) -> None:
    stamps = iter((None, None, 7_000))
    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: next(stamps, 8_000),
        clock_is_sure=lambda: True,
        max_entry_bytes=MAX_ENTRY_BYTES,
        max_entries_in_flight=2,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )
    first, second = queue.submit(proposal("a")), queue.submit(proposal("b"))
    while not log.payloads:
        await turn()
    assert decode_entry(log.payloads[0]).timestamp_ms == 7_000
    assert log.topics(0) == ["a", "b"]
    queue.submit(proposal("c"))
    await turn()
    assert decode_entry(log.payloads[1]).timestamp_ms == 8_000
    assert not first.done()
    assert not second.done()


@pytest.mark.parametrize("raised", [False, True])
async def test_a_command_waits_for_a_level_that_is_being_raised(log: Log, raised: bool) -> None:
    """The first command of a new cluster is quicker than the commit of its level: it was refused, now and then."""
    levels = iter((None, None, None, None, FEATURES.maximum if raised else FIRST_LEVEL))
    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: 7_000,
        clock_is_sure=lambda: True,
        feature_level=lambda: next(levels),
        max_entry_bytes=MAX_ENTRY_BYTES,
        max_entries_in_flight=2,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )
    waiting = [queue.submit(each) for each in (Proposal(PurgeTopic("a")), proposal("b"))]
    while not log.payloads:
        await turn()
    assert len(decode_entry(log.payloads[0]).commands) == (2 if raised else 1)
    if not raised:
        with pytest.raises(FeatureNotEnabled, match="feature level 2"):
            await waiting[0]
    log.apply(0, ["done"] * (1 + raised))
    assert (await waiting[1]).result == "done"
    assert queue.in_flight_bytes == 0


async def test_what_waits_in_one_turn_of_the_loop_is_one_entry(log: Log, queue: ProposalQueue) -> None:
    futures = [queue.submit(proposal(name)) for name in "abc"]
    await turn()
    assert log.topics(0) == ["a", "b", "c"]
    log.apply(0, ["A", "B", "C"])
    assert [await future for future in futures] == [
        Applied(result, term=3, index=1, timestamp_ms=1_000, durable_on=(1, 2)) for result in "ABC"
    ]
    assert queue.in_flight_bytes == 0


async def test_next_entry_collects_while_the_window_is_full(log: Log, queue: ProposalQueue) -> None:
    for name in "ab":
        queue.submit(proposal(name))
        await turn()
    for name in "cde":
        queue.submit(proposal(name))
        await turn()
    assert len(log.payloads) == 2
    log.apply(0, [None])
    await turn()
    assert log.topics(2) == ["c", "d", "e"]


async def test_entries_stay_below_their_limit_but_a_large_proposal_passes(log: Log, queue: ProposalQueue) -> None:
    for name, size in (("a", 2_000), ("b", 2_000), ("c", 9_000)):
        queue.submit(proposal(name, size))
    await turn()
    assert [log.topics(0), log.topics(1)] == [["a"], ["b"]]
    log.apply(0, [None])
    await turn()
    assert log.topics(2) == ["c"]


async def test_bytes_in_flight_are_bounded_and_given_back(log: Log, queue: ProposalQueue) -> None:
    first = queue.submit(proposal("a", MAX_IN_FLIGHT_BYTES))
    with pytest.raises(Overloaded):
        queue.submit(proposal("b"))
    await turn()
    log.apply(0, [None])
    await first
    queue.submit(proposal("b"))
    assert PROPOSAL_OVERHEAD_BYTES < queue.in_flight_bytes < PROPOSAL_OVERHEAD_BYTES + 100


def offsets(count: int) -> Proposal:
    return Proposal(ResetOffsets("g", tuple(QueueOffset("t" * 127, queue, 0) for queue in range(count))))


async def test_what_a_command_holds_counts_too(log: Log, queue: ProposalQueue) -> None:
    for _ in range(4):
        queue.submit(offsets(10))
    await turn()
    assert [len(decode_entry(payload).commands) for payload in log.payloads] == [2, 2]
    assert all(len(payload) <= MAX_ENTRY_BYTES for payload in log.payloads)
    with pytest.raises(Overloaded):
        queue.submit(offsets(200))


async def test_a_command_that_no_record_can_hold_is_refused_and_later_ones_pass(log: Log, queue: ProposalQueue) -> None:
    length = MAX_PAYLOAD_BYTES - PROPOSAL_OVERHEAD_BYTES
    with pytest.raises(ProposalTooLarge, match=str(MAX_PAYLOAD_BYTES)):
        queue.submit(proposal("a", length))
    assert queue.in_flight_bytes == 0
    queue.submit(proposal("b", length - 100))
    await turn()
    assert log.topics(0) == ["b"]
    assert len(log.payloads[0]) <= MAX_PAYLOAD_BYTES


async def test_refusal_reaches_only_its_proposer(log: Log, queue: ProposalQueue) -> None:
    good, bad = queue.submit(proposal("a")), queue.submit(proposal("b"))
    await turn()
    log.apply(0, ["A", Refused("topic_not_found", "no topic b")])
    assert (await good).result == "A"
    with pytest.raises(Refused, match="no topic b"):
        await bad
    assert queue.in_flight_bytes == 0


async def test_lost_leadership_is_an_unknown_outcome(log: Log, queue: ProposalQueue) -> None:
    future = queue.submit(proposal("a"))
    await turn()
    log.outcomes[0](None, UnknownOutcome("leadership was lost"))
    with pytest.raises(UnknownOutcome):
        await future
    assert queue.in_flight_bytes == 0


async def test_full_disk_fails_the_group_and_later_ones_pass(log: Log, queue: ProposalQueue) -> None:
    log.error = DiskFull("allocate", "segment", 28, "no space")
    future = queue.submit(proposal("a"))
    await turn()
    with pytest.raises(DiskFull):
        await future
    log.error = None
    queue.submit(proposal("b"))
    await turn()
    assert log.topics(0) == ["b"]


async def test_a_cancelled_caller_does_not_disturb_the_others(log: Log, queue: ProposalQueue) -> None:
    gone, there = queue.submit(proposal("a")), queue.submit(proposal("b"))
    await turn()
    gone.cancel()
    log.apply(0, ["A", "B"])
    assert (await there).result == "B"
    assert queue.in_flight_bytes == 0


async def test_what_nobody_waits_for_any_more_is_not_appended(log: Log, queue: ProposalQueue) -> None:
    """A cluster that cannot keep up must not spend itself on requests that have timed out: it would never catch up."""
    futures = [queue.submit(proposal(topic, 2_700), topic) for topic in "abcdef"]
    await turn()
    assert [log.topics(number) for number in range(len(log.payloads))] == [["a"], ["b"]]
    for gone in (futures[2], futures[3], futures[5]):
        gone.cancel()
    log.apply(0, ["A"])
    await turn()
    assert log.topics(2) == ["e"]
    log.apply(1, ["B"])
    log.apply(2, ["E"])
    await turn()
    assert len(log.payloads) == 3
    assert (await futures[4]).result == "E"
    assert queue.in_flight_bytes == 0


async def test_a_sender_leaves_room_for_those_who_have_nothing_in_flight(log: Log, queue: ProposalQueue) -> None:
    many = [queue.submit(proposal("a", 700), "a") for _ in range(15)]
    with pytest.raises(Overloaded, match="of this sender"):
        queue.submit(proposal("a", 700), "a")
    assert MAX_IN_FLIGHT_BYTES * 0.7 <= queue.in_flight_bytes <= MAX_IN_FLIGHT_BYTES * 0.75
    others = [queue.submit(proposal(sender, 700), sender) for sender in "bcd"]
    with pytest.raises(Overloaded, match="of this sender"):
        queue.submit(proposal("a", 700), "a")
    queue.fail_waiting(Overloaded("over"))
    for future in (*many, *others):
        with pytest.raises(Overloaded, match="over"):
            await future
    assert queue.in_flight_bytes == 0
    assert queue._in_flight_of == {}


async def test_one_that_comes_behind_many_of_another_sender_is_in_the_next_entry(
    log: Log, queue: ProposalQueue
) -> None:
    for _ in range(10):
        queue.submit(proposal("a", 1_000), "a")
    await turn()
    waits = queue.submit(proposal("b", 1_000), "b")
    entries = len(log.payloads)
    log.apply(0, ["A"] * len(log.topics(0)))
    await turn()
    assert "b" in log.topics(entries)
    assert not waits.done()


async def test_senders_with_weights_get_their_shares_of_the_entries(log: Log) -> None:
    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: 1_000,
        clock_is_sure=lambda: True,
        max_entry_bytes=4_000,
        max_entries_in_flight=1,
        max_in_flight_bytes=200_000,
    )
    queue.use_weights({"light": 1, "heavy": 3}.__getitem__)
    for sender in ("light", "heavy"):
        for _ in range(60):
            queue.submit(proposal(sender, 700), sender)
    got: Counter[str] = Counter()
    for entry in range(15):
        await turn()
        topics = log.topics(entry)
        got.update(topics)
        log.apply(entry, [None] * len(topics))
    assert sum(got.values()) >= 45
    assert abs(got["heavy"] - 3 * got["light"]) <= 4, got
    queue.fail_waiting(UnknownOutcome("the test ends"))


async def test_timestamps_never_go_back_and_doubt_is_said(log: Log) -> None:
    clock, sure = iter([5_000, 4_000]), iter([True, False])
    queue = ProposalQueue(
        log.append,
        lambda index: (),
        lambda: next(clock),
        lambda: next(sure),
        max_entry_bytes=1,
        max_entries_in_flight=9,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )
    queue.submit(proposal("a"))
    queue.submit(proposal("b"))
    await turn()
    entries = [decode_entry(payload) for payload in log.payloads]
    assert [(entry.timestamp_ms, entry.in_doubt) for entry in entries] == [(5_000, False), (5_000, True)]


async def test_a_proposal_knows_whether_it_is_in_the_log(log: Log, queue: ProposalQueue) -> None:
    futures = [queue.submit(proposal(name, MAX_ENTRY_BYTES)) for name in "abc"]
    assert not any(future.is_in_log for future in futures)
    await turn()
    assert [future.is_in_log for future in futures] == [True, True, False], "two entries may be in flight"
    for future in futures:
        future.cancel()
    log.apply(0, [None])
    await turn()
    assert len(log.payloads) == 2, "who has given up is not proposed"
    assert not futures[2].is_in_log
    log.apply(1, [None])


async def test_the_level_is_asked_for_until_it_is_the_highest(log: Log) -> None:
    """A command that the level knows says nothing of the next one."""
    level = FIRST_LEVEL
    asked = list[int]()

    def feature_level() -> int:
        asked.append(level)
        return level

    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: 7_000,
        clock_is_sure=lambda: True,
        feature_level=feature_level,
        max_entry_bytes=MAX_ENTRY_BYTES,
        max_entries_in_flight=2,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )
    queue.submit(proposal("b"))
    with pytest.raises(FeatureNotEnabled, match="feature level 2"):
        queue.submit(Proposal(PurgeTopic("a")))
    level = FEATURES.maximum
    queue.submit(Proposal(PurgeTopic("a")))
    asked.clear()
    queue.submit(Proposal(PurgeTopic("a")))
    assert asked == [], "it never goes down"
    while not log.payloads:
        await turn()
    assert len(decode_entry(log.payloads[0]).commands) == 3


@pytest.mark.parametrize("failing", ["the time", "the level"])
async def test_an_error_before_an_entry_is_made_fails_all_that_wait_and_not_what_comes_after(
    log: Log, failing: str
) -> None:
    failed: list[Exception] = []
    errors = iter([KeyError("3")])

    def answer(of: str, value: int) -> int:
        if of == failing and (error := next(errors, None)):
            raise error
        return value

    queue = ProposalQueue(
        log.append,
        durable_on=lambda index: (1, 2),
        stamp_ms=lambda: answer("the time", 7_000),
        clock_is_sure=lambda: True,
        feature_level=lambda: answer("the level", FEATURES.maximum),
        max_entry_bytes=MAX_ENTRY_BYTES,
        max_entries_in_flight=2,
        max_in_flight_bytes=MAX_IN_FLIGHT_BYTES,
    )
    queue.on_failure = failed.append
    queue._all_enabled = True  # as when commands were proposed before: `submit` does not ask
    futures = [queue.submit(proposal("a")) for _ in range(2)]
    await turn()
    for future in futures:
        with pytest.raises(KeyError):
            await future
    assert ([str(each) for each in failed], queue.in_flight_bytes, log.payloads) == (["'3'"], 0, [])
    queue.submit(proposal("b"))
    await turn()
    assert log.topics(0) == ["b"], "a queue of which nobody is told that it failed would go on"
    log.apply(0, [None])
