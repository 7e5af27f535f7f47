"""The log's promises to its callers, on the simulated disk."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from store.log.commit_log import NOOP_RESERVE_BYTES, CommitLog
from store.log.errors import DiskFull, LogFailed
from store.log.record import HEADER_BYTES, KIND_ENTRY, KIND_NOOP, MAX_PAYLOAD_BYTES
from store.log.segment import PENDING_NAME, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, segment_name
from store.log.segment_files import DISK_RESERVE_BYTES, FILES_RESERVE
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from tests.unit.store.logs import (
    DIRECTORY,
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

# Appending and syncing


def test_append_is_visible_at_once_and_durable_after_sync() -> None:
    disk = sim_disk()
    log = open_log(disk)
    position = log.append(2, 1, KIND_ENTRY, b"first")
    assert position == HEADER_BYTES
    assert log.entry(2) == (b"first", 2, 1, KIND_ENTRY, position)
    assert (log.last_index, log.last_term, log.synced_index) == (2, 1, 1)
    assert log.sync() == log.synced_index == 2
    disk.lose_power()
    assert open_log(disk).entry(2).payload == b"first"


def test_refused_appends_change_nothing() -> None:
    disk = sim_disk()
    log = synced_log(disk, 4)
    operations = disk.operations
    for index, term, kind, payload in [
        (4, 1, KIND_ENTRY, b""),
        (6, 1, KIND_ENTRY, b""),
        (5, 0, KIND_ENTRY, b""),
        (5, 1, 4, b""),
        (5, 1, KIND_ENTRY, bytes(MAX_PAYLOAD_BYTES + 1)),
    ]:
        with pytest.raises(ValueError, match=r"follow|older|kind|payload"):
            log.append(index, term, kind, payload)
    assert disk.operations == operations
    assert_holds(log, 4)


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES_MIN - 1, SEGMENT_BYTES_MAX + 1])
def test_segment_bytes_out_of_range(segment_bytes: int) -> None:
    disk = sim_disk()
    with pytest.raises(ValueError, match="segment_bytes"):
        CommitLog.open(disk, DIRECTORY, segment_bytes=segment_bytes, cache_bytes=0)
    assert disk.operations == 0


def test_a_sync_without_new_records_touches_nothing() -> None:
    disk = sim_disk()
    log = synced_log(disk, 4)
    operations = disk.operations
    assert log.sync() == 4
    assert disk.operations == operations


def test_what_is_appended_during_a_sync_is_not_promised() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 4)
    once(disk, "fdatasync", path_of(0), lambda: append_to(log, 6))
    assert log.sync() == 4
    assert log.sync() == 6


def test_a_sync_that_began_before_a_rollover_promises_no_more_than_it_saw() -> None:
    """The rollover itself has synced everything in the sealed segment."""
    disk = sim_disk()
    log = open_log(disk)
    append_to(log, 10)
    once(disk, "fdatasync", path_of(0), lambda: append_to(log, 14))
    assert log.sync() == log.synced_index == 12
    assert [segment_name(0), segment_name(position_of(13))] == [p.rsplit("/")[-1] for p in segment_paths(disk)]
    disk.lose_power()
    assert open_log(disk).last_index >= 12


def test_a_sync_that_began_before_a_truncation_promises_nothing_above_it() -> None:
    disk = sim_disk()
    log = synced_log(disk, 3)
    append_to(log, 9)

    def truncate_and_append() -> None:
        log.truncate_from(5)
        append_to(log, 8, term=2, size=20)

    once(disk, "fdatasync", path_of(0), truncate_and_append)
    assert log.sync() == log.synced_index == 4
    assert log.synced_position == position_of(5)
    disk.kill_process()
    disk.damage(path_of(0), position_of(5) + 3, b"\xff")  # a torn record 5: never promised, so never called corrupt
    assert_holds(open_log(disk), 4)


def test_both_threads_learn_of_a_failed_write_back() -> None:
    """The kernel tells each open file once. If both shared one, the rollover's sync would eat the other's error."""
    disk = sim_disk()
    log = synced_log(disk, 4)
    append_to(log, 12)

    def roll_over() -> None:
        disk.fail_write_back(path_of(0))
        with pytest.raises(LogFailed):
            append_to(log, 13)

    once(disk, "fdatasync", path_of(0), roll_over)
    with pytest.raises(LogFailed):
        log.sync()
    assert log.synced_index == 4


def test_a_sync_that_succeeds_while_the_loop_fails_promises_nothing() -> None:
    disk = sim_disk()
    log = synced_log(disk, 4)
    append_to(log, 6)

    def fail_append() -> None:
        failing(disk, "pwrite", path_of(0))
        with pytest.raises(LogFailed):
            append_to(log, 7)

    once(disk, "fdatasync", path_of(0), fail_append)
    with pytest.raises(LogFailed, match="write"):
        log.sync()
    assert log.synced_index == 4


# Failures


@pytest.mark.parametrize(
    ("operation", "path", "act"),
    [
        ("pwrite", path_of(0), lambda log: append_to(log, 7)),
        ("fdatasync", path_of(0), lambda log: log.sync()),
        ("pwrite", f"{DIRECTORY}/{SYNCED_MARK_NAME}", lambda log: log.sync()),
        ("truncate", path_of(0), lambda log: log.truncate_from(4)),
        ("fdatasync", path_of(0), lambda log: log.truncate_from(4)),
        ("fdatasync", f"{DIRECTORY}/{SYNCED_MARK_NAME}", lambda log: log.truncate_from(4)),
        ("open", f"{DIRECTORY}/{PENDING_NAME}", lambda log: append_to(log, 14)),
        ("truncate", path_of(0), lambda log: append_to(log, 14)),
        ("fdatasync", path_of(0), lambda log: append_to(log, 14)),
        ("rename", path_of(position_of(13)), lambda log: append_to(log, 14)),
        ("sync_directory", DIRECTORY, lambda log: append_to(log, 14)),
    ],
)
def test_a_failure_poisons_the_log_for_ever(operation: str, path: str, act: Callable[[CommitLog], object]) -> None:
    disk = sim_disk()
    log = synced_log(disk, 5)
    append_to(log, 6)
    failing(disk, operation, path)
    with pytest.raises(LogFailed, match=operation.removeprefix("p").replace("_", ".")) as caught:
        act(log)
    assert disk.on_operation is None  # it did happen
    reason = str(caught.value)
    calls: list[Callable[[], object]] = [
        lambda: append_to(log, log.last_index + 1),
        log.sync,
        lambda: log.truncate_from(3),
    ]
    for call in calls:
        with pytest.raises(LogFailed) as again:
            call()
        assert str(again.value) == reason
    assert log.entry(3).payload == payload_of(3)  # reads go on
    log.close()
    assert not disk.open_files
    disk.lose_power()
    log = open_log(disk)
    assert log.last_index >= 3  # record 4 was truncated, perhaps; the others had been synced
    assert_holds(log, log.last_index)


@pytest.mark.parametrize("operation", ["open", "allocate", "fdatasync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_refuses_the_append_that_needs_a_segment_and_passes(operation: str, number: int) -> None:
    disk = sim_disk()
    log = synced_log(disk, 12)
    for _ in range(3):
        failing(disk, operation, f"{DIRECTORY}/{PENDING_NAME}", number)
        with pytest.raises(DiskFull):
            append_to(log, 13)
        assert PENDING_NAME not in disk.list(DIRECTORY)
        assert_holds(log, 12)
    append_to(log, 20)
    log.sync()
    disk.lose_power()
    assert_holds(open_log(disk), 20)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_refuses_the_append_that_needs_a_segment_and_passes(number: int) -> None:
    disk = sim_disk()
    log = synced_log(disk, 12)
    failing(disk, "open", f"{DIRECTORY}/{PENDING_NAME}", number)
    with pytest.raises(DiskFull, match="Too many open files"):
        append_to(log, 13)
    assert_holds(log, 12)
    append_to(log, 20)
    log.sync()
    disk.lose_power()
    assert_holds(open_log(disk), 20)


def test_inodes_are_kept_in_reserve_for_hard_state_and_index() -> None:
    disk = sim_disk()
    log = synced_log(disk, 12)
    disk.free_inodes = FILES_RESERVE
    with pytest.raises(DiskFull, match=f"{FILES_RESERVE} kept in reserve"):
        append_to(log, 13)
    assert_holds(log, 12)
    disk.free_inodes += 1
    append_to(log, 13)
    assert log.last_index == 13


def test_space_is_kept_in_reserve_for_hard_state_and_index() -> None:
    disk = sim_disk()
    log = synced_log(disk, 12)
    used = sum(len(disk.read_bytes(f"{DIRECTORY}/{name}")) for name in disk.list(DIRECTORY))
    segment = SEGMENT_BYTES + NOOP_RESERVE_BYTES
    disk.capacity_bytes = used + segment + DISK_RESERVE_BYTES - 1
    with pytest.raises(DiskFull, match="kept in reserve"):
        append_to(log, 13)
    disk.capacity_bytes += 1
    append_to(log, 13)
    assert log.last_index == 13


def test_noops_go_on_while_the_disk_is_full() -> None:
    """A new leader must append one, or nothing of what was committed could be confirmed."""
    disk = sim_disk()
    log = synced_log(disk, 12)
    disk.capacity_bytes = 0
    count = NOOP_RESERVE_BYTES // HEADER_BYTES
    for index in range(13, 13 + count):
        log.append(index, index, KIND_NOOP, b"")
    with pytest.raises(DiskFull):
        log.append(log.last_index + 1, log.last_term, KIND_ENTRY, payload_of(1))
    assert log.sync() == 12 + count
    disk.capacity_bytes = None
    append_to(log, 13 + count, term=log.last_term)
    log.sync()
    disk.lose_power()
    log = open_log(disk)
    assert log.last_index == 13 + count
    assert [e.kind for e in log.entries(13, 1 << 20)] == [KIND_NOOP] * count + [KIND_ENTRY]


def test_opening_on_a_full_disk_serves_reads_and_recovers() -> None:
    disk = sim_disk()
    synced_log(disk, 5).close()
    disk.cut(path_of(0), position_of(6))
    disk.capacity_bytes = 0
    log = open_log(disk)
    assert_holds(log, 5)
    with pytest.raises(DiskFull):
        append_to(log, 6)
    disk.capacity_bytes = None
    append_to(log, 6)
    log.sync()
    assert_holds(log, 6)


def test_a_new_log_on_a_full_disk() -> None:
    disk = sim_disk(capacity_bytes=10)
    with pytest.raises(DiskFull):
        open_log(disk)
    disk.capacity_bytes = None
    assert_holds(open_log(disk), 1)
