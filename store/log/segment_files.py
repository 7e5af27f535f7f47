"""Steps that make, grow, seal and cut segment files, in an order that keeps every crash recoverable."""

from __future__ import annotations

from store.log.disk import Disk, require_descriptors, require_files, require_free
from store.log.errors import DiskFull
from store.log.segment import PENDING_NAME, SEGMENT_SUFFIX, SIDECAR_SUFFIX, Segment, SegmentIndex, start_of
from store.log.segments import SegmentSet

DISK_RESERVE_BYTES = 32 * 1024 * 1024  # never used for segments: hard state and index need it when the log cannot grow
FILES_RESERVE = 32  # inodes never used for segments, for the same
STEP_DESCRIPTORS = 4  # that rolling over, cutting or removing segments takes at a time; none of them may stop half-way


def prepare_segment(disk: Disk, directory: str, length: int) -> None:
    """Allocate the next segment under a name that is not part of the log, if there is all that publishing it needs.

    Raises `DiskFull`, leaving nothing behind.
    """
    require_descriptors(disk, directory, STEP_DESCRIPTORS)
    require_files(disk, directory, FILES_RESERVE)
    require_free(disk, directory, length, DISK_RESERVE_BYTES)
    path = f"{directory}/{PENDING_NAME}"
    if disk.exists(path):
        disk.unlink(path)
    try:
        file = disk.open(path, create=True)
        try:
            file.allocate(0, length)
            file.fdatasync()  # file systems that allocate blocks late report a full disk only here
        finally:
            file.close()
    except DiskFull:
        if disk.exists(path):
            disk.unlink(path)
        raise


def publish_segment(disk: Disk, directory: str, start: int, first_index: int) -> Segment:
    """Rename the prepared segment into the log, durably on return. The segment before it must be sealed."""
    segment = Segment(directory, start, first_index)
    disk.rename(f"{directory}/{PENDING_NAME}", segment.path)
    disk.sync_directory(directory)
    segment.file = disk.open(segment.path)
    segment.index = SegmentIndex(first_index)
    return segment


def seal_active(segments: SegmentSet) -> None:
    """Cut the active segment to its records and make them durable; only then may the next segment be published."""
    active = segments.active
    index, file = segments.index_of(active), segments.file_of(active)
    file.truncate(index.length)
    file.fdatasync()
    active.length = index.length
    segments.write_sidecar(active)


def grow_active(disk: Disk, segments: SegmentSet, length: int) -> None:
    """Allocate the active segment from the end of its records up to `length`.

    Raises `DiskFull` with nothing changed.
    """
    active = segments.active
    index, file = segments.index_of(active), segments.file_of(active)
    missing = length - file.size()
    if missing > 0:
        require_free(disk, segments.directory, missing, DISK_RESERVE_BYTES)
    file.allocate(index.length, length - index.length)


def remove_segments(disk: Disk, directory: str, before: int | None = None) -> tuple[str, ...]:
    """Remove the segments that begin before position `before`, or all, with their sidecars; durable on return.

    Segments are removed in ascending order, so that a crash leaves no gap. Returns the names of the removed files.
    """
    names = disk.list(directory)
    gone = []
    for name in names:
        start = start_of(name, SEGMENT_SUFFIX)
        start = start_of(name, SIDECAR_SUFFIX) if start is None else start
        if start is not None and (before is None or start < before):
            disk.unlink(f"{directory}/{name}")
            gone.append(name)
    if gone:
        disk.sync_directory(directory)
    return tuple(gone)


def cut_log(disk: Disk, segments: SegmentSet, position: int) -> None:
    """Remove all bytes from `position` on, durably on return. The last segments go first: a crash leaves a shorter
    log, never a gap.
    """
    while segments.active.start > position:
        removed = segments.remove_last()
        if removed.file is not None:
            removed.file.close()
        disk.unlink(removed.path)
        segments.remove_sidecar(segments.active)
        disk.sync_directory(segments.directory)
    file = segments.file_of(segments.active)
    file.truncate(position - segments.active.start)
    file.fdatasync()
