"""The front of a log is removed, and a log is made anew behind a base; opening finds the right base afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft.journal import Journal
from store.log.base import BEGINNING, FILE_NAME, TEMPORARY_NAME, LogBase, StoredBase, read_base, write_base
from store.log.commit_log import CommitLog
from store.log.dump import dump_records, verify_log
from store.log.errors import DiskFull, LogCorruption, LogFailed, LogTruncated
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY
from store.log.recovery import RecoveryCase
from store.log.segment import PENDING_NAME
from store.log.segment_files import remove_segments
from store.log.watermarks import Watermarks
from tests.simdisk import PowerLost, SimDisk
from tests.unit.store.logs import (
    DIRECTORY,
    append_to,
    failing,
    open_log,
    payload_of,
    position_of,
    restarted,
    segment_paths,
    sim_disk,
    synced_log,
)

BASE_PATH = f"{DIRECTORY}/{FILE_NAME}"
FAR = LogBase(1_000_000, 500, 3)


def dropped_log(disk: SimDisk, last_index: int = 40, before: int = 30) -> CommitLog:
    log = synced_log(disk, last_index)
    base = log.drop_before(before)
    assert 0 < base.index < before
    return log


def assert_kept(log: CommitLog, last_index: int) -> None:
    assert log.first_index == log.base.index + 1
    assert log.last_index == log.synced_index == last_index
    for index in range(max(log.first_index, 2), last_index + 1):
        assert log.entry(index).payload == payload_of(index)
        assert log.position_of(index) == position_of(index)


# Dropping


def test_whole_segments_before_an_index_go_with_their_sidecars() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    second, third = segment_paths(disk)[1:3]
    index = log.index_at(int(third.removeprefix(f"{DIRECTORY}/").removesuffix(".log")))
    assert log.drop_before(index - 1).index + 1 == log.index_at(int(second.removeprefix(f"{DIRECTORY}/")[:20]))
    base = log.drop_before(index)
    assert base == LogBase(position_of(index), index - 1, 1) == log.base
    assert segment_paths(disk)[0] == third
    sidecar = next(name for name in disk.list(DIRECTORY) if name.endswith(".idx"))
    assert third.endswith(sidecar.replace(".idx", ".log"))
    assert log.term_at(base.index) == 1
    assert_kept(log, 40)
    assert log.drop_before(index) == log.drop_before(1) == base


def test_what_was_removed_is_told_from_what_never_was() -> None:
    log = dropped_log(sim_disk())
    first = log.first_index
    for read in (log.entry, log.position_of, lambda index: log.entries(index, 100)):
        with pytest.raises(LogTruncated) as caught:
            read(first - 1)
        assert caught.value.first_index == first
    for position in (0, position_of(first - 1)):
        with pytest.raises(LogTruncated, match=f"begins at index {first}"):
            log.index_at(position)
    with pytest.raises(LogTruncated):
        log.term_at(log.base.index - 1)
    for index in (0, -1, log.last_index + 1):
        with pytest.raises(IndexError) as outside:
            log.entry(index)
        assert not isinstance(outside.value, LogTruncated)


def test_the_last_segment_stays_and_an_index_that_is_not_synced_is_refused() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    base = log.drop_before(41)
    assert len(segment_paths(disk)) == 1
    assert base.index < 40
    append_to(log, 42)
    with pytest.raises(ValueError, match="beyond what is synced, 40"):
        log.drop_before(42)
    log.sync()
    log.truncate_from(log.first_index)
    assert (log.last_index, log.last_term, log.end_position) == (base.index, base.term, base.position)
    append_to(log, 60)
    log.close()
    assert_kept(open_log(disk, applied_index=base.index), 60)


def test_a_full_disk_refuses_to_drop_and_changes_nothing() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    before = disk.list(DIRECTORY)
    failing(disk, "pwrite", f"{DIRECTORY}/{TEMPORARY_NAME}", 28)
    with pytest.raises(DiskFull):
        log.drop_before(30)
    assert log.base == BEGINNING
    assert [name for name in disk.list(DIRECTORY) if name != TEMPORARY_NAME] == before
    assert log.drop_before(30).index
    assert_kept(log, 40)


def test_a_base_that_may_not_be_durable_stops_the_log() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    segments = segment_paths(disk)
    failing(disk, "sync_directory", DIRECTORY)
    with pytest.raises(LogFailed):
        log.drop_before(30)
    assert segment_paths(disk) == segments
    with pytest.raises(LogFailed):
        log.append(41, 1, KIND_ENTRY, b"")


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_at_every_step_of_dropping(seed: int) -> None:
    bases = lost_at_every_step(seed, lambda log, _: log.drop_before(30), applied_index=29)
    assert bases[0] == BEGINNING
    assert bases[-1].index > 0
    assert len(set(bases)) == 2


def lost_at_every_step(
    seed: int, action: Callable[[CommitLog, SimDisk], object], applied_index: int, anew: LogBase | None = None
) -> list[LogBase]:
    """Return the bases found when power is lost, one operation later each time."""
    bases: list[LogBase] = []
    finished = False
    while not finished:
        disk = sim_disk(seed * 1000 + len(bases))
        log = synced_log(disk, 40)
        disk.lose_power_at(disk.operations + len(bases))
        try:
            action(log, disk)
            finished = True
            disk.on_operation = None
        except PowerLost:
            pass
        disk.lose_power()
        log = open_log(disk, applied_index=applied_index)
        if log.base != anew:
            assert_kept(log, 40)
        bases.append(log.base)
        append_to(log, log.last_index + 20, term=max(log.last_term, 1))
        log.close()
        open_log(disk, applied_index=applied_index).close()
    assert len(bases) > 5
    return bases


def test_dropping_before_the_base_is_durable_is_found_guilty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""

    def later(log: CommitLog, stored: StoredBase) -> None:
        remove_segments(log._disk, log._directory, stored.base.position)
        write_base(log._disk, log._directory, stored)
        log._stored_base = stored

    monkeypatch.setattr(CommitLog, "_set_base", later)
    with pytest.raises(LogCorruption, match="missing_segment"):
        lost_at_every_step(1, lambda log, _: log.drop_before(30), applied_index=29)


def test_segments_before_the_base_are_leftovers() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    start = int(segment_paths(disk)[2].removeprefix(f"{DIRECTORY}/").removesuffix(".log"))
    base = LogBase(start, log.index_at(start) - 1, 1)
    old = segment_paths(disk)[:2]
    log.close()
    write_base(disk, DIRECTORY, StoredBase(base))
    report = verify_log(disk, DIRECTORY)
    assert report.intact
    assert (report.base, report.first_index) == (base, base.index + 1)
    assert [f.segment for f in report.findings] == [path.removeprefix(f"{DIRECTORY}/") for path in old]
    log = open_log(disk, applied_index=base.index)
    assert set(log.recovery.removed_files) >= {path.removeprefix(f"{DIRECTORY}/") for path in old}
    assert_kept(log, 40)


# Opening what is not as it should be


def refused(disk: SimDisk, case: RecoveryCase, applied_index: int = 29) -> LogCorruption:
    before = {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)}
    with pytest.raises(LogCorruption) as caught:
        open_log(disk, applied_index=applied_index)
    assert caught.value.case == case.value
    assert {name: disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.list(DIRECTORY)} == before
    return caught.value


def test_a_first_segment_that_is_not_where_the_base_is_stops_the_node() -> None:
    disk = sim_disk()
    dropped_log(disk).close()
    gone = segment_paths(disk)[0]
    disk.unlink(gone)
    disk.unlink(gone.replace(".log", ".idx"))
    error = refused(disk, RecoveryCase.MISSING_SEGMENT)
    assert gone.endswith(error.segment)


def test_a_log_without_segments_behind_a_base_stops_the_node() -> None:
    disk = sim_disk()
    dropped_log(disk).close()
    for name in disk.list(DIRECTORY):
        if name != FILE_NAME:
            disk.unlink(f"{DIRECTORY}/{name}")
    disk.open(f"{DIRECTORY}/synced", create=True).allocate(0, 8192)
    refused(disk, RecoveryCase.MISSING_SEGMENT)


def test_a_lost_base_stops_the_node() -> None:
    disk = sim_disk()
    dropped_log(disk).close()
    disk.unlink(BASE_PATH)
    refused(disk, RecoveryCase.MISSING_SEGMENT)


def test_every_damaged_byte_of_the_base_stops_the_node() -> None:
    for at in range(len(_base_bytes())):
        disk = sim_disk()
        dropped_log(disk).close()
        disk.damage(BASE_PATH, at, bytes([disk.read_bytes(BASE_PATH)[at] ^ 0x40]))
        refused(disk, RecoveryCase.DAMAGED_BASE)
        report = verify_log(disk, DIRECTORY)
        assert not report.intact
        with pytest.raises(LogCorruption):
            list(dump_records(disk, DIRECTORY))


def _base_bytes() -> bytes:
    disk = sim_disk()
    dropped_log(disk)
    return disk.read_bytes(BASE_PATH)


def test_a_state_that_lacks_what_was_removed_stops_the_node() -> None:
    disk = sim_disk()
    log = dropped_log(disk)
    base = log.base
    log.close()
    refused(disk, RecoveryCase.INDEX_BEHIND_BASE, applied_index=base.index - 1)
    assert_kept(open_log(disk, applied_index=base.index), 40)


# Made anew


def test_a_log_goes_on_behind_another_base() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    append_to(log, 44)
    log = restarted(log, disk, FAR, installed_index=510)
    assert log.recovery.case is RecoveryCase.RESTARTED
    assert (log.first_index, log.last_index, log.last_term, log.synced_index) == (501, 500, 3, 500)
    assert (log.end_position, log.term_at(500)) == (1_000_000, 3)
    with pytest.raises(LogTruncated):
        log.entry(44)
    log.append(501, 4, KIND_ENTRY, b"next")
    assert log.sync() == 501
    log.close()
    log = open_log(disk, applied_index=510)  # which was installed, and is not a synced tail that was lost
    assert log.recovery.case is RecoveryCase.CLEAN_END
    assert log.entry(501).payload == b"next"
    log.close()
    refused(disk, RecoveryCase.SYNCED_TAIL_LOST, applied_index=511)


def test_a_log_that_is_empty_behind_its_base_opens() -> None:
    disk = sim_disk()
    restarted(synced_log(disk, 10), disk, FAR)
    disk.lose_power()
    log = open_log(disk, applied_index=500)
    assert log.recovery.case is RecoveryCase.EMPTY_LAST_SEGMENT
    assert (log.base, log.last_index) == (FAR, 500)
    log.truncate_from(501)
    log.append(501, 3, KIND_ENTRY, b"")


def test_a_base_within_the_old_log_keeps_nothing_of_it() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    base = LogBase(log.position_of(21), 20, 2)
    log = restarted(log, disk, base)
    append_to(log, 22, term=5)
    log.sync()
    disk.lose_power()
    log = open_log(disk, applied_index=20)
    assert (log.last_index, log.term_at(21), log.term_at(20)) == (22, 5, 2)


@pytest.mark.parametrize("seed", range(6))
def test_power_loss_at_every_step_of_making_a_log_anew(seed: int) -> None:
    """`applied_index` lies behind neither base, as it must for whoever restarts a log."""
    anew = LogBase(7_000, 30, 1)
    bases = lost_at_every_step(seed, lambda log, disk: restarted(log, disk, anew, 40), applied_index=40, anew=anew)
    assert set(bases) == {BEGINNING, anew}
    assert bases[-1] == anew


def test_the_file_alone_restarts_a_log_that_is_not_open() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    write_base(disk, DIRECTORY, StoredBase(FAR, 510, restarting=True))
    assert verify_log(disk, DIRECTORY).intact
    log = open_log(disk, applied_index=510)
    assert log.recovery.case is RecoveryCase.RESTARTED
    assert len(log.recovery.removed_files) > 4
    assert PENDING_NAME not in disk.list(DIRECTORY)
    assert read_base(disk, DIRECTORY) == StoredBase(FAR, 510)
    assert log.last_index == 500


# What Raft makes of it


def test_the_journal_begins_with_the_base() -> None:
    disk = sim_disk()
    log = dropped_log(disk)
    journal = Journal(log, HardState(disk, "/data/hard_state"), 40, Watermarks.open(disk, "/data"))
    base = log.base
    assert len(journal) == 40 - base.index + 1
    assert journal[0] == (b"", base.index, 1)
    assert journal[1:3] == [(b"", base.index + 1, 1), (b"", base.index + 2, 1)]
    assert journal[-1] == (b"", 40, 1)
    log = restarted(log, disk, FAR)
    journal = Journal(log, HardState(disk, "/data/hard_state"), 500, Watermarks.open(disk, "/data"))
    assert (len(journal), journal[0], journal[-1]) == (1, (b"", 500, 3), (b"", 500, 3))
