"""Tests the checkers: each broken promise, fed to them as a history, must be named."""

from pathlib import Path

import pytest

from keelmq.blocks.batch import encode_messages
from store.commands.entry import Proposal, encode_entry
from store.commands.messages import BatchHeader, Produce
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.record import KIND_ENTRY
from store.log.segment import SEGMENT_BYTES_MIN
from tests.chaos.checkers.audit import judge_audit
from tests.chaos.checkers.dead_letters import judge_returns
from tests.chaos.checkers.delivered_once import DeliveredOnce
from tests.chaos.checkers.durable_log import DurableLog, LogContent, compare_logs
from tests.chaos.checkers.node_logs import leaders_in, traces_in
from tests.chaos.checkers.pops import judge_pops
from tests.chaos.checkers.transactions import committed_by, judge_transactions, unresolved
from tests.chaos.ledger import Book, Place, WorkerLedger
from tests.chaos.message import body_of, number_in, number_of
from tests.chaos.progress import GroupProgress
from tests.chaos.reads import QueueReads
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.operators import Step
from tests.chaos.workloads.returns import is_doomed
from tests.chaos.workloads.transactions import Database, Decided, Told

QUEUE = ("t", 0)
NOW_MS = 5_000


@pytest.fixture
def book() -> Book:
    return Book(["t"])


@pytest.fixture
def three(book: Book) -> WorkerLedger:
    """Return a worker with three messages, acknowledged at the offsets 0 to 2 by entry 2."""
    ledger = book.worker("w", keys=2)
    ledger.acked(ledger.begin(3), 3, Place("t", 0, 0), 2)
    return ledger


def judge(book: Book, violations: Violations, numbers: list[int], first: int = 0) -> dict[Kind, int]:
    """Return the violations of a node whose queue holds these messages."""
    checker = DeliveredOnce("node 1", book, {}, violations)
    for offset, number in enumerate(numbers, first):
        checker.message(QUEUE, offset, body_of(number), NOW_MS)
    checker.finish()
    return dict(violations.counts)


class TestBodies:
    @pytest.mark.parametrize("number", [0, 1, number_of(3, 77), number_of(65_535, (1 << 40) - 1)])
    def test_a_body_says_which_message_it_is(self, number: int) -> None:
        assert number_in(body_of(number)) == number

    def test_every_damaged_byte_is_seen(self) -> None:
        body = body_of(number_of(1, 2))
        for at in range(len(body)):
            damaged = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            assert number_in(damaged) != number_of(1, 2)
        assert number_in(body[:-1]) is None
        assert number_in(b"") is None


class TestQueues:
    def test_a_faithful_history_is_innocent(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        assert judge(book, violations, three.numbers(0, 3)) == {}

    def test_lost(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        assert judge(book, violations, three.numbers(0, 2)) == {Kind.LOST: 1}

    def test_phantom_of_a_worker_that_never_sent_it(
        self, book: Book, three: WorkerLedger, violations: Violations
    ) -> None:
        assert judge(book, violations, [*three.numbers(0, 3), number_of(0, 3)]) == {Kind.PHANTOM: 1}

    def test_phantom_of_nobody(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        assert judge(book, violations, [*three.numbers(0, 3), number_of(9, 0)]) == {Kind.PHANTOM: 1}

    def test_duplicated(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        numbers = three.numbers(0, 3)
        assert judge(book, violations, [*numbers, numbers[1]])[Kind.DUPLICATED] == 1

    def test_an_unknown_message_may_be_there_once_and_not_twice(self, book: Book, violations: Violations) -> None:
        ledger = book.worker("w")
        ledger.begin(2)
        assert judge(book, violations, ledger.numbers(0, 1)) == {}
        assert judge(book, violations, ledger.numbers(1, 1) * 2) == {Kind.DUPLICATED: 1}

    def test_refused_for_certain_and_there(self, book: Book, violations: Violations) -> None:
        ledger = book.worker("w")
        ledger.failed(ledger.begin(), 1)
        assert judge(book, violations, ledger.numbers(0, 1)) == {Kind.FAILED_BUT_STORED: 1}

    def test_elsewhere_than_acknowledged(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        one, two, three_ = three.numbers(0, 3)
        assert judge(book, violations, [two, one, three_]) == {Kind.MOVED: 2}

    def test_offsets_with_a_gap(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        assert Kind.GAP in judge(book, violations, three.numbers(0, 3), first=1)

    def test_damaged_body(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        checker = DeliveredOnce("node 1", book, {}, violations)
        checker.message(QUEUE, 0, b"something else", NOW_MS)
        assert violations.counts == {Kind.DAMAGED: 1}

    def test_delivered_before_its_time(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        three.due_ms.update({0: NOW_MS, 1: NOW_MS + 1})
        assert judge(book, violations, three.numbers(0, 3)) == {Kind.EARLY: 1}

    def test_reordered_within_a_key(self, book: Book, violations: Violations) -> None:
        ledger = book.worker("w", keys=2)
        first = ledger.begin(3)  # 0 and 2 have the same key
        for sequence, offset in ((0, 2), (1, 1), (2, 0)):
            ledger.acked(first + sequence, 1, Place("t", 0, offset), 2)
        zero, one, two = ledger.numbers(0, 3)
        assert judge(book, violations, [two, one, zero]) == {Kind.REORDERED: 1}


class TestReads:
    def test_two_values_at_one_offset(self, book: Book, three: WorkerLedger, violations: Violations) -> None:
        reads = QueueReads(book, violations)
        one, two, _ = three.numbers(0, 3)
        assert reads.read(QUEUE, 5, body_of(one), "a") == one
        assert reads.read(QUEUE, 5, body_of(one), "b") == one
        assert violations.counts == {}
        reads.read(QUEUE, 5, body_of(two), "b")
        assert violations.counts == {Kind.CONFLICTING_READ: 1}

    def test_half_messages_must_not_be_read(self, book: Book, violations: Violations) -> None:
        ledger = book.worker("w", transactional=True)
        ledger.begin(3)
        database = Database(ledger.worker, "run", abandoned=False)
        transaction = database.begin()
        reads = QueueReads(book, violations)
        reads.require(ledger.worker, database.commits)
        reads.read(QUEUE, 0, body_of(number_of(ledger.worker, 0)), "a")
        assert violations.counts == {Kind.TRANSACTION: 1}
        database.decided[transaction] = Decided.COMMIT
        reads.read(QUEUE, 0, body_of(number_of(ledger.worker, 0)), "a")
        assert violations.counts == {Kind.TRANSACTION: 1}

    def test_a_phantom_is_seen_at_once(self, book: Book, violations: Violations) -> None:
        QueueReads(book, violations).read(QUEUE, 0, body_of(number_of(4, 0)), "a")
        assert violations.counts == {Kind.PHANTOM: 1}


class TestTransactions:
    @pytest.mark.parametrize(
        ("decided", "told", "state", "kind"),
        [
            (Decided.COMMIT, Told.COMMITTED, "committed", None),
            (Decided.ROLLBACK, Told.ROLLED_BACK, "rolled_back", None),
            (Decided.NOTHING, Told.NOTHING, None, None),
            (Decided.COMMIT, Told.COMMITTED, "rolled_back", Kind.TRANSACTION),
            (Decided.COMMIT, Told.PREPARED, "discarded", Kind.TRANSACTION),
            (Decided.COMMIT, Told.COMMITTED, "prepared", Kind.TRANSACTION),
            (Decided.COMMIT, Told.PREPARED, "prepared", Kind.UNRESOLVED),
            (Decided.COMMIT, Told.COMMITTED, None, Kind.LOST),
            (Decided.NOTHING, Told.PREPARED, None, Kind.LOST),
            (Decided.ROLLBACK, Told.PREPARED, "committed", Kind.TRANSACTION),
            (Decided.ROLLBACK, Told.ROLLED_BACK, "committed", Kind.TRANSACTION),
            (Decided.NOTHING, Told.PREPARED, "committed", Kind.TRANSACTION),
            (Decided.NOTHING, Told.REFUSED, "prepared", Kind.FAILED_BUT_STORED),
        ],
    )
    def test_verdicts(
        self, decided: Decided, told: Told, state: str | None, kind: Kind | None, violations: Violations
    ) -> None:
        database = Database(1, "run", abandoned=False)
        number = database.begin()
        database.decided[number], database.told[number] = decided, told
        states = {} if state is None else {database.id_of(number): state}
        judge_transactions(database, states, violations)
        assert violations.counts == ({} if kind is None else {kind: 1})
        assert unresolved(database, states) == (state == "prepared")

    def test_what_operators_did_is_recorded_and_nothing_else(self, violations: Violations) -> None:
        done = Step("t", "committed", "ann", "case 0", acknowledged=True)
        forced = {"event": "committed", "operator": "ann", "reason": "case 0", "forced": True}
        judge_audit([done], {"t": [{"event": "prepared"}, forced]}, violations)
        judge_audit([Step("t", "resumed", "ann", "case 1")], {"t": [{"event": "prepared"}]}, violations)
        assert not violations
        judge_audit([done], {"t": [{"event": "prepared"}]}, violations)  # lost
        judge_audit([done], {"t": [{**forced, "forced": False}]}, violations)
        judge_audit([done], {"t": [forced, {**forced, "event": "resumed"}]}, violations)  # made up
        assert violations.counts == {Kind.TRANSACTION: 3}

    def test_a_committed_transaction_is_delivered_whole_and_once(self, book: Book, violations: Violations) -> None:
        ledger = book.worker("w", transactional=True)
        ledger.begin(6)
        database = Database(ledger.worker, "run", abandoned=False)
        committed, rolled_back = database.begin(), database.begin()
        states = {database.id_of(committed): "committed", database.id_of(rolled_back): "rolled_back"}
        rules = {ledger.worker: committed_by(database, states)}
        checker = DeliveredOnce("node 1", book, rules, violations)
        # The first one's third message is missing and its second is there twice; the second one's first is delivered.
        for offset, sequence in enumerate((0, 1, 1, 3)):
            checker.message(QUEUE, offset, body_of(number_of(ledger.worker, sequence)), NOW_MS)
        checker.finish()
        assert violations.counts == {Kind.LOST: 1, Kind.DUPLICATED: 1, Kind.TRANSACTION: 1}


class TestGroups:
    def test_a_commit_beyond_what_was_processed(self, violations: Violations) -> None:
        progress = GroupProgress("g", violations)
        for offset in (0, 1, 3):
            progress.finished(QUEUE, offset)
        progress.committed(QUEUE, 2)
        assert violations.counts == {}
        progress.committed(QUEUE, 4)
        assert violations.counts == {Kind.GROUP_SKIP: 1}

    def test_draining_needs_everything_processed_and_committed(self, violations: Violations) -> None:
        progress = GroupProgress("g", violations)
        assert progress.drained(QUEUE, 0)
        progress.finished(QUEUE, 1)
        progress.finished(QUEUE, 0)
        assert not progress.drained(QUEUE, 2)
        progress.committed(QUEUE, 2)
        assert progress.drained(QUEUE, 2)
        assert not progress.drained(QUEUE, 3)


def write_log(directory: Path, sent: list[list[int]], *, terms: list[int] | None = None, drop_before: int = 0) -> None:
    """Write a node's log with one entry per list of messages, from entry 2 on; entries before `drop_before` are
    removed.
    """
    segment_bytes = SEGMENT_BYTES_MIN if drop_before else 1 << 16
    log = CommitLog.open(PosixDisk(), str(directory), segment_bytes=segment_bytes, cache_bytes=1 << 16)
    for position, numbers in enumerate(sent):
        block = encode_messages([body_of(number) for number in numbers])
        header = BatchHeader("t", 0, block.count, f"b{position}", None, block.crc32c, len(block.data))
        payload = encode_entry(1, [Proposal(Produce((header,)), (block.data,))])
        log.append(log.last_index + 1, terms[position] if terms else 1, KIND_ENTRY, payload)
    log.sync()
    if drop_before:
        log.drop_before(drop_before)
    log.close()


class TestLogs:
    def check(self, directory: Path, last_index: int, book: Book, violations: Violations) -> LogContent:
        return DurableLog(directory.name, directory, last_index, book, violations).check()

    def test_a_faithful_log_is_innocent(
        self, tmp_path: Path, book: Book, three: WorkerLedger, violations: Violations
    ) -> None:
        write_log(tmp_path / "log", [three.numbers(0, 3)])
        assert self.check(tmp_path / "log", 2, book, violations).last_index == 2
        assert violations.counts == {}

    def test_what_nothing_needs_may_be_removed_from_the_front(
        self, tmp_path: Path, book: Book, violations: Violations
    ) -> None:
        """Reproduces seed 119318: the first segment held topics and settings alone."""
        ledger = book.worker("w", keys=2)
        ledger.acked(ledger.begin(2) + 1, 1, Place("t", 0, 0), 4)
        needless, needed = ledger.numbers(0, 1) * 300, ledger.numbers(1, 1) * 300  # a segment each
        sent = [needless, needless, needed, needless]
        contents = []
        for name, before in (("whole", 0), ("short", 3), ("shorter", 4)):
            write_log(tmp_path / name, sent, drop_before=before)
            contents.append(self.check(tmp_path / name, 5, book, violations))
        assert [content.base_index for content in contents] == [0, 2, 3]
        compare_logs(contents, violations)
        assert violations.counts == {}
        write_log(tmp_path / "other", sent, terms=[1, 1, 1, 2], drop_before=4)
        compare_logs([contents[0], self.check(tmp_path / "other", 5, book, violations)], violations)
        assert violations.counts == {Kind.LOG_DIFFERS: 1}
        write_log(tmp_path / "lost", sent, drop_before=5)
        self.check(tmp_path / "lost", 5, book, violations)
        assert violations.counts[Kind.LOST] == 1

    def test_lost_phantom_and_moved(
        self, tmp_path: Path, book: Book, three: WorkerLedger, violations: Violations
    ) -> None:
        write_log(tmp_path / "log", [three.numbers(0, 1), [*three.numbers(1, 1), number_of(7, 7)]])
        self.check(tmp_path / "log", 3, book, violations)
        assert violations.counts == {Kind.LOST: 1, Kind.MOVED: 1, Kind.PHANTOM: 1}

    def test_a_log_that_ends_too_early(
        self, tmp_path: Path, book: Book, three: WorkerLedger, violations: Violations
    ) -> None:
        write_log(tmp_path / "log", [three.numbers(0, 3)])
        self.check(tmp_path / "log", 5, book, violations)
        assert violations.counts == {Kind.LOST: 1}

    def test_a_flipped_bit(self, tmp_path: Path, book: Book, three: WorkerLedger, violations: Violations) -> None:
        write_log(tmp_path / "log", [three.numbers(0, 3), three.numbers(0, 1), three.numbers(0, 1)])
        segment = next((tmp_path / "log").glob("*.log"))
        data = bytearray(segment.read_bytes())
        data[data.index(body_of(three.numbers(0, 1)[0]))] ^= 1
        segment.write_bytes(data)
        self.check(tmp_path / "log", 4, book, violations)
        assert violations.counts[Kind.LOG_DAMAGED]

    def test_logs_that_differ(self, tmp_path: Path, book: Book, three: WorkerLedger, violations: Violations) -> None:
        sent = [three.numbers(0, 3), three.numbers(0, 1)]
        write_log(tmp_path / "a", sent)
        write_log(tmp_path / "b", sent)
        write_log(tmp_path / "c", sent, terms=[1, 2])
        contents = [self.check(tmp_path / name, 3, book, violations) for name in "abc"]
        compare_logs(contents[:2], violations)
        assert violations.counts == {}
        compare_logs(contents, violations)
        assert violations.counts == {Kind.LOG_DIFFERS: 1}
        assert "from entry 3 on" in violations.kept[0].detail


class TestNodeLogs:
    def test_two_leaders_of_a_term(self, tmp_path: Path, violations: Violations) -> None:
        leaders: dict[int, int] = {}
        for node_id in (1, 2):
            path = tmp_path / f"node{node_id}.log"
            path.write_text("INFO raft.election.election: candidate -> leader in term 4\n")
            leaders_in(node_id, path, leaders, violations)
        assert violations.counts == {Kind.TWO_LEADERS: 1}

    def test_traces_that_nothing_explains(self, tmp_path: Path, violations: Violations) -> None:
        path = tmp_path / "node1.log"
        path.write_text("Traceback (most recent call last):\n  OSError: [Errno 28] No space left on device\n")
        traces_in(1, path, ("No space left",), violations)
        assert violations.counts == {}
        traces_in(1, path, (), violations)
        assert violations.counts == {Kind.NODE_ERROR: 1}


class TestReturns:
    """Message 10 can never be processed; 11 and 13 can."""

    def test_processed_or_a_dead_letter(self, violations: Violations) -> None:
        assert [number for number in (10, 11, 13) if is_doomed(number)] == [10]
        judge_returns({10, 11, 13}, {11: 1, 13: 2}, [10], violations)
        assert not violations

    @pytest.mark.parametrize(
        ("processed", "dead"),
        [
            ({11: 1}, []),  # 10 vanished
            ({}, [10]),  # 11 vanished
            ({11: 1}, [10, 10]),
            ({}, [10, 11]),
            ({11: 1}, [10, 20]),  # 20 is in no queue
        ],
    )
    def test_anything_else_is_named(self, violations: Violations, processed: dict[int, int], dead: list[int]) -> None:
        judge_returns({10, 11}, processed, dead, violations)
        assert dict(violations.counts) == {Kind.RETURNED: 1}


def test_everything_that_is_popped_is_acknowledged_in_the_end(violations: Violations) -> None:
    judge_pops({1, 2, 3}, {1, 2}, {3}, violations)
    assert not violations
    judge_pops({1, 2, 3}, {1, 2}, (), violations)
    judge_pops({1}, {1, 4}, (), violations)
    assert dict(violations.counts) == {Kind.RETURNED: 2}


def test_what_was_taken_back_is_in_no_queue(book: Book, violations: Violations) -> None:
    ledger = book.worker("delayed")
    ledger.taken_back(ledger.begin())
    assert judge(book, violations, []) == {}
    assert judge(book, violations, [number_of(ledger.worker, 0)]) == {Kind.TAKEN_BACK: 1}


def test_reads_know_the_messages_of_a_topic(book: Book, three: WorkerLedger, violations: Violations) -> None:
    reads = QueueReads(book, violations)
    for queue, sequence in ((0, 0), (1, 2)):
        reads.read(("t", queue), 3, body_of(number_of(three.worker, sequence)), "a test")
    assert reads.numbers("t") == {number_of(three.worker, 0), number_of(three.worker, 2)}
    assert reads.numbers("other") == set()
