from __future__ import annotations

import errno

import pytest

from store.log.errors import DiskFull, HardStateCorruption, LogFailed
from store.log.hard_state import FILE_BYTES, HardState
from tests.simdisk import PowerLost, SimDisk, io_error
from tests.unit.store.logs import sim_disk

PATH = "/data/hard_state"
TEMPORARY = PATH + ".tmp"


def loaded(disk: SimDisk) -> tuple[int, int | None]:
    state = HardState(disk, PATH)
    return state.term, state.voted_for


def test_a_new_node_has_term_0_and_no_vote() -> None:
    assert loaded(sim_disk()) == (0, None)


def test_layout_is_the_documented_one() -> None:
    disk = sim_disk()
    HardState(disk, PATH).set(5, 2)
    data = disk.read_bytes(PATH)
    assert len(data) == FILE_BYTES == 28
    assert data[:24].hex() == "4b4d5148" "01" "000000" "0500000000000000" "0200000000000000"  # fmt: skip
    HardState(disk, PATH).set(6, None)
    assert disk.read_bytes(PATH)[16:24] == b"\xff" * 8


@pytest.mark.parametrize("seed", range(20))
def test_durable_on_return(seed: int) -> None:
    disk = sim_disk(seed)
    state = HardState(disk, PATH)
    for term, vote in [(1, None), (1, 3), (2, 1), (7, None)]:
        state.set(term, vote)
        assert (state.term, state.voted_for) == (term, vote)
        disk.lose_power()
        state = HardState(disk, PATH)
        assert (state.term, state.voted_for) == (term, vote)
    assert not disk.open_files


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_at_every_step_leaves_the_old_or_the_new_state(seed: int) -> None:
    step = 0
    finished = False
    while not finished:
        disk = sim_disk(seed * 100 + step)
        state = HardState(disk, PATH)
        state.set(4, 1)
        disk.lose_power_at(disk.operations + step)
        try:
            state.set(5, 2)
            finished = True
            disk.on_operation = None
        except PowerLost:
            pass
        disk.lose_power()
        assert loaded(disk) in ([(5, 2)] if finished else [(4, 1), (5, 2)])
        step += 1
    assert step > 5


def test_what_was_read_is_durable_before_it_is_used() -> None:
    """A process died between the rename and the sync of the directory; the next one has seen and used the new term."""
    for seed in range(20):
        disk = sim_disk(seed)
        state = HardState(disk, PATH)
        state.set(4, 1)
        disk.lose_power_at(1 << 60)
        state.set(5, 2)

        def die(operation: str, path: str, disk: SimDisk = disk) -> None:
            if operation == "sync_directory":
                disk.on_operation = None
                disk.kill_process()
                raise PowerLost

        disk.on_operation = die
        with pytest.raises(PowerLost):
            state.set(6, 3)
        assert loaded(disk) == (6, 3)
        disk.lose_power()
        assert loaded(disk) == (6, 3)


def test_a_temporary_file_left_behind_is_ignored() -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)
    disk.open(TEMPORARY, create=True).pwrite(b"half" * 50, 0)
    assert loaded(disk) == (3, 1)
    state = HardState(disk, PATH)
    state.set(4, None)
    assert loaded(disk) == (4, None)


def test_the_term_never_goes_back_and_a_vote_is_never_changed() -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)
    for term, vote in [(2, 1), (3, 2), (3, None), (4, -1)]:
        with pytest.raises(ValueError, match=r"older|vote|negative"):
            state.set(term, vote)
    assert (state.term, state.voted_for) == loaded(disk) == (3, 1)
    state.set(3, 1)
    state.set(4, None)
    state.set(4, 2)
    assert loaded(disk) == (4, 2)


@pytest.mark.parametrize("offset", range(FILE_BYTES))
def test_any_damaged_byte_is_noticed(offset: int) -> None:
    disk = sim_disk()
    HardState(disk, PATH).set(3, 1)
    disk.damage(PATH, offset, bytes([disk.read_bytes(PATH)[offset] ^ 0x40]))
    with pytest.raises(HardStateCorruption, match=r"/data/hard_state .* then remove the directory"):
        HardState(disk, PATH)


@pytest.mark.parametrize("size", [0, 1, FILE_BYTES - 1, FILE_BYTES + 1])
def test_wrong_length_is_noticed(size: int) -> None:
    disk = sim_disk()
    HardState(disk, PATH).set(3, 1)
    disk.cut(PATH, size)
    with pytest.raises(HardStateCorruption, match="bytes instead of"):
        HardState(disk, PATH)


def test_full_disk_changes_nothing_and_passes() -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)
    disk.unlink(TEMPORARY)
    disk.capacity_bytes = FILE_BYTES
    with pytest.raises(DiskFull):
        state.set(4, 2)
    assert (state.term, state.voted_for) == loaded(disk) == (3, 1)
    disk.capacity_bytes = None
    state.set(4, 2)
    assert loaded(disk) == (4, 2)


def test_new_terms_are_noted_on_a_disk_that_something_else_has_filled() -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)
    disk.capacity_bytes = 2 * FILE_BYTES  # what is there: the state, and the room for the next one
    for term in range(4, 9):
        state.set(term, None)
        state.set(term, 2)
        assert loaded(disk) == (term, 2)
    disk.lose_power()
    assert loaded(disk) == (8, 2)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_changes_nothing_and_passes(number: int) -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)

    def fail(operation: str, path: str) -> None:
        if (operation, path) == ("open", TEMPORARY):
            raise io_error(operation, path, number)

    disk.on_operation = fail
    with pytest.raises(DiskFull, match="Too many open files"):
        state.set(4, 2)
    disk.on_operation = None
    assert (state.term, state.voted_for) == loaded(disk) == (3, 1)
    state.set(4, 2)
    assert loaded(disk) == (4, 2)


@pytest.mark.parametrize("failing", ["pwrite", "fdatasync", "rename", "sync_directory"])
def test_a_failed_write_is_never_retried(failing: str) -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    state.set(3, 1)

    def fail(operation: str, path: str) -> None:
        if operation == failing:
            raise io_error(operation, path, errno.EIO)

    disk.on_operation = fail
    with pytest.raises(LogFailed, match=failing.replace("_", ".")):
        state.set(4, 2)
    disk.on_operation = None
    with pytest.raises(LogFailed):
        state.set(4, 2)
    assert (state.term, state.voted_for) == (3, 1)
    assert not disk.open_files


def test_becoming_a_voter_is_remembered_and_later_terms_keep_it() -> None:
    disk = sim_disk()
    state = HardState(disk, PATH)
    assert not state.voter
    state.set(3, 1)
    state.become_voter()
    state.set(4, None)
    reread = HardState(disk, PATH)
    assert (reread.voter, reread.term, reread.voted_for) == (True, 4, None)
