"""The state machine against the model, and against itself: any history, applied in any portions, gives one state."""

import shutil
import tempfile
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from store.commands.cluster import PutSettings
from store.commands.entry import Command, Proposal, decode_entry
from store.commands.groups import CommitOffsets, JoinGroup, LeaveGroup, PauseGroup, QueueOffset
from store.commands.messages import BatchHeader, CancelScheduled, FireTimers
from store.commands.topics import DeleteTopic, PutTopic
from store.commands.transactions import Decide, Decision, Discard, ResumeTransaction
from store.errors import Refused
from store.features import FEATURES
from store.index.index import Index
from store.limits import DEDUPE_WINDOW_MS
from store.log.record import KIND_ENTRY
from store.messages.log_references import LOG_RANGE_BYTES
from store.messages.message_index import KeyedMessage, key_hash
from store.messages.topics import OP_HALF_TOPIC
from store.state.machine import StateMachine
from store.state.message_search import MessagePlace
from tests.unit.store.broker_model import Model, identity, message_id_of
from tests.unit.store.references import assert_references_hold
from tests.unit.store.replica import Replica, block_of, dump, prepare, produce
from tests.whole_state import trace_of

STATE_AFTER = {"COMMIT": "committed", "ROLLBACK": "rolled_back", "DISCARD": "discarded"}
"""State of a transaction after an event of each type."""

TOPICS = st.sampled_from(["orders", "points"])
QUEUE_NUMBERS = st.integers(0, 1)
TRANSACTION_IDS = st.sampled_from(["tx1", "tx2", "tx3"])


# What a batch id stands for: count and explicit ids. Few message ids, so that they meet in different batches.
CONTENTS: list[tuple[str | None, ...]] = [
    (None,),
    ("a",),
    ("b", "a"),
    (None, "c", None),
    ("c", "c"),
    ("d", "b", "a"),
    ("d", None),
    ("e",),
]


# The clock begins at 1,000 and moves by 1 with every command.
DELAYS: st.SearchStrategy[dict[str, int]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"delay_ms": st.integers(0, 12)}),
    st.fixed_dictionaries({"deliver_at_ms": st.integers(990, 1_050)}),
)
KEYS = ("red", "blue")
MESSAGE_IDS = st.sampled_from(["a", "b", "c", "d", "e", "b0-0", "b3-0", "b3-2", "b6-1", "b0-1", "nobody"])


@st.composite
def batches(draw: st.DrawFn) -> BatchHeader:
    """Draw batches. A batch id stands for one content, except one time in ten."""
    number = draw(st.integers(0, len(CONTENTS) - 1))
    ids = CONTENTS[number]
    content = number + (100 if draw(st.integers(0, 9)) == 9 else 0)
    explicit = ids if any(ids) else None
    length = len(block_of(len(ids), content))
    batch = BatchHeader(draw(TOPICS), draw(QUEUE_NUMBERS), len(ids), f"b{number}", explicit, content, length)
    return msgspec.structs.replace(batch, keys=keys_of(number), **draw(DELAYS))


def keys_of(number: int) -> tuple[bytes, ...] | None:
    """Return the keys of the messages in batch `b<number>`: some have none, some one, some two."""
    if number % 3 == 0:
        return None
    hashes = [key_hash(key) for key in KEYS]
    return tuple(b"".join(hashes[: (number + ordinal) % 3]) for ordinal in range(len(CONTENTS[number])))


BATCH_LISTS = st.lists(batches(), min_size=1, max_size=3)


class AgainstTheModel(RuleBasedStateMachine):
    level = 2

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="keelmq-model-"))
        self.replica = Replica(self.directory / "index", flush_entries=7)
        self.replica.raise_level(self.level)
        self.model = Model()
        self.ends: dict[tuple[str, int], int] = {}
        for topic in ("orders", "points"):
            self.put_topic(topic, 2)

    def pass_time(self, milliseconds: int = 1) -> None:
        self.replica.now_ms += milliseconds
        self.model.clock_ms = self.replica.now_ms

    def run(self, proposal: Proposal | Command, expected: str | None) -> None:
        if expected is not None:
            assert self.replica.refusal(proposal).code == expected
        else:
            result = self.replica.one(proposal)
            assert not isinstance(result, Refused), result

    @rule(topic=TOPICS, queues=st.integers(1, 3))
    def put_topic(self, topic: str, queues: int) -> None:
        self.pass_time()
        self.run(PutTopic(topic, queues), self.model.put_topic(topic, queues))

    @rule(topic=TOPICS, sure=st.integers(0, 3))
    def delete_topic(self, topic: str, sure: int) -> None:
        self.pass_time()
        if sure == 0:
            self.run(DeleteTopic(topic), self.model.delete_topic(topic))

    @rule(requested=BATCH_LISTS)
    def produce(self, requested: list[BatchHeader]) -> None:
        self.pass_time()
        self.run(produce(*requested), self.model.produce(requested))

    @rule(transaction_id=TRANSACTION_IDS, requested=BATCH_LISTS)
    def prepare(self, transaction_id: str, requested: list[BatchHeader]) -> None:
        self.pass_time()
        self.run(prepare(transaction_id, *requested), self.model.prepare(transaction_id, requested))

    @rule(transaction_id=TRANSACTION_IDS)
    def commit(self, transaction_id: str) -> None:
        self.pass_time()
        self.run(Decide(transaction_id, "commit"), self.model.decide(transaction_id, "committed"))

    @rule(transaction_id=TRANSACTION_IDS)
    def roll_back(self, transaction_id: str) -> None:
        self.pass_time()
        self.run(Decide(transaction_id, "rollback"), self.model.decide(transaction_id, "rolled_back"))

    @rule(transaction_id=TRANSACTION_IDS)
    def discard(self, transaction_id: str) -> None:
        self.pass_time()
        self.model.discard(transaction_id)
        self.run(Discard((transaction_id,)), None)

    @rule(transaction_id=TRANSACTION_IDS)
    def resume(self, transaction_id: str) -> None:
        self.pass_time()
        self.run(ResumeTransaction(transaction_id, "ann", "why", 30_000), self.model.resume(transaction_id))

    @rule(transaction_id=TRANSACTION_IDS, commits=st.booleans())
    def force(self, transaction_id: str, commits: bool) -> None:
        self.pass_time()
        decision: Decision = "commit" if commits else "rollback"
        command = Decide(transaction_id, decision, "operator", force=True, operator="ann", reason="why")
        self.run(command, self.model.decide(transaction_id, "committed" if commits else "rolled_back", force=True))

    @rule(rejects=st.sampled_from([False, False, True]))
    def switch_transactions(self, rejects: bool) -> None:
        self.pass_time()
        self.model.rejects_transactions = rejects
        self.run(PutSettings(rejects), None)

    @rule(topic=TOPICS, queue=QUEUE_NUMBERS, offset=st.integers(0, 6))
    def commit_offset(self, topic: str, queue: int, offset: int) -> None:
        self.pass_time()
        command = CommitOffsets("g", None, None, (QueueOffset(topic, queue, offset),))
        self.run(command, self.model.commit_offset(topic, queue, offset))

    @rule(topic=TOPICS)
    def join_and_leave(self, topic: str) -> None:
        self.pass_time()
        expected = None if topic in self.model.topics else "topic_not_found"
        self.run(JoinGroup("other", "m", "c", (topic,), 1_000), expected)
        if expected is None:
            self.model.has_group = True
            self.run(LeaveGroup("other", "m"), None)

    @precondition(lambda self: self.level >= FEATURES.level_of("PauseGroup"))
    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.pass_time()
        self.run(PauseGroup("other", paused, "ann", "why"), self.model.pause(paused=paused))

    @rule(later_ms=st.integers(0, 10), limit=st.integers(1, 4))
    def fire(self, later_ms: int, limit: int) -> None:
        self.pass_time(later_ms)
        self.model.fire(limit)
        self.run(FireTimers(limit), None)

    @rule(topic=TOPICS, message_id=MESSAGE_IDS)
    def cancel(self, topic: str, message_id: str) -> None:
        self.pass_time()
        self.run(CancelScheduled(topic, message_id), self.model.cancel(topic, message_id))

    @rule()
    def the_dedupe_window_passes(self) -> None:
        self.pass_time(DEDUPE_WINDOW_MS)
        window = self.replica.machine._dedupe.counters
        while window.first_sequence != window.next_sequence:  # every entry forgets two expiry records at most
            self.replica.do()
        self.model.forget_ids()

    @rule()
    def restart(self) -> None:
        self.replica.reopen()

    @invariant()
    def queues_hold_what_was_promised(self) -> None:
        sent = self.sent_batches()
        for topic, queues in self.model.topics.items():
            for queue, expected in enumerate(queues):
                found: list[str] = []
                for row in self.replica.machine.rows(topic, queue, 0, 1_000, 1_000_000):
                    assert row.base_offset == len(found)
                    batch = sent[row.position, row.block_offset]
                    delivered = [number for number in range(batch.count) if number not in row.skip]
                    assert len(delivered) == row.count
                    found += [identity(batch, number) for number in delivered]
                assert found == expected
                assert self.replica.machine.max_offset(topic, queue) == len(expected)

    @invariant()
    def the_queues_that_became_longer_are_told(self) -> None:
        machine, ends = self.replica.machine, self.ends
        self.ends = {
            (topic.topic, queue.queue): queue.max_offset
            for topic in machine.topics(system=True)
            for queue in machine.queue_ranges(topic.topic)
        }
        grown = {queue for queue, end in self.ends.items() if end > ends.get(queue, 0)}
        assert {queue for queue in machine.take_grown_queues() if queue in self.ends} == grown

    @invariant()
    def messages_are_found_by_id_and_key(self) -> None:
        machine, sent = self.replica.machine, self.sent_batches()
        for topic, queues in self.model.topics.items():
            by_id: dict[str, set[tuple[int, int]]] = {}
            by_key: dict[str, list[KeyedMessage]] = {key: [] for key in KEYS}
            for queue in range(len(queues)):
                for row in machine.rows(topic, queue, 0, 1_000, 1_000_000):
                    batch = sent[row.position, row.block_offset]
                    for offset, ordinal in enumerate(row.ordinals(), row.base_offset):
                        by_id.setdefault(message_id_of(batch, ordinal), set()).add((queue, offset))
                        for key in KEYS:
                            if batch.keys is not None and key_hash(key) in batch.keys[ordinal]:
                                by_key[key].append(KeyedMessage(row.stored_at_ms, queue, offset))
            for message_id, places in by_id.items():
                assert {(each.queue, each.offset) for each in self.found(topic, message_id, "visible")} == places
            for key, keyed in by_key.items():
                begin = KeyedMessage(0, 0, 0)
                assert machine.keyed_messages(topic, key, begin=begin, end_ms=10**15, limit=10**6) == sorted(keyed)
            for message_id in self.model.scheduled(topic):
                assert self.found(topic, message_id, "scheduled")

    @invariant()
    def a_trace_names_the_first_commit_beyond_the_message(self) -> None:
        for topic, queues in self.model.topics.items():
            for queue, identities in enumerate(queues):
                commits = self.model.commits.get((topic, queue), [])
                for offset, each in enumerate(identities):
                    message_id = each.rpartition("/")[0]
                    (place,) = (
                        found
                        for found in self.found(topic, message_id, "visible")
                        if (found.queue, found.offset) == (queue, offset)
                    )
                    passed = [
                        event.committed_offset
                        for event in trace_of(self.replica.machine, place)
                        if event.event == "consumed"
                    ]
                    assert passed == [committed for committed in commits if committed > offset][:1]

    @invariant()
    def who_follows_the_events_knows_the_queues_and_the_decisions(self) -> None:
        machine, sent = self.replica.machine, self.sent_batches()
        queues: dict[tuple[str | None, int | None], list[str]] = {}
        states: dict[str | None, str] = {}
        for _, outcome in machine.outcomes(1, machine.applied_index, 10**6):
            for event in outcome.events:
                states[event.transaction_id] = STATE_AFTER.get(event.type, "prepared")
                if event.type == "PUBLISH":
                    assert event.messages is not None
                    batch = sent[event.messages.position, event.messages.block_offset]
                    told = queues.setdefault((event.topic, event.queue), [])
                    del told[event.offset :]  # the topic was deleted and created anew
                    assert len(told) == event.offset
                    told += [identity(batch, n) for n in range(batch.count) if n not in event.messages.skip]
        for topic, by_queue in self.model.topics.items():
            for queue, expected in enumerate(by_queue):
                assert queues.get((topic, queue), [])[: len(expected)] == expected
        for transaction_id, transaction in self.model.transactions.items():
            assert states.get(transaction_id, "prepared") == transaction.state

    @invariant()
    def what_waits_is_what_was_scheduled(self) -> None:
        machine = self.replica.machine
        for topic in self.model.topics:
            page = machine.scheduled(topic, limit=1_000)
            assert [message.message_id for message in page.messages] == self.model.scheduled(topic)
        due_ms = [timer.due_ms for timer in self.model.timers]
        assert machine.next_due_ms() == min(due_ms, default=None)
        assert machine.timers_pending == len(due_ms)
        assert machine.messages_scheduled == sum(len(timer.ordinals) for timer in self.model.timers)

    @invariant()
    def the_op_topic_shows_the_decisions(self) -> None:
        found: list[tuple[str | None, str]] = []
        for row in self.replica.machine.rows(OP_HALF_TOPIC, 0, 0, 1_000, 1_000_000):
            assert row.inline is not None
            found.append((row.transaction_id, msgspec.msgpack.decode(row.inline)[0][0].decode()))
        assert found == self.model.decisions

    @invariant()
    def transactions_and_offsets_agree(self) -> None:
        machine = self.replica.machine
        states = {found.transaction_id: found.state for found in machine.transactions().transactions}
        assert states == {key: value.state for key, value in self.model.transactions.items()}
        due = [check.transaction_id for check in machine.due_checks(10**15, 100)]
        assert sorted(due) == sorted(key for key, state in states.items() if state == "prepared")
        committed = {(item.topic, item.queue): item.offset for item in machine.offsets("g") or []}
        assert committed == self.model.committed

    @invariant()
    def a_group_is_paused_since_it_was_paused_first(self) -> None:
        pause = self.replica.machine.group_pause("other")
        assert (None if pause is None else pause.since_ms) == self.model.paused_since_ms

    @invariant()
    def what_points_at_the_log_is_counted(self) -> None:
        assert_references_hold(self.replica.index, LOG_RANGE_BYTES)

    def found(self, topic: str, message_id: str, state: str) -> list[MessagePlace]:
        """Return the places found by an id whose message has that id, according to the batch that was sent."""
        sent = self.sent_batches()
        return [
            place
            for place in self.replica.machine.message_places(topic, message_id, 1_000)
            if place.state == state
            and (block := place.block) is not None
            and message_id_of(sent[block.position, block.block_offset], place.ordinal) == message_id
        ]

    def sent_batches(self) -> dict[tuple[int, int], BatchHeader]:
        """Return every batch that was ever sent, by position and block offset."""
        sent: dict[tuple[int, int], BatchHeader] = {}
        for entry in self.replica.log.entries:
            if entry.kind == KIND_ENTRY:
                decoded = decode_entry(entry.payload)
                for command, offsets in zip(decoded.commands, decoded.block_offsets, strict=True):
                    for number, offset in enumerate(offsets):
                        sent[entry.position, offset] = command.batches[number]  # type: ignore[union-attr]
        return sent

    def teardown(self) -> None:
        try:
            portions = [1, 5, 2, 40, 3]
            index = Index.open(str(self.directory / "again"))
            machine = StateMachine(index, dedupe_min_entries=0)
            entries = self.replica.log.entries
            while machine.applied_index < len(entries):
                size = portions[machine.applied_index % len(portions)]
                machine.apply(entries[machine.applied_index : machine.applied_index + size])
            assert machine.state_hash == self.replica.machine.state_hash
            assert dump(index) == self.replica.dump()
            index.close()
            self.replica.close()
        finally:
            shutil.rmtree(self.directory)


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=40, stateful_step_count=40)


class AtLevelOne(AgainstTheModel):
    level = 1


TestAtLevelOne = AtLevelOne.TestCase
TestAtLevelOne.settings = settings(max_examples=20, stateful_step_count=40)


def test_a_different_history_gives_a_different_hash(tmp_path: Path) -> None:
    hashes: set[str] = set()
    commands: list[Command] = [PutTopic("a"), PutTopic("b"), DeleteTopic("a"), PutTopic("a", 5)]
    for number, command in enumerate(commands):
        replica = Replica(tmp_path / str(number))
        replica.one(command)
        hashes.add(replica.machine.state_hash)
        replica.close()
    assert len(hashes) == 4


def test_a_different_result_gives_a_different_hash(tmp_path: Path) -> None:
    """The same entry is applied to states that differ, as on a replica with a defect."""
    entry_hashes: set[str] = set()
    for number in range(2):
        replica = Replica(tmp_path / str(number))
        replica.one(PutTopic("orders"))
        if number:
            replica.machine._topics.require("orders").ends[0] = 5
        replica.one(produce(BatchHeader("orders", 0, 1, "b", None, 0, len(block_of(1)))))
        entry_hashes.add(replica.machine.state_hash)
        replica.close()
    assert len(entry_hashes) == 2
