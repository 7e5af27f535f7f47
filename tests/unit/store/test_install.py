"""A node starts with its old state or with the snapshot it has decided for, wherever it was interrupted."""

import errno
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.index.index import Index
from store.log.base import LogBase
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.errors import DiskError, DiskFull, InstallDamaged
from store.log.record import KIND_ENTRY
from store.snapshots.install import (
    DECISION_FILE,
    Decision,
    IndexDirectories,
    SnapshotStore,
    finish_install,
    read_decision,
)

BASE = LogBase(5000, 40, 3)
DECISION = Decision(BASE, 55, "ab" * 8, 123_456, 789)


class Killed(Exception):
    """Raised where the process dies."""


class DyingDisk(PosixDisk):
    """A disk that dies right before the operation with that number. Changes made before it stay."""

    def __init__(self, dies_at: int = -1) -> None:
        super().__init__()
        self.dies_at = dies_at
        self.operations = 0

    def _count(self) -> None:
        self.operations += 1
        if self.operations == self.dies_at:
            raise Killed

    def rename(self, old: str, new: str) -> None:
        self._count()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


def open_log(disk: PosixDisk, data: Path, applied_index: int = 0) -> CommitLog:
    return CommitLog.open(disk, str(data / "log"), segment_bytes=4096, cache_bytes=0, applied_index=applied_index)


def make_node(data: Path) -> None:
    """Make a node with an old state and a log of ten records."""
    data.mkdir()
    old = Index.open(str(data / "index"))
    old.put(b"state", b"old")
    old.commit()
    old.close()
    log = open_log(PosixDisk(), data)
    for index in range(2, 11):
        log.append(index, 1, KIND_ENTRY, b"old")
    log.close()


def receive(disk: PosixDisk, data: Path) -> None:
    """Receive a snapshot up to the decision."""
    places = IndexDirectories(str(data))
    index = Index.open(str(data / "index"))
    try:
        snapshots = SnapshotStore(disk, str(data), index, places)
        incoming = snapshots.open_incoming()
        incoming.put(b"state", b"new")
        incoming.commit()
        snapshots.decide(incoming, DECISION)
    finally:
        index.close()


def start(data: Path) -> tuple[bytes | None, int]:
    """Start the node and return its state and the first index of its log."""
    disk = PosixDisk()
    finish_install(disk, str(data), IndexDirectories(str(data)))
    index = Index.open(str(data / "index"))
    state = index.get(b"state")
    index.close()
    log = open_log(disk, data, DECISION.index if state == b"new" else 0)
    found = state, log.first_index
    assert log.last_index == (10 if log.first_index == 1 else BASE.index)
    log.close()
    assert not (data / "index.incoming").exists()
    assert not (data / DECISION_FILE).exists()
    return found


class SmallDisk(PosixDisk):
    """A disk that has room only while no part of a snapshot lies on it."""

    def __init__(self, incoming: Path) -> None:
        super().__init__()
        self._incoming = incoming

    def free_bytes(self, path: str) -> int:
        return 0 if self._incoming.exists() else 1 << 40


@pytest.fixture
def own_index(tmp_path: Path) -> Iterator[Index]:
    """Open the index of a node whose data directory is `tmp_path`."""
    index = Index.open(str(tmp_path / "index"))
    yield index
    index.close()


def is_full(*_: object, **__: object) -> None:
    raise DiskFull("write", "it", errno.ENOSPC, "no space left on device")


def test_what_is_left_of_an_earlier_transfer_is_room_for_the_next(tmp_path: Path, own_index: Index) -> None:
    places, disk = IndexDirectories(str(tmp_path)), SmallDisk(tmp_path / "index.incoming")
    places.open_incoming().close()
    assert not disk.free_bytes(str(tmp_path))
    SnapshotStore(disk, str(tmp_path), own_index, places).open_incoming().close()


def test_a_transfer_that_is_given_up_leaves_nothing_also_when_the_disk_is_too_full_to_close_it(
    tmp_path: Path, own_index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = IndexDirectories(str(tmp_path))
    snapshots = SnapshotStore(PosixDisk(), str(tmp_path), own_index, places)
    incoming = snapshots.open_incoming()
    monkeypatch.setattr(incoming, "flush", is_full)
    with caplog.at_level(logging.INFO):
        snapshots.discard_incoming(incoming)
        places.close()
    assert not (tmp_path / "index.incoming").exists()
    assert "no space left on device" in caplog.text


@pytest.mark.parametrize("fails", ["close", "open", "rename"])
def test_a_decision_for_which_there_is_no_room_leaves_nothing_of_what_was_received(
    tmp_path: Path, own_index: Index, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    disk = PosixDisk()
    snapshots = SnapshotStore(disk, str(tmp_path), own_index, IndexDirectories(str(tmp_path)))
    incoming = snapshots.open_incoming()
    if fails == "close":
        monkeypatch.setattr(incoming, "flush", is_full)
    else:
        monkeypatch.setattr(disk, fails, is_full)
    with pytest.raises(DiskFull):
        snapshots.decide(incoming, DECISION)
    assert not (tmp_path / "index.incoming").exists()
    assert read_decision(disk, str(tmp_path)) is None


def test_a_decision_that_may_not_last_is_no_decision_against_it(
    tmp_path: Path, own_index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision has got its name. The next start may find it, and then needs the received state."""
    disk = PosixDisk()
    snapshots = SnapshotStore(disk, str(tmp_path), own_index, IndexDirectories(str(tmp_path)))
    incoming = snapshots.open_incoming()
    monkeypatch.setattr(disk, "sync_directory", is_full)
    with pytest.raises(DiskError) as caught:
        snapshots.decide(incoming, DECISION)
    assert not isinstance(caught.value, DiskFull), "the process has to stop"
    assert (tmp_path / "index.incoming").exists()
    assert read_decision(disk, str(tmp_path)) == DECISION


OLD, NEW = (b"old", 1), (b"new", BASE.index + 1)


def test_a_snapshot_that_was_decided_for_is_what_the_node_starts_with(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data)
    receive(PosixDisk(), data)
    assert finish_install(PosixDisk(), str(data), IndexDirectories(str(data))) == DECISION
    assert start(data) == NEW
    assert start(data) == NEW


def test_what_was_received_without_a_decision_is_thrown_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data)
    IndexDirectories(str(data)).open_incoming().close()
    assert start(data) == OLD


def interrupted(data: Path, step: Callable[[DyingDisk], object]) -> list[tuple[bytes | None, int]]:
    """Return the states the node starts with after dying at each operation of the step in turn."""
    found = []
    pristine = data.with_name("pristine")
    shutil.copytree(data, pristine)
    for dies_at in range(1, 100):
        shutil.rmtree(data)
        shutil.copytree(pristine, data)
        try:
            step(DyingDisk(dies_at))
        except Killed:
            found.append(start(data))
        else:
            return found
    raise AssertionError("it never ends")


def test_a_node_that_dies_while_it_decides_has_decided_or_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data)
    found = interrupted(data, lambda disk: receive(disk, data))
    assert found == [OLD, NEW], "before the rename, and after it"


def test_a_node_that_dies_while_it_carries_out_its_decision_goes_on_with_that(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data)
    receive(PosixDisk(), data)
    found = interrupted(data, lambda disk: finish_install(disk, str(data), IndexDirectories(str(data))))
    assert len(found) >= 5
    assert set(found) == {NEW}


@pytest.mark.parametrize("where", ["rmtree", "rename"])
def test_a_node_that_dies_while_the_directories_are_exchanged_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    data = tmp_path / "data"
    make_node(data)
    receive(PosixDisk(), data)

    def die(*_: object) -> None:
        if where == "rmtree":  # half of it is gone
            next((data / "index").iterdir()).unlink()
        raise Killed

    with monkeypatch.context() as patch:
        if where == "rmtree":
            patch.setattr(shutil, "rmtree", die)
        else:
            patch.setattr(Path, "rename", die)
        with pytest.raises(Killed):
            finish_install(PosixDisk(), str(data), IndexDirectories(str(data)))
    assert start(data) == NEW


def test_a_damaged_decision_stops_the_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    make_node(data)
    receive(PosixDisk(), data)
    decision = data / DECISION_FILE
    whole = decision.read_bytes()
    for harm in (b"", whole[:-1], whole[:9] + b"\x00" + whole[10:], b"KMQX" + whole[4:]):
        decision.write_bytes(harm)
        with pytest.raises(InstallDamaged, match="damaged"):
            finish_install(PosixDisk(), str(data), IndexDirectories(str(data)))
        assert (data / "index.incoming").exists(), "nothing was changed"
