"""A snapshot is the whole state as of one entry, comes in bounded portions, and is not taken for another or a part."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c

import store.snapshots.snapshot
from store.commands.entry import Proposal
from store.commands.messages import BatchHeader, Produce
from store.commands.topics import PutTopic
from store.index.index import Index
from store.log.base import LogBase
from store.snapshots.snapshot import SnapshotReader, SnapshotRefused, SnapshotWriter
from store.state.machine import StateMachine
from tests.unit.store.replica import Replica, dump

BASE = LogBase(4096, 7, 2)


@pytest.fixture
def incoming(tmp_path: Path) -> Iterator[Index]:
    index = Index.open(str(tmp_path / "incoming"))
    yield index
    index.close()


def produce(batch_id: str) -> Proposal:
    return Proposal(Produce((BatchHeader("orders", 0, 1, batch_id, None, crc32c(b"x"), 1),)), (b"x",))


def filled(replica: Replica, batches: int = 50) -> None:
    replica.one(PutTopic("orders", 1))
    for number in range(batches):
        replica.one(produce(f"b{number}"))


def portions(reader: SnapshotReader) -> list[bytes]:
    return list(iter(reader.next_portion, b""))


def test_the_copy_is_the_state(replica: Replica, incoming: Index) -> None:
    filled(replica)
    reader, writer = SnapshotReader(replica.index, BASE), SnapshotWriter(incoming)
    for portion in portions(reader):
        writer.add(portion)
    writer.check(reader.pairs_read, reader.checksum, reader.index, reader.state_hash)
    assert dump(incoming) == replica.dump()
    machine = StateMachine(incoming)
    assert (machine.applied_index, machine.state_hash) == (replica.machine.applied_index, replica.machine.state_hash)
    assert machine.max_offset("orders", 0) == 50


def test_what_is_written_is_not_kept_in_memory(
    replica: Replica, incoming: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state may be much larger than the memory of the node that takes it."""
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 1000)
    filled(replica)
    writer = SnapshotWriter(incoming)
    for portion in portions(SnapshotReader(replica.index, BASE)):
        writer.add(portion)
        assert (incoming.staged_rows, len(incoming.touched)) == (0, 0)
    assert writer.pairs_written > 100


def test_what_is_applied_meanwhile_is_not_in_it(
    replica: Replica, incoming: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 200)
    filled(replica)
    before = replica.dump()
    reader, writer = SnapshotReader(replica.index, BASE), SnapshotWriter(incoming)
    number = 0
    while portion := reader.next_portion():
        assert len(portion) <= 200, "a pair may be larger than that"
        writer.add(portion)
        replica.one(produce(f"later{number}"))
        number += 1
    writer.check(reader.pairs_read, reader.checksum, reader.index, reader.state_hash)
    assert number > 10
    assert dump(incoming) == before


def take(writer: SnapshotWriter, sent: list[bytes], reader: SnapshotReader, index: int, state_hash: str) -> None:
    for portion in sent:
        writer.add(portion)
    writer.check(reader.pairs_read, reader.checksum, index, state_hash)


@pytest.mark.parametrize("harm", ["a portion is missing", "a portion comes twice", "another state", "another entry"])
def test_what_is_not_what_was_announced_is_refused(
    replica: Replica, incoming: Index, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    monkeypatch.setattr(store.snapshots.snapshot, "PORTION_BYTES", 1000)
    filled(replica)
    reader, writer = SnapshotReader(replica.index, BASE), SnapshotWriter(incoming)
    index, state_hash = reader.index, reader.state_hash
    sent = portions(reader)
    match harm:
        case "a portion is missing":
            del sent[-1]
        case "a portion comes twice":
            sent.append(sent[-1])
        case "another state":
            state_hash = "00" * 8
        case "another entry":
            index += 1
    with pytest.raises(SnapshotRefused):
        take(writer, sent, reader, index, state_hash)


def test_nonsense_is_refused(incoming: Index) -> None:
    with pytest.raises(SnapshotRefused):
        SnapshotWriter(incoming).add(b"\xff" * 100)
    with pytest.raises(SnapshotRefused):
        SnapshotWriter(incoming).add(bytes(100))


def test_an_index_without_a_state_is_no_snapshot(incoming: Index) -> None:
    writer = SnapshotWriter(incoming)
    with pytest.raises(SnapshotRefused):
        writer.check(0, writer._digest.digest(), 1, "")
