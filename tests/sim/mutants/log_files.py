"""Broken orders in which segment files and the hard state are written, renamed and synced."""

from typing import Any
from unittest import mock

import store.log.commit_log
from store.log import segment_files
from store.log.commit_log import CommitLog
from store.log.disk import Disk, File
from store.log.hard_state import HardState
from store.log.segment import Segment
from store.log.segments import SegmentSet
from store.log.synced_mark import SyncedMark
from tests.sim.variant import Swap, mutant


class CarelessDisk:
    """A disk that reports directories as synced without syncing them."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def sync_directory(self, path: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def begins_segment_without_directory_sync(disk: Disk, directory: str, start: int, first_index: int) -> Segment:
    """A new segment is used before its name is durable: a power loss takes the whole file."""
    careless: Any = CarelessDisk(disk)
    return segment_files.publish_segment(careless, directory, start, first_index)


def seals_without_sync(segments: SegmentSet) -> None:
    """A full segment is left behind unsynced, and counts as synced."""
    active = segments.active
    index = segments.index_of(active)
    segments.file_of(active).truncate(index.length)
    active.length = index.length
    segments.write_sidecar(active)


def cuts_without_sync(disk: Disk, segments: SegmentSet, position: int) -> None:
    """Cutting a conflict is not synced: after a power loss the entries that were cut are there again."""
    while segments.active.start > position:
        removed = segments.remove_last()
        if removed.file is not None:
            removed.file.close()
        disk.unlink(removed.path)
        segments.remove_sidecar(segments.active)
    segments.file_of(segments.active).truncate(position - segments.active.start)


_truncate_from = CommitLog.truncate_from


def cuts_without_lowering_the_mark(log: CommitLog, index: int) -> None:
    """The `synced` mark stays beyond what a conflict cuts: the next recovery takes the cut for a loss."""
    with mock.patch.object(SyncedMark, "set_floor"):
        _truncate_from(log, index)


_end_sync = CommitLog.end_sync


def counts_a_sync_across_a_cut(log: CommitLog, error: BaseException | None = None) -> None:
    """A sync that ran while the log was cut vouches for the entries that came in the place of those it synced."""
    if log._sync_run is not None:
        log._sync_run = log._sync_run._replace(epoch=log._epoch)
    _end_sync(log, error)


def goes_on_syncing_the_old_segment(_log: CommitLog, file: File) -> None:
    """The previous segment is synced also after a rollover."""
    file.close()


def remembers_the_term_of_what_it_cut(log: CommitLog, index: int) -> None:
    """The last term after a cut is still that of the entry that was cut."""
    last_term = log.last_term
    _truncate_from(log, index)
    log.last_term = last_term


def hard_state_without_sync(state: HardState, path: str, data: bytes) -> None:
    """Term and vote are renamed into place without having been synced."""
    file = state._disk.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite(data, 0)
    finally:
        file.close()


_write = HardState._write


def hard_state_without_directory_sync(state: HardState, term: int, voted_for: int | None, voter: bool) -> None:
    """Term and vote are renamed into place, and the rename is not synced."""
    disk = state._disk
    state._disk = CarelessDisk(disk)
    try:
        _write(state, term, voted_for, voter)
    finally:
        state._disk = disk


_load = HardState._load


def acts_on_a_rename_that_may_vanish(state: HardState) -> tuple[int, int | None, bool]:
    """A hard state that is visible after a failed directory sync is taken for durable."""
    disk = state._disk
    state._disk = CarelessDisk(disk)
    try:
        return _load(state)
    finally:
        state._disk = disk


def asks_for_no_descriptors(_disk: Disk, _path: str, _count: int) -> None:
    """A step that takes several descriptors begins without asking for them, and stops half-way."""


MUTANTS = (
    mutant(2, Swap(store.log.commit_log, "publish_segment", begins_segment_without_directory_sync)),
    mutant(2, Swap(store.log.commit_log, "seal_active", seals_without_sync)),
    mutant(2, Swap(store.log.commit_log, "cut_log", cuts_without_sync)),
    mutant(10, Swap(CommitLog, "truncate_from", cuts_without_lowering_the_mark), rare=True),
    mutant(2, Swap(CommitLog, "end_sync", counts_a_sync_across_a_cut), rare=True),
    mutant(2, Swap(CommitLog, "_replace_sync_file", goes_on_syncing_the_old_segment)),
    mutant(3, Swap(CommitLog, "truncate_from", remembers_the_term_of_what_it_cut)),
    mutant(2, Swap(HardState, "_write_temporary", hard_state_without_sync)),
    mutant(2, Swap(HardState, "_write", hard_state_without_directory_sync)),
    mutant(2, Swap(HardState, "_load", acts_on_a_rename_that_may_vanish), rare=True),
    mutant(
        0,
        Swap(segment_files, "require_descriptors", asks_for_no_descriptors),
        Swap(store.log.commit_log, "require_descriptors", asks_for_no_descriptors),
        only_kinds=("no_descriptors", "kill_leader"),
    ),
)
