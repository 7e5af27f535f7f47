"""The recovery table's refusals: each case stops the node, names the place, and changes nothing."""

from __future__ import annotations

import pytest

from store.log.errors import LogCorruption, UnsupportedLog
from store.log.record import HEADER_BYTES, KIND_ENTRY, encode_header, parse_header
from store.log.recovery import RecoveryCase
from store.log.segment import segment_name, sidecar_name, start_of
from tests.simdisk import PowerLost, SimDisk
from tests.unit.store.logs import (
    DIRECTORY,
    append_to,
    assert_holds,
    forget_synced_mark,
    killed_with_unsynced,
    open_log,
    path_of,
    payload_of,
    position_of,
    segment_paths,
    sim_disk,
    synced_log,
)

RECORD_BYTES = HEADER_BYTES + 300


def corruption(disk: SimDisk, applied_index: int = 0) -> LogCorruption:
    """Check that opening refuses, leaves no file open and leaves the log as it is. Returns the error."""
    before = {path: disk.read_bytes(path) for path in segment_paths(disk)}
    with pytest.raises(LogCorruption) as caught:
        open_log(disk, applied_index=applied_index)
    assert {path: disk.read_bytes(path) for path in segment_paths(disk)} == before
    assert not disk.open_files
    message = str(caught.value)
    for said in (caught.value.segment, f"position {caught.value.position}", "then remove the directory", "Never edit"):
        assert said in message
    return caught.value


def test_corrupt_synced_record_by_the_synced_mark() -> None:
    """The record is the last one of an idle node: no later record can testify that it was synced."""
    disk = sim_disk()
    synced_log(disk, 6)
    disk.kill_process()
    disk.damage(path_of(0), position_of(6) + 100, b"\x00")
    error = corruption(disk)
    assert (error.case, error.segment, error.position, error.index) == (
        "corrupt_synced_record",
        segment_name(0),
        position_of(6),
        6,
    )


def test_corrupt_synced_record_by_a_later_record() -> None:
    disk = sim_disk()
    killed_with_unsynced(disk, 6, 8)
    forget_synced_mark(disk)
    disk.damage(path_of(0), position_of(5), b"\x00")
    error = corruption(disk)
    assert (error.case, error.position, error.index) == ("corrupt_synced_record", position_of(5), 5)
    assert f"the record at {position_of(7)} was written when {position_of(7)} was synced" in str(error)


def test_corrupt_synced_record_by_what_was_applied() -> None:
    disk = sim_disk()
    synced_log(disk, 6)
    disk.kill_process()
    forget_synced_mark(disk)
    disk.damage(path_of(0), position_of(6) + 100, b"\x00")
    error = corruption(disk, applied_index=6)
    assert (error.case, error.position, error.index) == ("corrupt_synced_record", position_of(6), 6)


def test_without_any_evidence_the_same_damage_is_a_torn_tail() -> None:
    """The counter-proof to the three tests above: without the evidence the tail is cut."""
    disk = sim_disk()
    synced_log(disk, 6)
    disk.kill_process()
    forget_synced_mark(disk)
    disk.damage(path_of(0), position_of(6) + 100, b"\x00")
    log = open_log(disk, applied_index=5)
    assert log.recovery.case is RecoveryCase.TORN_TAIL
    assert_holds(log, 5)


@pytest.mark.parametrize("mark_lost", [False, True])
def test_synced_tail_lost(mark_lost: bool) -> None:
    """The last records read as zeros, or the file ends before them."""
    for cut in (False, True):
        disk = sim_disk()
        synced_log(disk, 8).close()
        if mark_lost:
            forget_synced_mark(disk)
        if cut:
            disk.cut(path_of(0), position_of(7))
        else:
            disk.damage(path_of(0), position_of(7), bytes(2 * RECORD_BYTES))
        error = corruption(disk, applied_index=7)
        assert (error.case, error.position, error.index) == ("synced_tail_lost", position_of(7), 7)


def test_log_that_ends_before_what_was_applied() -> None:
    disk = sim_disk()
    synced_log(disk, 8).close()
    error = corruption(disk, applied_index=9)
    assert (error.case, error.index) == ("synced_tail_lost", 9)
    assert "index 9 was applied" in str(error)


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_missing_segment(removed: int) -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    paths = segment_paths(disk)
    assert len(paths) == 4
    start = start_of(paths[removed].removeprefix(f"{DIRECTORY}/"), ".log")
    disk.remove(paths[removed])
    error = corruption(disk)
    assert (error.case, error.segment, error.position) == ("missing_segment", segment_name(start or 0), start)


def test_missing_last_segment() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    disk.remove(segment_paths(disk)[-1])
    error = corruption(disk)
    assert error.case == "synced_tail_lost"


@pytest.mark.parametrize("applied_index", [0, 3])
def test_all_segments_missing(applied_index: int) -> None:
    disk = sim_disk()
    synced_log(disk, 8).close()
    disk.remove(path_of(0))
    if applied_index:
        forget_synced_mark(disk)
    assert corruption(disk, applied_index).case == "missing_segment"


def test_segment_longer_than_expected() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    first, second, *_ = segment_paths(disk)
    size = len(disk.read_bytes(first))
    disk.damage(first, size, payload_of(1))
    error = corruption(disk)
    assert (error.case, error.segment) == ("segment_longer_than_expected", segment_name(0))
    assert second.endswith(segment_name(error.position))


def test_segment_shorter_than_expected() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    disk.cut(path_of(0), position_of(5) + 20)
    error = corruption(disk)
    assert (error.case, error.position, error.index) == ("segment_shorter_than_expected", position_of(5), 5)


def test_damaged_first_record_of_a_sealed_segment() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    second = segment_paths(disk)[1]
    disk.damage(second, 0, b"\x00")
    assert corruption(disk).case == "corrupt_synced_record"


def test_damage_inside_a_sealed_segment_is_found_by_reading() -> None:
    """Opening does not read sealed segments; no read returns wrong bytes for it."""
    disk = sim_disk()
    synced_log(disk, 40).close()
    disk.damage(path_of(0), position_of(5) + 200, b"\x00")
    log = open_log(disk)
    assert log.entry(4).payload == payload_of(4)
    for read in (lambda: log.entry(5), lambda: log.entries(4, 10_000)):
        with pytest.raises(LogCorruption) as caught:
            read()
        assert (caught.value.segment, caught.value.position, caught.value.index) == (segment_name(0), position_of(5), 5)
    assert log.entry(6).payload == payload_of(6)


def test_gap_between_the_indexes_of_two_segments() -> None:
    """Each segment is whole, but the second was not written behind the first."""
    disk = sim_disk()
    synced_log(disk, 40).close()
    second = segment_paths(disk)[1]
    first = parse_header(disk.read_bytes(second))
    assert first is not None
    disk.damage(second, 0, encode_header(*first._replace(index=first.index + 1)))
    log = open_log(disk)
    with pytest.raises(LogCorruption, match=f"begins with index {first.index + 1}"):
        log.entry(5)


@pytest.mark.parametrize("seed", range(10))
def test_a_name_that_was_not_durable_when_the_process_died(seed: int) -> None:
    """The process was killed between the rename of a new segment and the sync of the directory: later records are
    appended to that segment.
    """
    disk = sim_disk(seed)
    log = synced_log(disk, 12)

    def die(operation: str, path: str) -> None:
        if operation == "sync_directory":
            disk.on_operation = None
            disk.kill_process()
            raise PowerLost

    disk.on_operation = die
    with pytest.raises(PowerLost):
        append_to(log, 13)
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.EMPTY_LAST_SEGMENT
    append_to(log, 20)
    log.sync()
    disk.lose_power()
    assert_holds(open_log(disk), 20)


def test_sidecar_of_a_damaged_segment_is_not_rebuilt() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    disk.damage(path_of(0), position_of(5) + 200, b"\x00")
    disk.remove(f"{DIRECTORY}/{sidecar_name(0)}")
    log = open_log(disk)
    with pytest.raises(LogCorruption, match="index 5"):
        log.entry(4)


def write_record(disk: SimDisk, position: int, header: bytes, payload: bytes) -> None:
    disk.damage(path_of(0), position, header + payload)


@pytest.mark.parametrize(("index", "term"), [(6, 1), (8, 1), (7, 0)])
def test_out_of_sequence(index: int, term: int) -> None:
    """A record with a right CRC and a wrong place in the order was never torn."""
    disk = sim_disk()
    synced_log(disk, 6).close()
    end = position_of(7)
    write_record(disk, end, encode_header(KIND_ENTRY, 0, 0, index, term, end, 0), b"")
    error = corruption(disk)
    assert (error.case, error.position, error.index) == ("out_of_sequence", end, index)


def test_record_of_a_newer_version_is_never_cut() -> None:
    disk = sim_disk()
    synced_log(disk, 6).close()
    end = position_of(7)
    write_record(disk, end, encode_header(9, 0, 0, 7, 1, end, 0), b"")
    before = disk.read_bytes(path_of(0))
    with pytest.raises(UnsupportedLog, match=r"kind 9.*Start the version that wrote it"):
        open_log(disk)
    assert disk.read_bytes(path_of(0)) == before
    assert not disk.open_files


def test_record_of_a_newer_version_in_a_sealed_segment_that_was_cut_off() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    write_record(disk, position_of(5), encode_header(9, 0, 0, 5, 1, position_of(5), 0), b"")
    disk.cut(path_of(0), position_of(8))
    with pytest.raises(UnsupportedLog, match="kind 9"):
        open_log(disk)
    assert not disk.open_files


def test_record_copied_to_another_place_is_no_record() -> None:
    """The record is whole and its CRC right, but its header names another position."""
    disk = sim_disk()
    killed_with_unsynced(disk, 5, 5)
    record = disk.read_bytes(path_of(0))[position_of(5) : position_of(6)]
    write_record(disk, position_of(6), record, b"")
    log = open_log(disk)
    assert log.recovery.case is RecoveryCase.TORN_TAIL
    assert_holds(log, 5)
