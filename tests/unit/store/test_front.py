"""The front of a log is cut within its first segment; a crash at any step is finished, or taken back."""

import pytest

from store.log.base import LogBase, StoredBase, read_base
from store.log.commit_log import CommitLog
from store.log.front import cut_front, finish_front
from tests.simdisk import PowerLost, SimDisk
from tests.unit.store.logs import DIRECTORY, open_log, payload_of, position_of, sim_disk, synced_log

LAST = 40


def stored_base(log: CommitLog, disk: SimDisk) -> StoredBase:
    base = LogBase(log.position_of(3), 2, log.term_at(2))
    return read_base(disk, DIRECTORY)._replace(base=base, link=log.chain.at(2))


def assert_begins_behind_the_second(log: CommitLog) -> None:
    assert (log.base.index, log.first_index, log.last_index) == (2, 3, LAST)
    for index in range(3, LAST + 1):
        assert log.entry(index).payload == payload_of(index)
        assert log.position_of(index) == position_of(index)


def test_the_log_begins_behind_the_record() -> None:
    disk = sim_disk()
    log = synced_log(disk, LAST)
    stored, end, chain = stored_base(log, disk), log.end_position, log.chain.last
    log.close()
    cut_front(disk, DIRECTORY, stored, end)
    log = open_log(disk, applied_index=LAST)
    assert_begins_behind_the_second(log)
    assert log.chain.last == chain
    log.close()


def test_a_crash_at_any_step_leaves_what_can_be_finished() -> None:
    steps = steps_of_a_cut()
    assert steps > 10
    for step in range(steps):
        disk = sim_disk(step)
        log = synced_log(disk, LAST)
        stored, end = stored_base(log, disk), log.end_position
        log.close()
        disk.lose_power_at(disk.operations + step)
        with pytest.raises(PowerLost):
            cut_front(disk, DIRECTORY, stored, end)
        finish_front(disk, DIRECTORY)
        if read_base(disk, DIRECTORY).base.index != 2:  # it was taken back: the log is as it was, and it is done again
            log = open_log(disk, applied_index=LAST)
            assert (log.base.index, log.last_index) == (0, LAST)
            log.close()
            cut_front(disk, DIRECTORY, stored, end)
        log = open_log(disk, applied_index=LAST)
        assert_begins_behind_the_second(log)
        log.close()


def steps_of_a_cut() -> int:
    """Return the number of operations on the disk that a cut needs."""
    disk = sim_disk()
    log = synced_log(disk, LAST)
    stored, end = stored_base(log, disk), log.end_position
    log.close()
    before = disk.operations
    cut_front(disk, DIRECTORY, stored, end)
    return disk.operations - before
