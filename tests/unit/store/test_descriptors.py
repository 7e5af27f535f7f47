"""The log goes on without file descriptors as long as its spare ones last, and changes nothing by halves without them.

The descriptors of this process are really used up; all files are real.
"""

import contextlib
import errno
import os
import resource
from pathlib import Path

import pytest

from store.descriptors import SPARES, SpareDescriptors, are_free, count_free
from store.index.index import FLUSH_DESCRIPTORS, Index
from store.log.commit_log import CommitLog
from store.log.disk import PosixDisk
from store.log.errors import DiskFull
from store.log.extents import read_record
from store.log.hard_state import HardState
from store.log.scrub import SegmentScrub
from store.log.segment import SEGMENT_BYTES_MIN
from store.log.segment_files import STEP_DESCRIPTORS
from store.log.segments import OPEN_SEGMENTS_MAX
from store.log.watermarks import Watermarks
from tests.descriptors import without_descriptors
from tests.unit.store.logs import append_to, assert_holds

LEFT = range(8)


def log_on(disk: PosixDisk, path: Path, applied_index: int = 0) -> CommitLog:
    return CommitLog.open(
        disk, str(path / "log"), segment_bytes=SEGMENT_BYTES_MIN, cache_bytes=0, applied_index=applied_index
    )


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_the_log_rolls_over_or_changes_nothing(tmp_path: Path, left: int) -> None:
    """A step that stopped half-way would end the node: the segment is sealed, and there is no next one."""
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 40)
    last = log.last_index
    with without_descriptors(left):
        with contextlib.suppress(DiskFull):
            append_to(log, 200)
        last = log.last_index
    append_to(log, last + 40)
    log.close()
    assert_holds(log_on(PosixDisk(), tmp_path), last + 40)


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_the_log_is_cut_or_stays(tmp_path: Path, left: int) -> None:
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 200)
    log.sync()
    log.close_sealed()
    with without_descriptors(left):
        try:
            log.truncate_from(20)
        except DiskFull:
            assert log.last_index == 200
    kept = log.last_index
    assert kept in (19, 200)
    append_to(log, kept + 10)
    log.close()
    assert_holds(log_on(PosixDisk(), tmp_path), kept + 10)


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_old_segments_are_removed_or_stay(tmp_path: Path, left: int) -> None:
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 200)
    log.sync()
    with without_descriptors(left):
        try:
            log.drop_before(150)
        except DiskFull:
            assert log.first_index == 1
    assert log.drop_before(150).index > 1
    log.close()
    assert log_on(PosixDisk(), tmp_path, applied_index=200).last_index == 200


@pytest.mark.parametrize("left", LEFT)
def test_whatever_is_left_the_vote_is_noted_or_not_given(tmp_path: Path, left: int) -> None:
    path = str(tmp_path / "hard_state")
    state = HardState(PosixDisk(), path)
    state.set(1, None)
    with without_descriptors(left):
        try:
            state.set(2, 3)
        except DiskFull:
            assert (state.term, state.voted_for) == (1, None)
    state.set(2, 3)
    assert HardState(PosixDisk(), path).voted_for == 3


def test_with_spare_descriptors_the_log_goes_on(tmp_path: Path) -> None:
    spares = SpareDescriptors(SPARES)
    disk = PosixDisk(spares)
    log, state = log_on(disk, tmp_path), HardState(disk, str(tmp_path / "hard_state"))
    watermarks = Watermarks.open(disk, str(tmp_path))
    with without_descriptors():
        for term in range(1, 20):  # far more segments than there are descriptors
            append_to(log, log.last_index + 40)
            log.sync()
            state.set(term, 2)
            log.close_sealed()
            assert spares.renew(0) <= 2  # the new active segment, and the handle by which it is synced
        log.truncate_from(500)
        log.drop_before(300)
        assert log.entry(400).index == 400
        assert spares.has(STEP_DESCRIPTORS)
    assert spares.renew(0) == 0
    watermarks.close()
    log.close()
    spares.close()
    assert HardState(PosixDisk(), str(tmp_path / "hard_state")).term == 19


def test_spare_descriptors_come_back_when_files_are_closed(tmp_path: Path) -> None:
    spares = SpareDescriptors(4)
    disk = PosixDisk(spares)
    with without_descriptors():
        files = [disk.open(str(tmp_path / str(number)), create=True) for number in range(4)]
        with pytest.raises(DiskFull, match="Too many open files"):
            disk.open(str(tmp_path / "one too many"), create=True)
        assert not spares.has(1)
        for each in files:
            each.close()
        assert spares.has(4)
        assert sorted(disk.list(str(tmp_path))) == [str(number) for number in range(4)]
        assert spares.has(4)
    spares.close()


def test_what_is_missing_is_told_and_the_rest_shared() -> None:
    spares = SpareDescriptors(8)
    assert spares.renew(4) == 0
    with without_descriptors(2):
        assert spares.renew(4) == 2
        assert os.open("/", os.O_PATH) >= 0  # of those that are left free
        assert spares.renew(4) == 3
        assert spares.has(8 - 1)
    spares.close()


def test_a_limit_that_is_lowered_below_what_is_open_leaves_the_lowest_of_use(tmp_path: Path) -> None:
    spares = SpareDescriptors(16)
    numbers = sorted(spares._held)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    disk = PosixDisk(spares)
    with without_descriptors():
        resource.setrlimit(resource.RLIMIT_NOFILE, (numbers[3] + 1, before[1]))
        assert spares.has(4)
        assert not spares.has(5)
        disk.open(str(tmp_path / "file"), create=True).close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    spares.close()


def test_few_old_segments_are_open_at_a_time(tmp_path: Path) -> None:
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 1500)
    for index in range(1, 1500, 10):
        log.entry(index)
    names = [
        os.readlink(f"/proc/self/fd/{each}")
        for each in os.listdir("/proc/self/fd")
        if each.isdigit() and os.path.exists(f"/proc/self/fd/{each}")
    ]
    opened = [name for name in names if name.startswith(str(tmp_path)) and name.endswith(".log")]
    assert len(opened) <= OPEN_SEGMENTS_MAX + 2
    log.close()


def test_a_scrub_without_descriptors_finds_no_damage(tmp_path: Path) -> None:
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 100)
    scrub = SegmentScrub(PosixDisk(), log.chain.sealed()[0], None)
    with without_descriptors(), pytest.raises(DiskFull):
        list(scrub.steps(1 << 20))
    assert scrub.damage is None
    log.close()


def test_what_a_client_reads_in_old_segments_waits_for_a_descriptor(tmp_path: Path) -> None:
    """Any other DiskError of a reader ends the node: other nodes have the data."""
    log = log_on(PosixDisk(), tmp_path)
    append_to(log, 200)
    log.close()
    log = log_on(PosixDisk(), tmp_path)
    record = log.places.record(log.position_of(100))
    ahead = log.places.load_ahead(50)
    assert ahead is not None
    load, adopt = ahead
    with without_descriptors():
        with pytest.raises(DiskFull):
            load(PosixDisk())
        with pytest.raises(DiskFull):
            read_record(PosixDisk(), record)
        with pytest.raises(DiskFull):
            log.entries(30, 1000)
    adopt(load(PosixDisk()))
    assert log.entries(30, 1)[0].index == 30
    log.close()


def test_an_index_waits_with_a_flush_for_a_descriptor(tmp_path: Path) -> None:
    """RocksDB takes no writes any more after a flush that could open no file, and only another process mends that."""
    index = Index.open(str(tmp_path / "index"))

    def fill(count: int) -> bool:
        for _ in range(count):
            index.put(os.urandom(16), os.urandom(64 << 10))
            if not index.try_commit():
                return False
        return True

    assert fill(10)
    with without_descriptors(FLUSH_DESCRIPTORS - 1):
        assert not index.begin_flush()
        assert not fill(1000)
        assert not index.try_commit()
        assert not index.figures().write_stops  # RocksDB knows nothing of it
    assert index.try_commit()
    fill(300)
    index.flush()
    assert index.begin_flush()
    index.close()


def test_a_spare_that_another_thread_was_quicker_to_take_is_replaced_by_the_next(tmp_path: Path) -> None:
    """The threads of RocksDB open files between the close of a spare and the opening for which it was closed."""
    spares = SpareDescriptors(4)
    disk = PosixDisk(spares)
    left = [3]

    def stolen_from() -> int:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EMFILE, "too many open files")
        return 7

    assert disk._with_spare(stolen_from) == (7, True)
    left[0] = 99
    with pytest.raises(OSError, match="too many"):
        disk._with_spare(stolen_from)
    assert spares.has(4), "they are held again"
    spares.close()


def test_a_look_leaves_the_free_descriptors_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocksDB's threads open files at any time, and a flush or compaction that finds no descriptor ends the node."""
    spares = SpareDescriptors(16)
    taken: list[int] = []
    opened = os.open

    def noted(path: str, flags: int) -> int:
        descriptor = opened(path, flags)
        taken.append(count_free(99))
        return descriptor

    with without_descriptors(12):
        spares.lend()
        spares.take_back()
        monkeypatch.setattr(os, "open", noted)
        assert spares.renew(16) == 4
        assert spares.renew(16) == 4
        assert min(taken, default=99) >= 11, "one is taken to ask the system"
        assert are_free(16)
        assert not are_free(17)
    spares.close()


def test_descriptors_are_counted_by_the_limit_and_none_is_taken() -> None:
    assert count_free(48) == 48
    for left in (0, 1, 7, 48):
        with without_descriptors(left):
            assert count_free(48) == left
            assert count_free(5) == min(5, left)
            assert not left or are_free(left)
            assert not are_free(left + 1)


def test_spares_at_the_top_are_not_free() -> None:
    with without_descriptors(40):
        spares = SpareDescriptors(38)
        assert count_free(16) == 2
        assert not are_free(3)
        assert spares.renew(16) == 14
        spares.close()


class SmallSystem:
    """A system that gives out so many descriptors, whatever the limit of the process is."""

    def __init__(self, left: int) -> None:
        self.left = left
        self._open, self._close = os.open, os.close
        self._given: set[int] = set()

    def open(self, path: str, flags: int) -> int:
        if not self.left:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
        self.left -= 1
        self._given.add(given := self._open(path, flags))
        return given

    def close(self, descriptor: int) -> None:
        self.left += descriptor in self._given
        self._given.discard(descriptor)
        self._close(descriptor)


def test_spares_are_shared_where_the_system_has_none_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    system = SmallSystem(40)
    monkeypatch.setattr(os, "open", system.open)
    monkeypatch.setattr(os, "close", system.close)
    spares = SpareDescriptors(32)
    assert (spares.renew(16), system.left) == (0, 8)  # as far as is seen
    system.left = 0
    assert (spares.renew(16), system.left) == (16, 16)
    system.left = 0  # others were quicker
    assert (spares.renew(16), system.left) == (32, 8)
    assert are_free(8)
    assert not are_free(9)
    system.left = 60
    assert spares.renew(16) == 0
    assert spares.has(32)
    spares.close()
