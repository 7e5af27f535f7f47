"""Segments, their files and handles, and reads from them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from store.log import commit_log
from store.log.commit_log import NOOP_RESERVE_BYTES, Entry
from store.log.entry_cache import ENTRY_OVERHEAD_BYTES, ReadCache, TailCache
from store.log.errors import DiskError, LogFailed
from store.log.record import KIND_ENTRY
from store.log.segments import LOADED_SEGMENTS_MAX
from tests.unit.store.logs import (
    SEGMENT_BYTES,
    append_to,
    assert_holds,
    failing,
    once,
    open_log,
    path_of,
    payload_of,
    position_of,
    segment_paths,
    sim_disk,
    synced_log,
)

# Segments


def test_only_the_last_segment_is_unsynced_and_preallocated() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 40)
    paths = segment_paths(disk)
    assert len(paths) == 4
    assert log.synced_index == 34
    sizes = [len(disk.read_bytes(path)) for path in paths]
    sealed = [position_of(b) - position_of(a) for a, b in ((13, 24), (24, 35))]
    assert sizes == [position_of(13), *sealed, SEGMENT_BYTES + NOOP_RESERVE_BYTES]


def test_a_record_larger_than_a_segment_gets_one_of_its_own() -> None:
    disk = sim_disk()
    log = synced_log(disk, 3)
    large = bytes(range(256)) * 40
    log.append(4, 1, KIND_ENTRY, large)
    log.append(5, 1, KIND_ENTRY, b"after")
    log.sync()
    assert len(segment_paths(disk)) == 3
    disk.lose_power()
    log = open_log(disk)
    assert [e.payload for e in log.entries(4, 1 << 20)] == [large, b"after"]


def test_a_large_payload_is_written_without_being_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "_JOIN_BYTES_MAX", 200)
    disk = sim_disk()
    log = synced_log(disk, 30)
    assert_holds(log, 30)
    disk.lose_power()
    assert_holds(open_log(disk), 30)


def test_truncation_goes_over_segments_and_is_durable() -> None:
    for seed in range(20):
        disk = sim_disk(seed)
        log = synced_log(disk, 40)
        log.truncate_from(8)
        assert (log.last_index, log.last_term, log.synced_index, log.end_position) == (7, 1, 7, position_of(8))
        assert segment_paths(disk) == [path_of(0)]
        with pytest.raises(IndexError):
            log.entry(8)
        disk.lose_power()
        log = open_log(disk)
        assert_holds(log, 7)
        append_to(log, 40, term=2)
        log.sync()
        disk.lose_power()
        log = open_log(disk)
        assert_holds(log, 40)
        assert [log.term_at(index) for index in (1, 7, 8, 40)] == [0, 1, 2, 2]


def test_truncation_to_the_first_record_of_a_segment() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    log.truncate_from(13)
    assert (log.last_index, log.last_term) == (12, 1)
    assert log.entry(12).payload == payload_of(12)
    disk.lose_power()
    assert_holds(open_log(disk), 12)


def test_truncation_bounds() -> None:
    disk = sim_disk()
    log = synced_log(disk, 5)
    for index in (0, 1, 7):
        with pytest.raises(ValueError, match="cannot truncate"):
            log.truncate_from(index)
    log.truncate_from(6)
    assert_holds(log, 5)
    log.truncate_from(2)
    assert_holds(log, 1)


def test_open_files_are_bounded_and_all_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.segments.LOADED_SEGMENTS_MAX", 3)
    assert LOADED_SEGMENTS_MAX > 3
    disk = sim_disk()
    log = synced_log(disk, 200)
    log.close()
    assert not disk.open_files
    log = open_log(disk, cache_bytes=0)
    for index in [*range(2, 201), *range(200, 1, -7)]:
        assert log.entry(index).payload == payload_of(index)
        assert len(disk.open_files) <= 3 + 3  # sealed; active, its sync handle, synced mark
    log.close()
    assert not disk.open_files


def test_a_sync_handle_is_not_closed_under_a_running_sync() -> None:
    """Two rollovers happen during one `fdatasync`; the simulated disk raises when a closed file is used or closed
    twice.
    """
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 12)
    once(disk, "fdatasync", path_of(0), lambda: append_to(log, 40))
    log.sync()
    append_to(log, 60)
    log.sync()
    log.close()
    assert not disk.open_files
    assert_holds(open_log(disk), 60)


# Reading


@pytest.mark.parametrize("cache_bytes", [0, 1500, 1 << 20])
def test_reads_are_the_same_from_memory_and_from_disk(cache_bytes: int) -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    log = open_log(disk, cache_bytes=cache_bytes)
    append_to(log, 50)
    assert [e.index for e in log.entries(1, 1 << 20)] == list(range(1, 51))
    assert [e.payload for e in log.entries(38, 1 << 20, 44)] == [payload_of(i) for i in range(38, 45)]
    assert [e.index for e in log.entries(39, 0)] == [39]
    assert [e.index for e in log.entries(39, 2 * 352)] == [39, 40]
    assert [e.index for e in log.entries(39, 2 * 352 - 1)] == [39]
    for index in range(2, 51):
        assert log.entry(log.index_at(log.position_of(index))).payload == payload_of(index)


def test_the_tail_is_read_from_memory() -> None:
    disk = sim_disk()
    log = synced_log(disk, 40)
    operations = disk.operations
    assert [e.index for e in log.entries(2, 1 << 20)] == list(range(2, 41))
    assert log.entry(log.index_at(position_of(7))).payload == payload_of(7)
    assert disk.operations == operations


def test_an_entry_read_from_disk_is_kept_for_the_next_reader() -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    log = open_log(disk)
    log.entry(7)
    operations = disk.operations
    assert log.entry(7).payload == payload_of(7)
    assert disk.operations == operations


@pytest.mark.parametrize("cache_bytes", [0, 1 << 14, 1 << 20])
def test_what_was_truncated_is_not_remembered(cache_bytes: int) -> None:
    disk = sim_disk()
    synced_log(disk, 40).close()
    log = open_log(disk, cache_bytes=cache_bytes)
    for index in range(8, 15):
        log.entry(index)
    log.truncate_from(8)
    for index in range(8, 61):
        log.append(index, 2, KIND_ENTRY, payload_of(index + 100))
    assert [log.entry(index).payload for index in range(8, 61)] == [payload_of(index + 100) for index in range(8, 61)]


def test_a_place_is_told_without_a_read_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.log.segments.LOADED_SEGMENTS_MAX", 1)
    disk = sim_disk()
    log = open_log(disk, cache_bytes=1)
    append_to(log, 60)
    log.entry(20)
    operations: list[str] = []
    disk.on_operation = lambda operation, path: operations.append(operation)
    known = [index for index in range(2, 61) if log.places.place_of(index) is not None]
    assert known == [*range(13, 24), *range(57, 61)], "of the last segment, and of the one read last"
    assert [log.places.place_of(index) for index in known] == [(1, position_of(index)) for index in known]
    assert not operations
    disk.on_operation = None
    log.drop_before(24)
    assert log.places.place_of(20) is None


def test_caches_keep_to_their_capacity() -> None:
    """Truncated entries no longer count."""
    entries = [Entry(payload_of(i, 100), i, 1, KIND_ENTRY, 0) for i in range(50)]
    room = 10 * (100 + ENTRY_OVERHEAD_BYTES)
    tail, recent = TailCache(room), ReadCache(room)
    for entry in [*entries[:30], *entries[25:]]:
        if entry.index == 25:
            tail.truncate(25)
        tail.append(entry)
        recent.add(entry)
    assert [i for i in range(50) if tail.get(i)] == list(range(40, 50))
    assert sum(1 for i in range(50) if recent.get(i)) == 10
    tail.truncate(0)
    tail.append(Entry(bytes(room), 0, 1, KIND_ENTRY, 0))
    recent.add(Entry(bytes(room), 60, 1, KIND_ENTRY, 0))
    assert tail.get(0) is None
    assert recent.get(60) is None
    tail.append(entries[1])
    assert tail.get(1) is entries[1]


def test_reads_outside_the_log_are_refused() -> None:
    log = synced_log(sim_disk(), 5)
    reads: list[Callable[[], object]] = [
        lambda: log.entry(0),
        lambda: log.entry(6),
        lambda: log.term_at(6),
        lambda: log.entries(6, 100),
        lambda: log.entries(0, 100, 3),
        lambda: log.position_of(6),
    ]
    for read in reads:
        with pytest.raises(IndexError, match="holds 1 to 5"):
            read()
    for position in (-1, 1, position_of(3) + 1, position_of(6), 1 << 40):
        with pytest.raises(LookupError, match="no record begins"):
            log.index_at(position)


def test_close_makes_everything_durable() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 6)
    log.close()
    disk.lose_power()
    log = open_log(disk)
    assert_holds(log, 6)
    assert log.recovery.rewritten_bytes == 0


def test_close_reports_a_failed_sync_and_closes_all_files() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 6)
    failing(disk, "fdatasync", path_of(0))
    with pytest.raises(LogFailed):
        log.close()
    assert not disk.open_files


def test_disk_errors_while_opening_are_passed_on() -> None:
    disk = sim_disk()
    synced_log(disk, 5).close()
    failing(disk, "pread", path_of(0))
    with pytest.raises(DiskError, match="pread"):
        open_log(disk)
    assert not disk.open_files
