"""Messages are given back, fired, committed, reset and replayed in any order, and compared with plain lists."""

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from store.commands.entry import Command
from store.commands.groups import (
    CommitOffsets,
    GiveBack,
    GivenBack,
    MessagesGivenBack,
    PutGroup,
    QueueOffset,
    ReplayDeadLetters,
    ResetOffsets,
)
from store.commands.messages import FireTimers
from store.commands.topics import PutTopic
from store.errors import Refused
from store.index.index import Index
from store.state.machine import StateMachine
from tests.unit.store.replica import Replica, apply_all, dump, header, produce

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
MAX_ATTEMPTS, DELAYS_MS = 2, (3, 7)
TOPICS = st.sampled_from(["orders", RETRY])


class Kept(NamedTuple):
    message: str
    attempt: int
    attempts_ever: int


class GivingBack(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="keelmq-retries-"))
        self.replica = Replica(self.directory / "index", flush_entries=5)
        self.replica.do(PutTopic("orders", 1), PutGroup("g", MAX_ATTEMPTS, DELAYS_MS))
        self.replica.do(produce(header("orders", 0, "a", 2)), produce(header("orders", 0, "b", 3)))
        first = [Kept(name, 0, 0) for name in ("a-0", "a-1", "b-0", "b-1", "b-2")]
        self.queues: dict[str, list[Kept]] = {"orders": first}
        self.committed: dict[str, int] = {}
        self.marks: set[tuple[str, int]] = set()
        self.replayed: set[int] = set()
        self.waiting: list[tuple[int, int, Kept]] = []
        self.scheduled = 0

    def run(self, command: Command, expected: str | None) -> object:
        if expected is not None:
            assert self.replica.refusal(command).code == expected
            return None
        result = self.replica.one(command)
        assert not isinstance(result, Refused), result
        return result

    def make_retry_topic(self) -> None:
        if RETRY not in self.queues:
            self.queues[RETRY] = []
            self.committed[RETRY] = 0

    def refusal_of(self, topic: str, offset: int) -> str | None:
        if topic not in self.queues:
            return "topic_not_found"
        return "offset_out_of_range" if offset >= len(self.queues[topic]) else None

    @rule(topic=TOPICS, offset=st.integers(0, 6), delay_ms=st.sampled_from([None, None, 0, 4]))
    def give_back(self, topic: str, offset: int, delay_ms: int | None) -> None:
        command = GiveBack("g", None, None, (GivenBack(topic, 0, offset, "why", delay_ms),))
        expected = self.refusal_of(topic, offset)
        if topic in self.queues and offset < self.committed.get(topic, 0):
            expected = "offset_moves_back"
        result = self.run(command, expected)
        if expected is not None:
            return
        assert isinstance(result, MessagesGivenBack)
        if (topic, offset) in self.marks:
            assert result.messages[0].outcome == "already_given_back"
            return
        self.marks.add((topic, offset))
        before = self.queues[topic][offset]
        kept = Kept(before.message, before.attempt + 1, before.attempts_ever + 1)
        if kept.attempt > MAX_ATTEMPTS:
            assert result.messages[0].outcome == "dead_lettered"
            self.queues.setdefault(DLQ, []).append(kept)
            return
        self.make_retry_topic()
        wait_ms = DELAYS_MS[kept.attempt - 1] if delay_ms is None else delay_ms
        assert result.messages[0].due_at_ms == self.replica.now_ms + wait_ms
        if wait_ms == 0:
            self.queues[RETRY].append(kept)
        else:
            self.waiting.append((self.replica.now_ms + wait_ms, self.scheduled, kept))
            self.scheduled += 1

    @rule(later_ms=st.integers(0, 6), limit=st.integers(1, 3))
    def fire(self, later_ms: int, limit: int) -> None:
        self.replica.now_ms += later_ms
        self.run(FireTimers(limit), None)
        due = sorted(item for item in self.waiting if item[0] <= self.replica.now_ms)[:limit]
        for item in due:
            self.waiting.remove(item)
            self.queues[RETRY].append(item[2])

    @rule(topic=TOPICS, offset=st.integers(0, 6))
    def commit(self, topic: str, offset: int) -> None:
        expected = self.refusal_of(topic, offset - 1 if offset else -1)
        if expected is None and offset < self.committed.get(topic, 0):
            expected = "offset_moves_back"
        self.run(CommitOffsets("g", None, None, (QueueOffset(topic, 0, offset),)), expected)
        if expected is None:
            self.committed[topic] = offset
            self.marks = {mark for mark in self.marks if mark[0] != topic or mark[1] >= offset}

    @rule(topic=TOPICS, offset=st.integers(0, 3))
    def reset(self, topic: str, offset: int) -> None:
        expected = self.refusal_of(topic, offset - 1 if offset else -1)
        self.run(ResetOffsets("g", (QueueOffset(topic, 0, offset),)), expected)
        if expected is None:
            self.committed[topic] = offset
            self.marks = {mark for mark in self.marks if mark[0] != topic}

    @rule(offset=st.integers(0, 3))
    def replay(self, offset: int) -> None:
        expected = self.refusal_of(DLQ, offset)
        self.run(ReplayDeadLetters("g", (offset,)), expected)
        if expected is None and offset not in self.replayed:
            self.replayed.add(offset)
            self.make_retry_topic()
            dead = self.queues[DLQ][offset]
            self.queues[RETRY].append(Kept(dead.message, 0, dead.attempts_ever))

    @rule()
    def restart(self) -> None:
        self.replica.reopen()

    @invariant()
    def queues_hold_what_was_given_back(self) -> None:
        machine = self.replica.machine
        for topic, expected in self.queues.items():
            found: list[Kept] = []
            for row in machine.rows(topic, 0, 0, 1_000, 1 << 20):
                kept = row.redelivery
                assert row.base_offset == len(found)
                attempts = (kept.attempt, len(kept.history)) if kept is not None else (0, 0)
                found += [Kept(f"{row.batch_id}-{ordinal}", *attempts) for ordinal in row.ordinals()]
            assert found == expected
        assert machine.messages_scheduled == len(self.waiting)
        assert {each.topic: each.offset for each in machine.offsets("g") or []} == self.committed
        marks = [key for key in self.replica.dump() if key[:1] == b"w"]
        assert len(marks) == len(self.marks) + len(self.replayed)

    def teardown(self) -> None:
        try:
            index = Index.open(str(self.directory / "again"))
            machine = StateMachine(index, dedupe_min_entries=0)
            apply_all(machine, self.replica.log.entries)
            assert machine.state_hash == self.replica.machine.state_hash
            assert dump(index) == self.replica.dump()
            index.close()
            self.replica.close()
        finally:
            shutil.rmtree(self.directory)


TestGivingBack = GivingBack.TestCase
TestGivingBack.settings = settings(max_examples=30, stateful_step_count=40)
