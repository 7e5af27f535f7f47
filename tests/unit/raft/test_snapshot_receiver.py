"""A follower receives a snapshot, or keeps its own log and state instead."""

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import store.snapshots.snapshot
from cluster.node_store import begin_in_thread
from raft.distrust import CONTRADICTIONS_MAX, Distrust
from raft.errors import ProtocolError, SafetyViolation
from raft.messages import SnapshotAck, SnapshotAnswer, SnapshotBegin, SnapshotChunk, SnapshotEnd, SnapshotReject
from raft.snapshots.receiver import SnapshotReceiver
from raft.snapshots.sender import SnapshotSender
from store.index.index import Index
from store.log.base import LogBase
from store.log.commit_log import CommitLog
from store.log.errors import DiskFull
from store.log.record import KIND_ENTRY
from store.snapshots.install import DECISION_FILE, IndexDirectories, SnapshotStore, finish_install
from store.snapshots.snapshot import SnapshotReader
from tests.patience import PATIENCE_S
from tests.simdisk import SimDisk
from tests.unit.store.logs import sim_disk
from tests.unit.store.replica import Replica
from tests.unit.store.stopped_index import go_on, stop_writes
from tests.unit.store.test_snapshot import filled

LEADER, TERM = 2, 5
DATA = "/data"
BASE = LogBase(4096, 40, 4)


class Follower:
    """A follower with a log of ten records of term 1, three of them committed, and a leader that sends its state."""

    def __init__(self, tmp_path: Path, leader: Replica) -> None:
        self.disk: SimDisk = sim_disk()
        self.log = CommitLog.open(self.disk, f"{DATA}/log", segment_bytes=4096, cache_bytes=0)
        for index in range(2, 11):
            self.log.append(index, 1, KIND_ENTRY, b"own")
        self.log.sync()
        self.committed = 3
        self.own = Replica(tmp_path / "index")
        self.places = IndexDirectories(str(tmp_path), begin_in_thread)
        store_ = SnapshotStore(self.disk, DATA, self.own.index, self.places)
        self.sent: list[SnapshotAnswer] = []
        self.decided = 0
        self.receiver = SnapshotReceiver(
            store_,
            self.log,
            lambda: self.committed,
            lambda _, answer: self.sent.append(answer),
            self._decide,
            Distrust(),
        )
        self.leader = leader

    def _decide(self) -> None:
        self.decided += 1

    def begin(self, base: LogBase = BASE) -> list[SnapshotBegin | SnapshotChunk | SnapshotEnd]:
        """Return the messages of a whole transfer, as the leader sends them."""
        reader = SnapshotReader(self.leader.index, base)
        messages: list[SnapshotBegin | SnapshotChunk | SnapshotEnd] = []
        sender = SnapshotSender(TERM, 1, reader, 1000, messages.append)
        while not sender.is_done:
            sender.on_ack(SnapshotAck(TERM, 1, len(messages)))
        return messages

    def give(self, message: SnapshotBegin | SnapshotChunk | SnapshotEnd) -> SnapshotAnswer | None:
        """Deliver the message and return the last answer to it."""
        self.sent.clear()
        match message:
            case SnapshotBegin():
                self.receiver.on_begin(LEADER, message)
            case SnapshotChunk():
                self.receiver.on_chunk(LEADER, message)
            case SnapshotEnd():
                self.receiver.on_end(LEADER, message)
                self.look()
        return self.sent[-1] if self.sent else None

    def look(self) -> None:
        """Have the receiver look again until nothing waits for the disk."""
        deadline_s = time.monotonic() + PATIENCE_S
        while (incoming := self.receiver._incoming) is not None and incoming.end is not None:
            assert time.monotonic() < deadline_s
            self.receiver.look()

    def close(self) -> None:
        self.receiver.abort("the test is over")
        self.places.close()
        self.own.close()


@pytest.fixture
def follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 2000)
    leader = Replica(tmp_path / "leader")
    filled(leader)
    (tmp_path / "follower").mkdir()
    made = Follower(tmp_path / "follower", leader)
    yield made
    made.close()
    leader.close()


def refusal(answer: SnapshotAnswer | None) -> str:
    assert isinstance(answer, SnapshotReject)
    assert answer.term == TERM
    return answer.reason


def test_a_whole_snapshot_is_decided_for(follower: Follower) -> None:
    messages = follower.begin()
    assert len(messages) > 5
    for number, message in enumerate(messages):
        assert follower.give(message) == SnapshotAck(TERM, 1, number + 1)
    assert follower.decided == 1
    assert follower.receiver.percent is None
    decision = finish_install(follower.disk, DATA, follower.places)
    assert decision is not None
    assert (decision.base, decision.index) == (BASE, follower.leader.machine.applied_index)


def test_messages_count_once_and_in_order(follower: Follower) -> None:
    begin, first, second, *rest = follower.begin()
    assert follower.give(begin) == SnapshotAck(TERM, 1, 1)
    assert follower.give(second) == SnapshotAck(TERM, 1, 1), "the first was lost"
    assert follower.give(rest[-1]) == SnapshotAck(TERM, 1, 1)
    assert follower.give(first) == SnapshotAck(TERM, 1, 2)
    assert follower.give(first) == SnapshotAck(TERM, 1, 2)
    assert follower.give(begin) == SnapshotAck(TERM, 1, 2), "the same beginning, late"
    for message in (second, *rest):
        follower.give(message)
    assert follower.decided == 1


def test_an_index_that_takes_no_writes_is_not_waited_for(follower: Follower) -> None:
    """RocksDB would hold the thread; the leader sends again what is not acknowledged."""
    begin, first, second, third, *rest = follower.begin()
    follower.give(begin)
    follower.give(first)
    incoming = follower.receiver._incoming
    assert incoming is not None
    stop_writes(incoming.index)
    assert follower.give(second) == SnapshotAck(TERM, 1, 3), "one waits in memory"
    for _ in range(2):
        assert follower.give(third) is None
    go_on(incoming.index)
    for message in (third, *rest):
        follower.give(message)
    assert follower.decided == 1


def test_the_end_of_a_transfer_does_not_wait_for_the_disk(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB would hold the thread, and with it the votes of the node, until all that was received is written."""
    *messages, end = follower.begin()
    for message in messages:
        follower.give(message)
    assert isinstance(end, SnapshotEnd)
    follower.sent.clear()
    with monkeypatch.context() as patched:
        patched.setattr(Index, "is_flushing", True)
        patched.setattr(Index, "flush", lambda *_: pytest.fail("it waits"))
        for _ in range(3):
            follower.receiver.on_end(LEADER, end)
            follower.receiver.look()
    assert (follower.sent, follower.decided) == ([], 0)
    assert follower.give(end) == SnapshotAck(TERM, 1, len(messages) + 1)
    assert follower.decided == 1


def test_the_end_of_a_transfer_tells_of_a_flush_that_has_failed(follower: Follower, tmp_path: Path) -> None:
    *messages, end = follower.begin()
    for message in messages:
        follower.give(message)
    incoming = tmp_path / "follower" / "index.incoming"
    incoming.rename(tmp_path / "gone")
    assert "No such file" in refusal(follower.give(end))
    assert (follower.decided, follower.receiver.percent) == (0, None)


def test_what_was_received_is_thrown_away_in_the_background(
    follower: Follower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing an index brings it to disk first. None is received until it is gone."""
    begin, first, *_ = follower.begin()
    follower.give(begin)
    follower.give(first)
    may_close, close = threading.Event(), Index.close
    monkeypatch.setattr(Index, "close", lambda index: may_close.wait(PATIENCE_S) and close(index))
    follower.receiver.abort("the leader has changed")
    assert "still being removed" in refusal(follower.give(begin))
    may_close.set()
    follower.places.close()
    assert not (tmp_path / "follower" / "index.incoming").exists()
    assert follower.give(begin) == SnapshotAck(TERM, 1, 1)


def test_what_is_not_under_way_is_refused(follower: Follower) -> None:
    begin, chunk, *rest = follower.begin()
    assert "not under way" in refusal(follower.give(chunk))
    assert "not under way" in refusal(follower.give(rest[-1]))
    follower.give(begin)
    assert isinstance(chunk, SnapshotChunk)
    assert "not under way" in refusal(follower.give(msgspec.structs.replace(chunk, transfer=2)))


def test_a_log_that_holds_the_base_is_kept(follower: Follower) -> None:
    begin = follower.begin(LogBase(4096, 10, 1))[0]
    assert "entry 10 is here" in refusal(follower.give(begin))


def test_a_log_that_has_got_the_base_meanwhile_is_kept(follower: Follower) -> None:
    *messages, end = follower.begin(LogBase(4096, 11, 5))
    for message in messages:
        follower.give(message)
    follower.log.append(11, 5, KIND_ENTRY, b"by an append")
    assert "entry 11 is here" in refusal(follower.give(end))
    assert follower.decided == 0
    follower.places.close()
    assert finish_install(follower.disk, DATA, follower.places) is None


def test_an_uncommitted_entry_in_the_place_of_the_base_does_not_keep_the_log(follower: Follower) -> None:
    begin = follower.begin(LogBase(4096, 10, 4))[0]
    assert follower.give(begin) == SnapshotAck(TERM, 1, 1)


def test_another_committed_entry_in_the_place_of_the_base_stops_the_node(follower: Follower) -> None:
    begin = follower.begin(LogBase(4096, 3, 4))[0]
    for _ in range(CONTRADICTIONS_MAX - 1):  # one forged message is no reason to stop
        with pytest.raises(ProtocolError, match="entry 3 is committed here"):
            follower.give(begin)
    with pytest.raises(SafetyViolation, match="entry 3 is committed here"):
        follower.give(begin)


def test_what_is_committed_and_not_applied_yet_counts_as_well(follower: Follower) -> None:
    follower.committed = 10
    with pytest.raises(ProtocolError, match="entry 10 is committed here"):
        follower.give(follower.begin(LogBase(4096, 10, 4))[0])


def test_a_state_that_is_behind_the_own_is_refused(follower: Follower) -> None:
    follower.committed = follower.leader.machine.applied_index + 1
    assert "are committed here" in refusal(follower.give(follower.begin()[0]))


def test_a_state_that_another_version_wrote_is_refused(follower: Follower) -> None:
    begin = follower.begin()[0]
    assert "format" in refusal(follower.give(msgspec.structs.replace(begin, format="99")))


def test_without_room_the_own_state_stays_and_the_leader_is_told(follower: Follower) -> None:
    begin, chunk, *_ = follower.begin()
    follower.give(begin)
    follower.disk.capacity_bytes = 1 << 20
    assert "cannot be stored" in refusal(follower.give(chunk))
    assert follower.receiver.percent is None
    follower.places.close()
    assert "cannot be stored" in refusal(follower.give(begin))
    follower.disk.capacity_bytes = None
    assert follower.give(begin) == SnapshotAck(TERM, 1, 1)


def test_without_room_to_decide_nothing_of_what_was_received_stays(follower: Follower, tmp_path: Path) -> None:
    *messages, end = follower.begin()
    for message in messages:
        follower.give(message)

    def no_room(_: str, path: str) -> None:
        if DECISION_FILE in path:
            raise DiskFull("write", path, errno.ENOSPC, "no space left on device")

    follower.disk.on_operation = no_room
    assert "no room to decide" in refusal(follower.give(end))
    assert not (tmp_path / "follower" / "index.incoming").exists()
    assert (follower.decided, follower.receiver.percent) == (0, None)
    follower.disk.on_operation = None
    assert follower.give(messages[0]) == SnapshotAck(TERM, 1, 1)


def test_nonsense_ends_the_transfer_and_the_connection(follower: Follower) -> None:
    begin = follower.begin()[0]
    follower.give(begin)
    with pytest.raises(ProtocolError):
        follower.give(SnapshotChunk(TERM, 1, 1, b"\xff" * 100))
    assert follower.receiver.percent is None


def test_a_part_is_not_taken_for_the_whole(follower: Follower) -> None:
    begin, *chunks, end = follower.begin()
    assert isinstance(end, SnapshotEnd)
    follower.give(begin)
    for chunk in chunks[:-1]:
        follower.give(chunk)
    early = msgspec.structs.replace(end, number=end.number - 1)
    assert "not whole" in refusal(follower.give(early))
    assert follower.decided == 0
