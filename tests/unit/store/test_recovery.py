"""The recovery table's repairs: each case, its report, and the content of the log after it."""

from __future__ import annotations

from collections import Counter

import pytest

from store.log.record import HEADER_BYTES, KIND_NOOP
from store.log.recovery import RecoveryCase
from store.log.segment import PENDING_NAME, segment_name, sidecar_name
from tests.unit.store.logs import (
    DIRECTORY,
    append_to,
    assert_holds,
    killed_with_unsynced,
    open_log,
    path_of,
    position_of,
    segment_paths,
    sim_disk,
    synced_log,
)

RECORD_BYTES = HEADER_BYTES + 300


def test_new_log() -> None:
    disk = sim_disk()
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.NEW_LOG
    assert (log.first_index, log.last_index, log.last_term, log.synced_index) == (1, 1, 0, 1)
    genesis = log.entry(1)
    assert (genesis.kind, genesis.term, genesis.position, genesis.payload) == (KIND_NOOP, 0, 0, b"")
    disk.lose_power()
    assert_holds(open_log(disk), 1)


def test_clean_end() -> None:
    disk = sim_disk()
    synced_log(disk, 8).close()
    log = open_log(disk, applied_index=8)
    assert log.recovery.case is RecoveryCase.CLEAN_END
    assert (log.recovery.segment, log.recovery.end_position) == (segment_name(0), position_of(9))
    assert (log.recovery.records_scanned, log.recovery.cut_bytes, log.recovery.rewritten_bytes) == (8, 0, 0)
    assert str(log.recovery) == (
        f"case=clean_end segment={segment_name(0)} end_position={position_of(9)} cut_bytes=0 records_scanned=8 "
        "rewritten_bytes=0"
    )
    assert str(log.recovery._replace(removed_files=("a", "b"))).endswith(" removed_files=a,b")
    assert_holds(log, 8)


def test_clean_end_at_the_last_byte_of_the_file() -> None:
    disk = sim_disk()
    synced_log(disk, 8).close()
    disk.cut(path_of(0), position_of(9))
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.CLEAN_END
    append_to(log, 9)
    log.sync()
    assert_holds(log, 9)


def test_unsynced_records_that_are_whole_are_kept_and_made_durable() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 8)
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.CLEAN_END
    assert log.recovery.rewritten_bytes == 3 * RECORD_BYTES
    disk.lose_power()
    assert_holds(open_log(disk), 8)


@pytest.mark.parametrize("kept", [1, 17, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 1, RECORD_BYTES - 1])
def test_torn_tail(kept: int) -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 6)
    disk.damage(path_of(0), position_of(6) + kept, bytes(RECORD_BYTES - kept))
    log = open_log(disk)
    expected = RecoveryCase.ZERO_FILLED_TAIL if kept == HEADER_BYTES else RecoveryCase.TORN_TAIL
    assert log.recovery.case is expected
    assert (log.recovery.end_position, log.recovery.cut_bytes) == (position_of(6), kept)
    assert_holds(log, 5)
    append_to(log, 7)
    log.sync()
    disk.lose_power()
    assert_holds(open_log(disk), 7)


def test_torn_tail_at_the_end_of_the_file() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 6)
    disk.cut(path_of(0), position_of(6) + 100)
    log = open_log(disk)
    assert (log.recovery.case, log.recovery.cut_bytes) == (RecoveryCase.TORN_TAIL, 100)
    assert_holds(log, 5)


def test_torn_payload_behind_a_header_that_never_arrived() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 6)
    disk.damage(path_of(0), position_of(6), bytes(HEADER_BYTES))
    log = open_log(disk)
    assert (log.recovery.case, log.recovery.cut_bytes) == (RecoveryCase.TORN_TAIL, RECORD_BYTES)
    assert_holds(log, 5)


def test_zero_filled_tail() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 6)
    disk.damage(path_of(0), position_of(6) + HEADER_BYTES, bytes(300))
    log = open_log(disk)
    assert (log.recovery.case, log.recovery.cut_bytes) == (RecoveryCase.ZERO_FILLED_TAIL, HEADER_BYTES)
    assert_holds(log, 5)


@pytest.mark.parametrize("hole", [bytes(RECORD_BYTES), b"\xff"])
def test_hole_in_unsynced_tail(hole: bytes) -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 8)
    disk.damage(path_of(0), position_of(7), hole)
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.HOLE_IN_UNSYNCED_TAIL
    assert log.recovery.end_position == position_of(7)
    assert log.recovery.cut_bytes == 2 * RECORD_BYTES
    assert_holds(log, 6)
    append_to(log, 8, size=10)  # what lay behind the hole must not come back behind shorter records
    log.sync()
    log.close()
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.CLEAN_END
    assert [len(e.payload) for e in log.entries(6, 10_000)] == [300, 10, 10]


def test_empty_last_segment() -> None:
    """The process was killed between the creation of a segment and its first record."""
    disk = sim_disk()
    log = synced_log(disk, 12)
    end = log.end_position
    append_to(log, 13)
    assert len(segment_paths(disk)) == 2
    disk.kill_process()
    disk.damage(path_of(end), 0, bytes(RECORD_BYTES))
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.EMPTY_LAST_SEGMENT
    assert (log.recovery.segment, log.recovery.end_position) == (segment_name(end), end)
    assert_holds(log, 12)
    assert log.last_term == 1
    append_to(log, 20)
    log.sync()
    disk.lose_power()
    assert_holds(open_log(disk), 20)


def test_first_segment_without_a_record() -> None:
    """The process was killed before the genesis record of a new log was durable: nothing had been promised."""
    disk = sim_disk()
    disk.make_directory(DIRECTORY)
    disk.open(path_of(0), create=True).close()
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.EMPTY_LAST_SEGMENT
    assert_holds(log, 1)


def test_surplus_zeros_of_a_sealed_segment_are_trimmed() -> None:
    disk = sim_disk()
    synced_log(disk, 20).close()
    first, second = segment_paths(disk)
    size = len(disk.read_bytes(first))
    disk.cut(first, size + 1000)
    log = open_log(disk)
    assert log.recovery.trimmed_segments == (segment_name(0),)
    assert log.recovery.segment == second.removeprefix(f"{DIRECTORY}/")
    assert len(disk.read_bytes(first)) == size
    assert_holds(log, 20)


def test_leftovers_are_removed_and_unknown_files_left_alone() -> None:
    disk = sim_disk()
    synced_log(disk, 20).close()
    unknown = ["0.log", "notes.txt", segment_name(0) + ".bak"]
    for name in [PENDING_NAME, sidecar_name(999), *unknown]:
        disk.open(f"{DIRECTORY}/{name}", create=True).close()
    log = open_log(disk)
    assert log.recovery.removed_files == (sidecar_name(999), PENDING_NAME)
    assert log.recovery.ignored_files == tuple(sorted(unknown))
    assert set(unknown) <= set(disk.list(DIRECTORY))
    assert_holds(log, 20)


@pytest.mark.parametrize("damage", ["missing", "garbage", "truncated", "of another log"])
def test_bad_sidecar_is_rebuilt(damage: str) -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    path = f"{DIRECTORY}/{sidecar_name(0)}"
    good = disk.read_bytes(path)
    if damage == "missing":
        disk.remove(path)
    elif damage == "garbage":
        disk.damage(path, len(good) // 2, b"\x00\xff\x00")
    elif damage == "truncated":
        disk.cut(path, len(good) - 5)
    else:
        other = sim_disk()
        log = open_log(other)
        append_to(log, 40, term=7)  # same lengths, other terms
        log.close()
        disk.damage(path, 0, other.read_bytes(path))
    log = open_log(disk)
    assert [log.term_at(index) for index in range(1, 41)] == [0] + [1] * 39
    assert_holds(log, 40)
    assert disk.read_bytes(path) == good


@pytest.mark.parametrize("last_index", [60, 240])
def test_of_a_sealed_segment_its_first_header_is_read_and_no_more(last_index: int) -> None:
    """A start with a log of 20 GiB takes as long as one with a short log."""
    disk, reads = sim_disk(), Counter[str]()
    synced_log(disk, last_index).close()
    disk.on_operation = lambda operation, path: reads.update([path] * (operation == "pread"))
    open_log(disk, applied_index=last_index)
    *sealed, last_sealed, _active = segment_paths(disk)
    assert len(sealed) >= last_index // 15
    assert [reads[path] for path in sealed] == [1] * len(sealed)
    assert reads[last_sealed] == 2, "its last record begins the chain of the active one"
