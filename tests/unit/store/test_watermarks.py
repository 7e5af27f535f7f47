from __future__ import annotations

import errno

import pytest

from store.log.errors import DiskFull
from store.log.watermarks import FILE_BYTES, MARKS_BYTES_MAX, PeerMark, Watermarks
from tests.simdisk import PowerLost
from tests.unit.store.logs import sim_disk

PATH = "/data/watermarks"
MARKS = {2: PeerMark("disk two", 7, 6, 40), 3: PeerMark("disk three", 7)}


def commits(watermarks: Watermarks) -> tuple[int, int, int, int]:
    return watermarks.committed_index, watermarks.known_term, watermarks.known_index, watermarks.cut_term


def test_a_new_file_knows_nothing_and_takes_no_more_space_later() -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    assert (commits(watermarks), watermarks.marks, watermarks.is_dirty) == ((0, 0, 0, 0), {}, False)
    disk.capacity_bytes = FILE_BYTES
    watermarks.note_commit(5, 2, 9)
    watermarks.note_marks(MARKS)
    watermarks.note_cut(3)
    assert len(disk.read_bytes(PATH)) == FILE_BYTES


def test_a_full_disk_is_said_at_once() -> None:
    disk = sim_disk()
    disk.capacity_bytes = FILE_BYTES - 1
    with pytest.raises(DiskFull):
        Watermarks.open(disk, "/data")


def test_layout_is_the_documented_one() -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(5, 2, 9)
    watermarks.note_cut(3)
    data = disk.read_bytes(PATH)
    numbers = b"".join(number.to_bytes(8, "little") for number in (5, 2, 9, 3))
    assert data[:8].hex() == "4b4d5157" "01" "000000"  # fmt: skip
    assert data[8:40] == numbers
    watermarks.note_marks({2: PeerMark("d", 7, 6, 4)})
    data = disk.read_bytes(PATH)
    body = bytes.fromhex("91" "92" "02" "95" "a164" "07" "06" "04" "90")  # fmt: skip
    assert data[4096:4108] == b"KMQW" + bytes.fromhex("01000000") + len(body).to_bytes(4, "little")
    assert data[4108 : 4108 + len(body)] == body


def test_a_killed_process_loses_nothing() -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(5, 2, 9)
    watermarks.note_marks(MARKS)
    disk.kill_process()
    again = Watermarks.open(disk, "/data")
    assert (commits(again), again.marks) == ((5, 2, 9, 0), MARKS)


@pytest.mark.parametrize("seed", range(30))
def test_a_power_loss_leaves_each_part_as_it_was_once_or_nothing(seed: int) -> None:
    disk = sim_disk(seed)
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(1, 1, 1)
    watermarks.note_marks(MARKS)
    watermarks.sync()
    assert not watermarks.is_dirty
    for index in (2, 3):
        watermarks.note_commit(index, 1, index)
    watermarks.note_marks({2: MARKS[2]})
    disk.lose_power()
    again = Watermarks.open(disk, "/data")
    assert commits(again) in {(index, 1, index, 0) for index in (1, 2, 3)} | {(0, 0, 0, 0)}
    assert again.marks in (MARKS, {2: MARKS[2]}, {})


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_is_durable_on_return(seed: int) -> None:
    disk = sim_disk(seed)
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_cut(4)
    watermarks.note_commit(2, 1, 2)
    disk.kill_process()
    assert Watermarks.open(disk, "/data").cut_term == 4
    disk.lose_power()
    assert Watermarks.open(disk, "/data").cut_term in (4, 0), "0 when the commit that followed was torn"


def test_what_did_not_change_is_not_written_again() -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(5, 2, 9)
    watermarks.note_marks(MARKS)
    before = disk.operations
    watermarks.note_commit(5, 2, 9)
    watermarks.note_marks(MARKS)
    watermarks.note_cut(0)
    assert disk.operations == before


@pytest.mark.parametrize("position", [0, 4, 9, 39, 4096, 4100, 4104, 4120])
def test_a_damaged_part_counts_for_nothing(position: int) -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(5, 2, 9)
    watermarks.note_marks(MARKS)
    watermarks.sync()
    disk.damage(PATH, position, b"\xff")
    again = Watermarks.open(disk, "/data")
    damaged, whole = (again.marks, commits(again)) if position >= 4096 else (commits(again), again.marks)
    assert damaged in ({}, (0, 0, 0, 0))
    assert whole in (MARKS, (5, 2, 9, 0))


def test_marks_that_have_no_room_are_refused() -> None:
    watermarks = Watermarks.open(sim_disk(), "/data")
    with pytest.raises(ValueError, match="have room"):
        watermarks.note_marks({1: PeerMark("x" * MARKS_BYTES_MAX)})


def test_a_sync_that_fails_is_not_swallowed() -> None:
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    watermarks.note_commit(1, 1, 1)
    disk.lose_power()
    with pytest.raises(PowerLost):
        watermarks.sync()


def test_a_cut_that_was_not_noted_is_noted_by_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power loss would make the node take its own cut for something that its disk forgot."""
    disk = sim_disk()
    watermarks = Watermarks.open(disk, "/data")
    with monkeypatch.context() as full:
        full.setattr(type(watermarks._file), "pwrite", no_room)
        with pytest.raises(DiskFull):
            watermarks.note_cut(4)
    watermarks.note_cut(4)
    disk.lose_power()
    assert Watermarks.open(disk, "/data").cut_term == 4


def no_room(_file: object, _data: bytes, _position: int) -> None:
    raise DiskFull("write", PATH, errno.ENOSPC, "no space left")
