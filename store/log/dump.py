"""The operator's view of the log: lists and verifies records as they are on disk. Only reads; needs no running node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from store.log.base import BEGINNING, LogBase, read_base
from store.log.base import FILE_NAME as BASE_NAME
from store.log.disk import Disk, File
from store.log.errors import LogCorruption
from store.log.record import HEADER_BYTES, KIND_CONFIG, KIND_ENTRY, KIND_NOOP, Header, UnsupportedRecord
from store.log.record_chain import chained_of
from store.log.scan import last_nonzero, later_headers, scan_records
from store.log.segment import SEGMENT_SUFFIX, SegmentIndex, segment_name, sidecar_name, start_of
from store.log.sidecar import decode_sidecar
from store.log.synced_mark import FILE_NAME as SYNCED_MARK_NAME
from store.log.synced_mark import SyncedMark

KIND_NAMES = {KIND_ENTRY: "entry", KIND_NOOP: "no-op", KIND_CONFIG: "config"}


class RecordLine(NamedTuple):
    """One record whose header and payload passed their CRCs."""

    segment: str
    position: int
    raft_index: int
    term: int
    kind: str  # "entry" | "no-op" | "config"
    payload_length: int
    synced_position: int
    content: str  # as `describe` puts it


class Finding(NamedTuple):
    """Something in the log files that is not as it should be. With `harmless`, opening the log repairs it without
    losing synced data.
    """

    segment: str
    position: int
    raft_index: int | None  # of the record expected at `position`; None if not known
    harmless: bool
    detail: str


class VerifyReport(NamedTuple):
    """The result of a verification.

    Invariant: when all findings are harmless, every record up to `last_index` is intact and in order.
    """

    segments: int
    records: int
    first_index: int | None
    last_index: int | None
    end_position: int
    synced_position: int  # as the `synced` file says
    findings: tuple[Finding, ...]
    base: LogBase  # as the `base` file says; records before the base were removed

    @property
    def intact(self) -> bool:
        return all(finding.harmless for finding in self.findings)


def dump_records(
    disk: Disk,
    directory: str,
    first: int = 0,
    last: int | None = None,
    describe: Callable[[Header, memoryview], str] = lambda _header, _payload: "",
) -> Iterator[RecordLine]:
    """Yield the records with indexes `first` to `last` in order; of each segment, up to its first record that is not
    intact. `describe` puts a payload into words.

    Raises `DiskError`; `LogCorruption` if the base of the log is damaged; `UnsupportedRecord` at a record of a newer
    version.
    """
    base = read_base(disk, directory).base
    for start in _starts(disk, directory):
        if start < base.position:
            continue
        file = disk.open(f"{directory}/{segment_name(start)}")
        try:
            for header, payload in scan_records(file, start):
                if last is not None and header.index > last:
                    return
                if header.index >= first:
                    yield _line(start, header, describe(header, payload))
        finally:
            file.close()


def verify_log(disk: Disk, directory: str) -> VerifyReport:
    """Read every record of every segment and check CRCs, order, lengths and sidecars. Changes nothing.

    A node that runs meanwhile makes the end of the last segment look unfinished; stop it for a final answer.
    """
    return _Verification(disk, directory).run()


def _starts(disk: Disk, directory: str) -> list[int]:
    return [start for name in disk.list(directory) if (start := start_of(name, SEGMENT_SUFFIX)) is not None]


def _line(start: int, header: Header, content: str) -> RecordLine:
    kind = KIND_NAMES[header.kind]
    return RecordLine(
        segment_name(start),
        header.position,
        header.index,
        header.term,
        kind,
        header.payload_length,
        header.synced_position,
        content,
    )


class _Verification:
    """One verification pass over the log."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._starts = _starts(disk, directory)
        self._synced_position = self._read_mark()
        self._base = BEGINNING
        self._previous: Header | None = None
        self._first_index: int | None = None
        self._records = 0
        self._index: SegmentIndex | None = None  # of the segment being verified
        self._findings: list[Finding] = []

    def run(self) -> VerifyReport:
        end = self._read_base()
        for start, next_start in itertools.zip_longest(self._starts, self._starts[1:]):
            if start != end:
                self._find(end, f"no segment covers positions {end} to {start}", segment=segment_name(end))
            end = self._verify_segment(start, next_start)
        if self._synced_position > end:
            self._find(end, f"the log ends here, but was synced up to position {self._synced_position}")
        return VerifyReport(
            len(self._starts),
            self._records,
            self._first_index,
            self._previous.index if self._previous else None,
            end,
            self._synced_position,
            tuple(self._findings),
            self._base,
        )

    def _read_base(self) -> int:
        """Return the position where the log begins; segments before that position are left out."""
        try:
            stored = read_base(self._disk, self._directory)
            self._base, restarting = stored.base, stored.restarting
        except LogCorruption as error:
            self._find(0, error.detail, segment=BASE_NAME)
            return self._starts[0] if self._starts else 0
        if restarting:
            detail = "the log is being made anew behind this base: all segments go when it is opened"
            self._find(self._base.position, detail, segment=BASE_NAME, harmless=True)
            self._starts, self._synced_position = [], 0
        gone = [start for start in self._starts if start < self._base.position]
        for start in gone:
            self._find(
                start, "before the log's base; removed when it is opened", segment=segment_name(start), harmless=True
            )
        self._starts = self._starts[len(gone) :]
        return self._base.position

    def _read_mark(self) -> int:
        path = f"{self._directory}/{SYNCED_MARK_NAME}"
        if not self._disk.exists(path):
            return 0
        mark = SyncedMark(self._disk.open(path))
        mark.close()
        return mark.position

    def _verify_segment(self, start: int, next_start: int | None) -> int:
        """Verify one segment; return the position where the segment ends."""
        self._index = None
        file = self._disk.open(f"{self._directory}/{segment_name(start)}")
        try:
            if next_start is None:
                return start + self._verify_last(file, start)
            return start + self._verify_sealed(file, start, next_start - start)
        finally:
            file.close()

    def _verify_sealed(self, file: File, start: int, length: int) -> int:
        """Verify a sealed segment; return the file offset where the segment ends, at most `length`."""
        size = file.size()
        offset = self._follow(file, start, 0)
        if offset == length:
            self._verify_sidecar(start)
        while offset < min(size, length):
            resumed = self._report_damage(file, start, offset, harmless=False)
            if resumed is None:
                break
            offset = self._follow(file, start, resumed)
        if size > length:
            harmless = last_nonzero(file, length) == length
            self._find(start + length, f"{size - length} surplus bytes", segment=segment_name(start), harmless=harmless)
        return min(size, length)

    def _verify_last(self, file: File, start: int) -> int:
        """Verify the last segment; return the file offset where its last intact record ends."""
        end = self._follow(file, start, 0)
        while last_nonzero(file, end) > end:
            later = [header.synced_position for header in later_headers(file, start, end)]
            known_synced = max([self._synced_position, *later]) > start + end
            resumed = self._report_damage(file, start, end, harmless=not known_synced)
            if resumed is None:
                break
            end = self._follow(file, start, resumed)
        return end

    def _follow(self, file: File, start: int, offset: int) -> int:
        """Notes the intact records from `offset` on; returns the file offset where they end."""
        try:
            for header, _ in scan_records(file, start, offset):
                self._check_order(start, header)
                if self._index is None:
                    self._index = SegmentIndex(header.index)
                self._index.append(HEADER_BYTES + header.payload_length, header.term, chained_of(header))
                if self._first_index is None:
                    self._first_index = header.index
                self._records += 1
                self._previous = header
                offset = header.end_position - start
        except UnsupportedRecord as error:
            self._find(start + offset, f"{error}: written by a newer version", segment=segment_name(start))
        return offset

    def _check_order(self, start: int, header: Header) -> None:
        previous = self._previous
        if previous is None or previous.end_position != header.position:
            return  # the record follows a gap, which is reported separately
        if header.index != previous.index + 1 or header.term < previous.term:
            detail = f"index {header.index} of term {header.term} follows {previous.index} of term {previous.term}"
            self._find(header.position, detail, segment=segment_name(start))

    def _report_damage(self, file: File, start: int, offset: int, *, harmless: bool) -> int | None:
        """Report damage at `offset`; return the file offset of the next intact header, or None."""
        later = next(later_headers(file, start, offset), None)
        until = "the end" if later is None else f"position {later.position}"
        detail = f"{'an unsynced tail that is not whole' if harmless else 'damaged'} up to {until}"
        self._find(start + offset, detail, segment=segment_name(start), harmless=harmless)
        return None if later is None else later.position - start

    def _verify_sidecar(self, start: int) -> None:
        """Compare the sidecar with the index that reading all of the segment's records has produced."""
        name = sidecar_name(start)
        path = f"{self._directory}/{name}"
        index = self._index
        if index is None or not self._disk.exists(path):
            self._find(start, "missing; it is rebuilt when needed", segment=name, harmless=True)
            return
        decoded = decode_sidecar(self._disk.read_bytes(path), start, index.length, index.first_index)
        if decoded is None or (decoded[0].offsets, decoded[0].run_firsts, decoded[0].run_terms) != (
            index.offsets,
            index.run_firsts,
            index.run_terms,
        ):
            self._find(start, "does not match its segment; it is rebuilt when needed", segment=name, harmless=True)

    def _find(self, position: int, detail: str, *, segment: str | None = None, harmless: bool = False) -> None:
        previous = self._previous
        index = previous.index + 1 if previous and previous.end_position == position else None
        name = segment or segment_name(self._starts[-1] if self._starts else 0)
        self._findings.append(Finding(name, position, index, harmless, detail))
