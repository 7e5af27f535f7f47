"""The commit log against a plain list, on a disk that loses what was not synced.

What must hold after any history: the log is a prefix of what was appended (and not truncated), at least as long as what
`synced_index` ever promised.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store.log.base import LogBase, StoredBase, read_base, write_base
from store.log.commit_log import CommitLog
from store.log.errors import DiskFull, LogFailed, LogTruncated
from store.log.record import HEADER_BYTES, KIND_ENTRY, KIND_NOOP
from store.log.recovery import RecoveryCase
from tests.simdisk import PowerLost, SimDisk

DIRECTORY = "/data/log"
SEGMENT_BYTES = 4096
CACHE_BYTES = 6000

PAYLOADS = st.integers(0, 1200) | st.sampled_from(
    [0, 1, SEGMENT_BYTES - HEADER_BYTES, SEGMENT_BYTES, 3 * SEGMENT_BYTES]
)


class Expected(NamedTuple):
    term: int
    kind: int
    payload: bytes


class CommitLogMachine(RuleBasedStateMachine):
    """A commit log and its model: `model[i]` is the record with index `i + 1`. Records up to `base_index` are gone from
    the log.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = SimDisk(self.random)
        self.model = [Expected(0, KIND_NOOP, b"")]
        self.term = 1
        self.applied = self.installed = 0
        self.base_index = 0
        self.log = self.opened()
        assert self.log.recovery.case is RecoveryCase.NEW_LOG

    def opened(self) -> CommitLog:
        return CommitLog.open(
            self.disk, DIRECTORY, segment_bytes=SEGMENT_BYTES, cache_bytes=CACHE_BYTES, applied_index=self.applied
        )

    # Writing

    @rule(size=PAYLOADS, count=st.integers(1, 5))
    def append(self, size: int, count: int) -> None:
        for _ in range(count):
            self.append_one(KIND_ENTRY, self.random.randbytes(size))

    @rule()
    def append_noop_of_a_new_term(self) -> None:
        self.term += 1
        self.append_one(KIND_NOOP, b"")

    def append_one(self, kind: int, payload: bytes) -> None:
        end = self.log.end_position
        assert self.log.append(len(self.model) + 1, self.term, kind, payload) == end
        self.model.append(Expected(self.term, kind, payload))

    @rule()
    def sync(self) -> None:
        assert self.log.sync() == len(self.model)

    @rule(back=st.integers(0, 25))
    def truncate(self, back: int) -> None:
        self.truncate_from(self.index_from_end(back))

    def index_from_end(self, back: int) -> int:
        """Return an index that the log may be truncated from: the entry there is not applied."""
        return max(len(self.model) + 1 - back, min(self.applied, len(self.model)) + 1, self.base_index + 1, 2)

    def truncate_from(self, index: int) -> None:
        synced = self.log.synced_index
        self.log.truncate_from(index)
        if index <= len(self.model):
            self.term += 1  # whoever makes a node truncate leads a newer term
            assert self.log.synced_index == index - 1
        else:
            assert self.log.synced_index == synced
        del self.model[index - 1 :]

    @rule(back=st.integers(0, 10), size=PAYLOADS, cut=st.booleans())
    def sync_while_the_loop_goes_on(self, back: int, size: int, cut: bool) -> None:
        """Truncate and append on the loop while the sync thread is inside `fdatasync`."""

        def meanwhile(operation: str, path: str) -> None:
            if operation == "fdatasync" and not path.endswith("synced"):
                self.disk.on_operation = None
                if cut:
                    self.truncate(back)
                self.append(size, 2)

        before = len(self.model)
        self.disk.on_operation = meanwhile
        self.log.sync()
        self.disk.on_operation = None
        if not cut:
            assert self.log.synced_index >= before

    @rule(size=st.integers(0, 1200))
    def append_on_a_full_disk(self, size: int) -> None:
        """Append records until the disk refuses; then it has space again."""
        self.disk.capacity_bytes = 0
        refused = False
        while not refused:
            before = (self.log.last_index, self.log.end_position, self.log.synced_index)
            try:
                self.append_one(KIND_ENTRY, self.random.randbytes(size))
            except DiskFull:
                refused = True
                assert (self.log.last_index, self.log.end_position, self.log.synced_index) == before
        self.append_noop_of_a_new_term()  # a reserve behind each segment is kept for these
        self.sync()
        self.disk.capacity_bytes = None
        self.append_one(KIND_ENTRY, self.random.randbytes(size))

    # Removing the front

    @rule(back=st.integers(0, 10))
    def drop(self, back: int) -> None:
        self.drop_before(self.droppable(back))

    def droppable(self, back: int) -> int:
        return max(min(self.applied, self.log.synced_index) + 1 - back, 1)

    def drop_before(self, index: int) -> None:
        base = self.log.drop_before(index)
        assert base == self.log.base == self.base_of(base.index)
        assert self.base_index <= base.index < max(index, self.base_index + 1)
        self.base_index = base.index
        starts = [name for name in self.disk.list(DIRECTORY) if name.endswith(".log")]
        assert int(starts[0].removesuffix(".log")) == base.position

    def base_of(self, index: int) -> LogBase:
        position = sum(HEADER_BYTES + len(e.payload) for e in self.model[:index])
        return LogBase(position, index, self.model[index - 1].term if index else 0)

    @rule(step=st.integers(0, 25), back=st.integers(0, 10))
    def lose_power_while_dropping(self, step: int, back: int) -> None:
        """Lose power while the front is dropped. The old base is found afterwards, or the new one."""
        index, before = self.droppable(back), self.base_index
        self.lose_power_during(step, self.log.synced_index, lambda: self.drop_before(index))
        assert before <= self.log.base.index < max(index, before + 1)
        self.base_index = self.log.base.index

    @rule(ahead=st.integers(-5, 5), step=st.none() | st.integers(0, 25))
    def restart_behind_another_base(self, ahead: int, step: int | None) -> None:
        """Take the log of another node, up to a base, for ours; the own records go."""
        before = (list(self.model), self.applied, self.base_index, self.installed, self.log.synced_index)
        index = max(len(self.model) + ahead, self.base_index, self.applied, 1)
        del self.model[index:]
        while len(self.model) < index:
            self.term += 1
            self.model.append(Expected(self.term, KIND_ENTRY, self.random.randbytes(self.random.randrange(900))))
        base = self.base_of(index)
        self.base_index, self.applied, self.installed = index, index + 3, index + 3
        if step is None:
            self.restart_at(base)
            return
        self.disk.lose_power_at(self.disk.operations + step)
        try:
            self.restart_at(base)
        except PowerLost:
            pass
        else:
            self.disk.on_operation = None
            self.disk.lose_power()
        # Whoever restarts a log makes the state that goes with it last, so it still has the one or the other.
        self.log = (
            CommitLog.open(
                self.disk, DIRECTORY, segment_bytes=SEGMENT_BYTES, cache_bytes=CACHE_BYTES, applied_index=before[2]
            )
            if not self.has_restarted(base)
            else self.opened()
        )
        if self.log.base != base:
            self.model, self.applied, self.base_index, self.installed, synced = before
            assert synced <= self.log.last_index <= len(self.model)
            del self.model[self.log.last_index :]
            self.term += 1
        else:
            assert self.log.last_index == index

    def restart_at(self, base: LogBase) -> None:
        """Restart the log at the base as the installation of a snapshot does."""
        self.log.close()
        write_base(self.disk, DIRECTORY, StoredBase(base, self.installed, restarting=True))
        self.log = self.opened()

    def has_restarted(self, base: LogBase) -> bool:
        return read_base(self.disk, DIRECTORY).base == base

    # Stopping and starting

    @rule()
    def close_and_open(self) -> None:
        self.log.close()
        assert not self.disk.open_files
        self.log = self.opened()
        assert self.log.recovery.case in (RecoveryCase.CLEAN_END, RecoveryCase.EMPTY_LAST_SEGMENT)
        assert self.log.recovery.rewritten_bytes == 0
        assert self.log.last_index == len(self.model)

    @rule()
    def kill_and_open(self) -> None:
        """Kill the process and open the log. The kernel keeps everything that the process wrote."""
        self.disk.kill_process()
        self.log = self.opened()
        assert self.log.recovery.cut_bytes == 0
        assert self.log.last_index == len(self.model)

    @rule()
    def lose_power(self) -> None:
        synced = self.log.synced_index
        self.disk.lose_power()
        self.recover(synced)

    @rule(step=st.integers(0, 25), size=PAYLOADS)
    def lose_power_while_appending(self, step: int, size: int) -> None:
        self.lose_power_during(step, self.log.synced_index, lambda: (self.append(size, 3), self.sync()))

    @rule(step=st.integers(0, 25), back=st.integers(1, 25))
    def lose_power_while_truncating(self, step: int, back: int) -> None:
        index = self.index_from_end(back)
        self.lose_power_during(step, min(self.log.synced_index, index - 1), lambda: self.truncate_from(index))

    @rule(step=st.integers(0, 25))
    def lose_power_while_opening(self, step: int) -> None:
        synced = self.log.synced_index
        self.disk.lose_power()
        self.lose_power_during(step, synced, self.reopen)

    def reopen(self) -> None:
        self.log = self.opened()

    def lose_power_during(self, step: int, synced: int, action: Callable[[], object]) -> None:
        """Lose power at a later operation on the disk, or right after `action`. Records up to `synced` must survive."""
        self.disk.lose_power_at(self.disk.operations + step)
        try:
            action()
        except PowerLost:
            pass
        else:
            self.disk.on_operation = None
            synced = self.log.synced_index
            self.disk.lose_power()
        self.recover(synced)

    @precondition(lambda self: self.log.synced_index < len(self.model))
    @rule()
    def fail_to_write_back(self) -> None:
        """Let the kernel drop dirty pages: the log stops for good, and records that it did not promise may be gone."""
        synced = self.log.synced_index
        self.disk.fail_write_back(f"{DIRECTORY}/{self.active_name()}")
        for _ in range(2):
            with pytest.raises(LogFailed, match="fdatasync"):
                self.log.sync()
        with pytest.raises(LogFailed):
            self.log.append(len(self.model) + 1, self.term, KIND_ENTRY, b"")
        assert self.log.synced_index == synced
        self.disk.kill_process()
        self.log = self.opened()  # the kernel still shows the lost pages; they are written again
        assert self.log.last_index == self.log.synced_index == len(self.model)
        self.disk.lose_power()
        self.recover(len(self.model))

    def active_name(self) -> str:
        return [name for name in self.disk.list(DIRECTORY) if name.endswith(".log")][-1]

    def recover(self, synced: int) -> None:
        self.log = self.opened()
        assert synced <= self.log.last_index <= len(self.model)
        assert self.log.synced_index == self.log.last_index
        del self.model[self.log.last_index :]
        self.term += 1

    @rule()
    def apply(self) -> None:
        """Let the state machine apply durable records, which are never truncated afterwards."""
        self.applied = max(self.applied, self.random.randint(self.base_index, self.log.synced_index))

    # Reading

    @precondition(lambda self: len(self.model) > self.base_index)
    @rule(max_bytes=st.integers(0, 9000))
    def read_ranges(self, max_bytes: int) -> None:
        first = self.random.randint(self.base_index + 1, len(self.model))
        last = self.random.randint(first, len(self.model))
        fitting = self.fitting(first, last, max_bytes)
        entries = self.log.entries(first, max_bytes, last)
        assert [e.index for e in entries] == list(range(first, first + fitting))
        assert [Expected(e.term, e.kind, e.payload) for e in entries] == self.model[first - 1 : first - 1 + fitting]
        assert entries[0].position == self.log.position_of(first)

    def fitting(self, first: int, last: int, max_bytes: int) -> int:
        size = count = 0
        for expected in self.model[first - 1 : last]:
            size += HEADER_BYTES + len(expected.payload)
            if size > max_bytes and count:
                break
            count += 1
        return count

    @rule()
    def read_everything(self) -> None:
        position = 0
        for index, expected in enumerate(self.model, 1):
            if index <= self.base_index:
                with pytest.raises(LogTruncated):
                    self.log.entry(index)
                with pytest.raises(LogTruncated):
                    self.log.index_at(position)
                position += HEADER_BYTES + len(expected.payload)
                continue
            entry = self.log.entry(index)
            assert (entry.index, entry.position) == (index, position)
            assert Expected(entry.term, entry.kind, entry.payload) == expected
            assert self.log.term_at(index) == expected.term
            assert self.log.position_of(index) == position
            assert self.log.index_at(position) == index
            position += HEADER_BYTES + len(expected.payload)

    @invariant()
    def ends_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.base == self.base_of(self.base_index)
        assert self.log.last_index == len(self.model)
        assert self.log.last_term == self.model[-1].term
        assert self.log.end_position == sum(HEADER_BYTES + len(e.payload) for e in self.model)
        assert self.log.term_at(len(self.model)) == self.model[-1].term
        if len(self.model) > self.base_index:
            assert self.log.entry(len(self.model)).payload == self.model[-1].payload
        assert self.base_index <= self.log.synced_index <= self.log.last_index
        assert self.applied <= max(self.log.synced_index, self.installed)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.read_everything()


CommitLogMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestCommitLog = CommitLogMachine.TestCase
