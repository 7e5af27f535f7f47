"""Reading ahead in the log: what follows is fetched before it is read, as its reader stands while it reads."""

from __future__ import annotations

import pytest

from store.descriptors import SPARES
from store.log import reader
from store.log.commit_log import CommitLog
from store.log.record import HEADER_BYTES
from tests.simdisk import SimDisk
from tests.unit.store.logs import open_log, payload_of, sim_disk, synced_log

RECORD_BYTES = HEADER_BYTES + 300
RECORDS = 60
AHEAD_BYTES = 6_000
"""More than a segment, so that reading it on needs the one after the next."""


@pytest.fixture
def disk() -> SimDisk:
    return sim_disk()


@pytest.fixture
def log(disk: SimDisk, monkeypatch: pytest.MonkeyPatch) -> CommitLog:
    """Return a log of several segments, of which nothing is in memory."""
    monkeypatch.setattr(reader, "FETCHED_AHEAD_BYTES", AHEAD_BYTES)
    synced_log(disk, RECORDS).close()
    return open_log(disk, cache_bytes=0)


def fetched_of(disk: SimDisk) -> list[tuple[int, int]]:
    """Return the ranges of the log that were fetched, as positions."""
    starts = [(int(path.rpartition("/")[2].partition(".")[0]), offset, length) for path, offset, length in disk.fetched]
    return [(start + offset, start + offset + length) for start, offset, length in starts]


def test_what_follows_is_fetched_across_segments_while_the_log_is_read_on(disk: SimDisk, log: CommitLog) -> None:
    index, read_bytes = 2, 0
    while index + 10 <= RECORDS - AHEAD_BYTES // RECORD_BYTES:
        disk.fetched.clear()
        entries = log.entries(index, 10 * RECORD_BYTES)
        assert [entry.payload for entry in entries] == [payload_of(entry.index) for entry in entries]
        index, read_bytes = entries[-1].index + 1, read_bytes + RECORD_BYTES * len(entries)
        ranges = fetched_of(disk)
        end = log.position_of(index)
        assert ranges[-1][1] == end + AHEAD_BYTES
        reached = end
        for begin, until in [each for each in ranges if each[1] > end]:
            assert begin <= reached
            reached = max(reached, until)
        assert reached == end + AHEAD_BYTES, "without a gap"
    assert read_bytes > 2 * 4_096


def test_single_records_and_what_is_in_memory_have_nothing_fetched(disk: SimDisk, log: CommitLog) -> None:
    log.entry(5)
    log.close()
    warm = synced_log(disk, RECORDS + 10)
    disk.fetched.clear()
    warm.entries(RECORDS + 2, 1 << 20)
    assert not disk.fetched


def test_a_later_segment_that_cannot_be_opened_is_no_error(disk: SimDisk, log: CommitLog) -> None:
    first = [entry.index for entry in log.entries(2, 3 * RECORD_BYTES)]
    log.close_sealed()
    log.entry(2)  # the first segment is open

    disk.descriptors = 0
    disk.fetched.clear()
    assert [entry.index for entry in log.entries(2, 3 * RECORD_BYTES)] == first == [2, 3, 4]
    assert disk.fetched


def test_no_descriptor_of_the_reserve_is_taken_for_what_is_fetched(disk: SimDisk, log: CommitLog) -> None:
    log.close_sealed()
    log.entry(2)  # the first segment is open
    disk.descriptors = SPARES
    log.entries(2, 3 * RECORD_BYTES)
    assert disk.descriptors == SPARES
    disk.descriptors = SPARES + 1
    log.entries(2, 3 * RECORD_BYTES)
    assert disk.descriptors == SPARES
