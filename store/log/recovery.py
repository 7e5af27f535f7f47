"""Recovery when a log is opened, whatever happened before: the recovery table of docs/log-format.md.

Only the last segment may hold unsynced bytes, so only the last one is scanned. Sealed segments are checked for
presence, length and first record; damage inside them is found when they are read, or by `keelmqd log verify`.
"""

from __future__ import annotations

import itertools
from enum import Enum
from typing import NamedTuple

from store.log.base import BEGINNING, DAMAGED_BASE, LogBase, StoredBase, read_base
from store.log.base import FILE_NAME as BASE_NAME
from store.log.base import TEMPORARY_NAME as BASE_TEMPORARY_NAME
from store.log.disk import Disk, File
from store.log.errors import LogCorruption, LogError, UnsupportedLog
from store.log.record import HEADER_BYTES, Header, UnsupportedRecord, parse_header
from store.log.record_chain import Link, chained_of
from store.log.scan import SCAN_WINDOW_BYTES, last_nonzero, later_headers, scan_records
from store.log.segment import (
    PENDING_NAME,
    SEGMENT_SUFFIX,
    SIDECAR_SUFFIX,
    Segment,
    SegmentIndex,
    segment_name,
    start_of,
)
from store.log.segment_files import remove_segments
from store.log.segments import SegmentSet
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from store.log.synced_mark import SyncedMark

_OWN_NAMES = (SYNCED_MARK_NAME, BASE_NAME)


class RecoveryCase(Enum):
    """The finding of a recovery. Cases of the first group are repaired and reported, those of the second stop the node
    with `LogCorruption`.
    """

    NEW_LOG = "new_log"
    CLEAN_END = "clean_end"
    EMPTY_LAST_SEGMENT = "empty_last_segment"
    TORN_TAIL = "torn_tail"
    HOLE_IN_UNSYNCED_TAIL = "hole_in_unsynced_tail"
    ZERO_FILLED_TAIL = "zero_filled_tail"
    RESTARTED = "restarted"

    CORRUPT_SYNCED_RECORD = "corrupt_synced_record"
    SYNCED_TAIL_LOST = "synced_tail_lost"
    OUT_OF_SEQUENCE = "out_of_sequence"
    MISSING_SEGMENT = "missing_segment"
    DAMAGED_BASE = DAMAGED_BASE
    INDEX_BEHIND_BASE = "index_behind_base"
    SEGMENT_LONGER_THAN_EXPECTED = "segment_longer_than_expected"  # repaired if the surplus is zeros
    SEGMENT_SHORTER_THAN_EXPECTED = "segment_shorter_than_expected"


class RecoveryReport(NamedTuple):
    """The findings and repairs of opening the log.

    Invariant: `cut_bytes` is 0 unless `case` names an unsynced tail; it never counts bytes that were synced.
    """

    case: RecoveryCase
    segment: str  # name of the last segment
    end_position: int  # where the log ends now; bytes beyond were cut
    cut_bytes: int  # size of the cut tail, up to its last byte that was not zero
    records_scanned: int
    rewritten_bytes: int  # size of the tail that was not known to be synced and was written again
    removed_files: tuple[str, ...] = ()  # leftovers of an interrupted operation
    ignored_files: tuple[str, ...] = ()  # files unknown to the log: left alone
    trimmed_segments: tuple[str, ...] = ()  # sealed segments that had zeros after their last record

    def __str__(self) -> str:
        """Return the fields as a log line has them, without the files of which there are none."""
        texts = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}
        texts["case"] = self.case.value
        return " ".join(f"{name}={value}" for name, value in texts.items() if value != "")


class Recovered(NamedTuple):
    segments: SegmentSet  # empty for a new log, and for a restarted one
    mark: SyncedMark
    stored_base: StoredBase
    report: RecoveryReport


class _Names(NamedTuple):
    starts: list[int]
    removed: tuple[str, ...]
    ignored: tuple[str, ...]


class _Known(NamedTuple):
    """Evidence about the log from other files."""

    base: LogBase
    mark_position: int
    evident_index: int  # highest index known to be applied from this log, or committed in it


class _Tail(NamedTuple):
    """The intact records of the last segment, up to the first record that is not intact, and the size of the rest."""

    segment: Segment
    file: File
    records: SegmentIndex
    previous: Header | None  # the last intact record
    surplus_bytes: int  # from the end of `records` to the last byte that is not zero

    @property
    def end_position(self) -> int:
        return self.segment.start + self.records.length


def recover(
    disk: Disk, directory: str, applied_index: int, committed_index: int = 0, may_be_new: bool = True
) -> Recovered:
    """Check the log in `directory`, cut an incomplete unsynced tail, and make the rest durable.

    Raises `LogCorruption` when synced data is damaged or missing; then only leftovers were removed.
    """
    disk.make_directory(directory)
    disk.sync_directory(directory)  # names that an earlier process created: recovery relies on them from here on
    stored = read_base(disk, directory)
    if stored.restarting:
        return _restart(disk, directory, stored)
    base = stored.base
    if applied_index < base.index:
        detail = f"the index holds the state at entry {applied_index}, and the log only the entries after {base.index}"
        name = segment_name(base.position)
        raise _corruption(RecoveryCase.INDEX_BEHIND_BASE, name, base.position, base.index + 1, detail)
    names = _sort_names(disk, directory, base)
    mark = SyncedMark.open(disk, directory)
    disk.sync_directory(directory)  # makes the mark's name durable
    segments = SegmentSet(disk, directory)
    segments.base_link = stored.link
    # A state that was installed without this log proves nothing about the log.
    evident_index = max(committed_index, applied_index if applied_index > stored.installed_index else 0)
    try:
        if names.starts:
            report = _recover_segments(disk, segments, names, _Known(base, mark.position, evident_index))
        else:
            report = _begin(names, _Known(base, mark.position, evident_index), may_be_new)
    except LogError:
        segments.close()
        mark.close()
        raise
    return Recovered(segments, mark, stored, report)


def _restart(disk: Disk, directory: str, stored: StoredBase) -> Recovered:
    """Remove all segments of a log that was being restarted, and reset the mark: synced data of the old log means
    nothing.
    """
    removed = remove_segments(disk, directory)
    leftovers = _sort_names(disk, directory, stored.base)
    mark = SyncedMark.open(disk, directory)
    mark.set_floor(mark.epoch + 1, stored.base.position)
    disk.sync_directory(directory)
    position = stored.base.position
    removed += leftovers.removed
    report = RecoveryReport(
        RecoveryCase.RESTARTED, segment_name(position), position, 0, 0, 0, removed, leftovers.ignored
    )
    return Recovered(SegmentSet(disk, directory), mark, stored, report)


def _begin(names: _Names, known: _Known, may_be_new: bool) -> RecoveryReport:
    """Report a new log when there is no segment. Raises `LogCorruption` when there is evidence that the log had
    segments.
    """
    base = known.base
    detail = None
    if base != BEGINNING or known.mark_position > 0 or known.evident_index > 0:
        detail = (
            f"no segment is left; the log began at position {base.position}, synced to position "
            f"{known.mark_position}, applied or known to be committed to index {known.evident_index}"
        )
    elif not may_be_new:
        detail = "no segment is left, but this node has taken part in elections; was a volume not mounted?"
    if detail is not None:
        name = segment_name(base.position)
        raise _corruption(RecoveryCase.MISSING_SEGMENT, name, base.position, base.index + 1, detail)
    return RecoveryReport(RecoveryCase.NEW_LOG, segment_name(0), 0, 0, 0, 0, names.removed, names.ignored)


def _recover_segments(disk: Disk, segments: SegmentSet, names: _Names, known: _Known) -> RecoveryReport:
    """Add all segments to `segments`, with the last one cut to its intact records."""
    trimmed = _check_sealed(disk, segments, names.starts, known.base)
    segment = Segment(segments.directory, names.starts[-1], _next_index(segments, known.base))
    segment.file = disk.open(segment.path)
    try:
        tail = _scan_last(segment, segment.file, segments.link_before(segment))
        case = _classify(tail, known)
        rewritten = _settle(tail, known.mark_position)
    except LogError:
        segment.file.close()
        raise
    segments.add(segment)
    return RecoveryReport(
        case,
        segment.name,
        tail.end_position,
        tail.surplus_bytes,
        len(tail.records.offsets),
        rewritten,
        names.removed,
        names.ignored,
        trimmed,
    )


def _sort_names(disk: Disk, directory: str, base: LogBase) -> _Names:
    """Return the segment positions in order; remove leftovers and keep unknown files."""
    removed: list[str] = []
    names = disk.list(directory)
    if segment_name(base.position) in names:  # otherwise segments are missing, and nothing may be changed
        removed.extend(remove_segments(disk, directory, before=base.position))
        names = [name for name in names if name not in removed]
    starts = [start for name in names if (start := start_of(name, SEGMENT_SUFFIX)) is not None]
    ignored = []
    for name in names:
        sidecar_start = start_of(name, SIDECAR_SUFFIX)
        orphan = sidecar_start is not None and sidecar_start not in starts
        if name in (PENDING_NAME, BASE_TEMPORARY_NAME) or orphan:
            disk.unlink(f"{directory}/{name}")
            removed.append(name)
        elif sidecar_start is None and start_of(name, SEGMENT_SUFFIX) is None and name not in _OWN_NAMES:
            ignored.append(name)
    if removed:
        disk.sync_directory(directory)
    return _Names(starts, tuple(removed), tuple(ignored))


def _check_sealed(disk: Disk, segments: SegmentSet, starts: list[int], base: LogBase) -> tuple[str, ...]:
    """Add all but the last segment; return the names of the segments that had zeros after their last record."""
    next_index = base.index + 1
    if starts[0] != base.position:
        detail = f"the first segment begins at position {starts[0]}, the log at {base.position}"
        raise _corruption(RecoveryCase.MISSING_SEGMENT, segment_name(base.position), base.position, next_index, detail)
    trimmed = []
    for start, next_start in itertools.pairwise(starts):
        segment = Segment(segments.directory, start, next_index, next_start - start)
        file = disk.open(segment.path)
        try:
            if _check_length(segment, file):
                trimmed.append(segment.name)
            header = _first_header(segment, file)
        finally:
            file.close()
        if header is None:
            detail = "the first record of a sealed segment is damaged"
            raise _corruption(RecoveryCase.CORRUPT_SYNCED_RECORD, segment.name, start, None, detail)
        if header.index < next_index or (start == base.position and header.index != next_index):
            detail = f"the record has index {header.index}, and at least {next_index} was expected"
            raise _corruption(RecoveryCase.OUT_OF_SEQUENCE, segment.name, start, header.index, detail)
        segment.first_index = header.index
        next_index = header.index + 1
        segments.add(segment)
    return tuple(trimmed)


def _check_length(segment: Segment, file: File) -> bool:
    """Check the length of a sealed segment. Returns True if surplus zeros were cut off."""
    size = file.size()
    if size > segment.length:
        if last_nonzero(file, segment.length) > segment.length:
            detail = f"the segment has {size} bytes, and the next segment begins after {segment.length}"
            end = segment.start + segment.length
            raise _corruption(RecoveryCase.SEGMENT_LONGER_THAN_EXPECTED, segment.name, end, None, detail)
        file.truncate(segment.length)
        file.fdatasync()
        return True
    if size < segment.length:
        end = segment.start
        index = None
        try:
            for header, _ in scan_records(file, segment.start):
                end, index = header.end_position, header.index + 1
        except UnsupportedRecord as error:
            raise UnsupportedLog(segment.name, end, str(error)) from error
        if end == segment.start + size:
            detail = f"nothing covers positions {end} to {segment.start + segment.length}"
            raise _corruption(RecoveryCase.MISSING_SEGMENT, segment_name(end), end, index, detail)
        detail = f"the segment has {size} bytes, and the next segment begins after {segment.length}"
        raise _corruption(RecoveryCase.SEGMENT_SHORTER_THAN_EXPECTED, segment.name, end, index, detail)
    return False


def _first_header(segment: Segment, file: File) -> Header | None:
    try:
        header = parse_header(file.pread(HEADER_BYTES, 0))
    except UnsupportedRecord as error:
        raise UnsupportedLog(segment.name, segment.start, str(error)) from error
    return header if header is not None and header.position == segment.start else None


def _scan_last(segment: Segment, file: File, link: Link | None) -> _Tail:
    """Read the records of the last segment up to the first one that is not intact, and check their order. `link` is
    the chain before the segment.
    """
    start = segment.start
    index: SegmentIndex | None = None
    previous: Header | None = None
    try:
        for header, _ in scan_records(file, start):
            if index is None:
                if header.index != segment.first_index:
                    raise _out_of_sequence(segment, header, segment.first_index)
                index = SegmentIndex(header.index)
                index.chain.begin(link, header.index)
            elif previous is None or header.index != previous.index + 1 or header.term < previous.term:
                raise _out_of_sequence(segment, header, index.next_index)
            index.append(HEADER_BYTES + header.payload_length, header.term, chained_of(header))
            previous = header
    except UnsupportedRecord as error:
        raise UnsupportedLog(segment.name, start + (index.length if index else 0), str(error)) from error
    if index is None:
        index = SegmentIndex(segment.first_index)
        index.chain.begin(link, segment.first_index)
    segment.index = index
    return _Tail(segment, file, index, previous, last_nonzero(file, index.length) - index.length)


def _next_index(segments: SegmentSet, base: LogBase) -> int:
    return segments.index_of(segments.active).next_index if segments.segments else base.index + 1


def _out_of_sequence(segment: Segment, header: Header, expected: int) -> LogCorruption:
    detail = f"the record has index {header.index} and term {header.term}, and index {expected} was expected"
    return _corruption(RecoveryCase.OUT_OF_SEQUENCE, segment.name, header.position, header.index, detail)


def _classify(tail: _Tail, known: _Known) -> RecoveryCase:
    """Names the case of the bytes after the last intact record. Raises `LogCorruption` if those bytes are known to have
    been synced.
    """
    end = tail.end_position
    evidence = _evidence(known.mark_position, known.evident_index, end, tail.records.next_index)
    if not tail.surplus_bytes:
        if evidence:
            detail = f"the log ends here, but {evidence}"
            raise _corruption(RecoveryCase.SYNCED_TAIL_LOST, tail.segment.name, end, tail.records.next_index, detail)
        return RecoveryCase.CLEAN_END if tail.previous is not None else RecoveryCase.EMPTY_LAST_SEGMENT
    hole = False
    for later in later_headers(tail.file, tail.segment.start, tail.records.length):
        hole = True
        if later.synced_position > end:
            evidence = evidence or f"the record at {later.position} was written when {later.synced_position} was synced"
            break
    if evidence:
        detail = f"the record is damaged, but {evidence}"
        raise _corruption(RecoveryCase.CORRUPT_SYNCED_RECORD, tail.segment.name, end, tail.records.next_index, detail)
    if hole:
        return RecoveryCase.HOLE_IN_UNSYNCED_TAIL
    return RecoveryCase.ZERO_FILLED_TAIL if _is_header_before_zeros(tail) else RecoveryCase.TORN_TAIL


def _evidence(mark_position: int, evident_index: int, end: int, next_index: int) -> str | None:
    """Return the reason why the record at position `end` must have been durable, or None."""
    if mark_position > end:
        return f"everything below position {mark_position} was synced"
    if evident_index >= next_index:
        return f"index {evident_index} was applied or known to be committed"
    return None


def _is_header_before_zeros(tail: _Tail) -> bool:
    """Return whether the tail is an intact header followed by zeros only: its blocks were allocated, its payload never
    arrived.
    """
    try:
        header = parse_header(tail.file.pread(HEADER_BYTES, tail.records.length))
    except UnsupportedRecord:
        return False
    return header is not None and tail.surplus_bytes <= HEADER_BYTES


def _settle(tail: _Tail, mark_position: int) -> int:
    """Cut the incomplete tail and make the rest durable; return the number of bytes that were written again.

    After a failed fsync the kernel may hold pages as clean that never reached the disk, and a new process would read
    them and believe them. So bytes that are not known to be synced are written again before they are called durable.
    """
    file, start, length = tail.file, tail.segment.start, tail.records.length
    if tail.surplus_bytes:
        file.truncate(length)
    offset = rewritten_from = min(length, max(0, mark_position - start))
    while offset < length:
        window = file.pread(min(SCAN_WINDOW_BYTES, length - offset), offset)
        file.pwrite(window, offset)
        offset += len(window)
    file.fdatasync()
    return length - rewritten_from


def _corruption(case: RecoveryCase, segment: str, position: int, index: int | None, detail: str) -> LogCorruption:
    return LogCorruption(case.value, segment, position, index, detail)
