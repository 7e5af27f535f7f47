"""The commit log: the Raft log on disk. Layout and recovery: docs/log-format.md.

The log belongs to one thread. Between the beginning and the end of a sync its owner goes on appending, cutting and
rolling over. A truncation starts a new epoch; what a sync that began in an older epoch has synced does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from crc32c import crc32c

from store.log.base import BEGINNING, LogBase, StoredBase, write_base
from store.log.chain import LogChain
from store.log.disk import Disk, File, require_descriptors
from store.log.errors import DiskError, DiskFull, LogFailed, LogTruncated
from store.log.places import LogPlaces
from store.log.reader import LogReader
from store.log.record import (
    GENESIS_INDEX,
    HEADER_BYTES,
    KIND_ENTRY,
    KIND_NOOP,
    KINDS,
    MAX_PAYLOAD_BYTES,
    Entry,
    encode_header,
)
from store.log.recovery import Recovered, recover
from store.log.segment import SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN
from store.log.segment_files import (
    STEP_DESCRIPTORS,
    cut_log,
    grow_active,
    prepare_segment,
    publish_segment,
    remove_segments,
    seal_active,
)
from store.properties import reads

__all__ = ["CACHE_BYTES_DEFAULT", "SEGMENT_BYTES_DEFAULT", "CommitLog", "Entry"]

CACHE_BYTES_DEFAULT = 32 * 1024 * 1024
NOOP_RESERVE_BYTES = 64 * 1024  # behind the end of each segment: room for no-ops when no new segment can be allocated
_JOIN_BYTES_MAX = 256 * 1024  # up to here, copying a payload behind its header is cheaper than a second write


class SyncRun(NamedTuple):
    """A sync under way, and what it makes durable: all records up to `index`, which end at `position`."""

    file: File
    """The handle that is synced, which nothing else uses; earlier segments are synced already."""
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    position: int


class CommitLog:
    """An append-only sequence of records with contiguous indexes and non-decreasing terms.

    Invariants: `base.index <= synced_index <= last_index`; every record up to `synced_index` survives a power loss. The
    first record follows `base`; a log with a base may be empty.
    """

    def __init__(self, disk: Disk, directory: str, segment_bytes: int, cache_bytes: int, recovered: Recovered) -> None:
        """Take over a recovered log; callers use `CommitLog.open`."""
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._segments, self._mark, self._stored_base, self.recovery = recovered
        self._reader = LogReader(self._segments, cache_bytes)
        self.chain = LogChain(self._segments, self._reader)
        self.places = LogPlaces(self._segments, self._reader)
        self._failure: str | None = None
        self._sync_run: SyncRun | None = None
        self._epoch = self._mark.epoch + 1
        if not self._segments.segments:
            prepare_segment(disk, directory, segment_bytes + NOOP_RESERVE_BYTES)
            self._segments.add(publish_segment(disk, directory, self.base.position, self.first_index))
            if self._stored_base.restarting:
                self._set_base(self._stored_base._replace(restarting=False))
        active = self._segments.active
        assert active.index is not None
        self.last_index = active.index.next_index - 1
        self.end_position = active.start + active.index.length
        self.last_term = self.base.term
        if self.last_index >= self.first_index:
            self.last_term = self._reader.term_at(self.last_index)
        self._limit = self._allocated = 0  # where ordinary records begin to need an allocation, and where no-ops do
        self.synced_index = self.last_index
        """Index up to which every record is on disk. Never moves back except by `truncate_from`."""
        self.synced_position = self.end_position
        """Position below which every byte is on disk."""
        self._sync_file = disk.open(active.path)  # of its own: a failed write-back is reported once to each handle
        self._mark.set_floor(self._epoch, self.end_position)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        segment_bytes: int,
        cache_bytes: int,
        applied_index: int = 0,
        committed_index: int = 0,
        may_be_new: bool = True,
    ) -> CommitLog:
        """Recover the log, durable on return. A new log gets its genesis no-op (index 1, term 0).

        `cache_bytes` bounds the payloads kept in memory. `applied_index` (by the state machine) and `committed_index`
        (watermarks) prove a loss; without `may_be_new` so does an empty log. Raises `LogCorruption`, `UnsupportedLog`,
        `DiskError`; `DiskFull` only for a new log.
        """
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise ValueError(f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, not {segment_bytes}")
        found = recover(disk, directory.rstrip("/"), applied_index, committed_index, may_be_new)
        log = cls(disk, directory.rstrip("/"), segment_bytes, cache_bytes, found)
        log._restore_allocation()
        if log.last_index == BEGINNING.index:
            log.append(log.first_index, 0, KIND_NOOP, b"")
            log.sync()
        return log

    close_sealed: Callable[[], bool] = reads("_segments.close_sealed")
    base: LogBase = reads("_stored_base.base")
    """The last record before the first kept one; all fields are zero at the beginning of the log."""

    @property
    def first_index(self) -> int:
        return self.base.index + 1

    @property
    def active_path(self) -> str:
        """Path of the file that records are written to at present."""
        return self._segments.active.path

    # Writing

    def append(self, index: int, term: int, kind: int, payload: bytes) -> int:
        """Write a record after the last one and return its position. Visible to reads at once, durable after `sync`.

        Raises `DiskFull` when the log would have to grow and cannot (nothing changed, retry later), `LogFailed` when
        this or an earlier write failed, `ValueError` for an index that is not the next, a term that goes back, a
        payload over `MAX_PAYLOAD_BYTES` or an unknown kind. The log keeps a reference to `payload`.
        """
        size = HEADER_BYTES + len(payload)
        position = self.end_position
        if self._failure is not None or index != self.last_index + 1 or term < self.last_term or kind != KIND_ENTRY:
            self._check_append(index, term, kind)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"the payload has {len(payload)} bytes, and a record holds at most {MAX_PAYLOAD_BYTES}")
        if position + size > self._limit:
            self._make_room(size, kind)
        active = self._segments.active
        assert active.index is not None
        assert active.file is not None
        header = encode_header(kind, len(payload), crc32c(payload), index, term, position, self.synced_position)
        offset = position - active.start
        try:
            if size <= _JOIN_BYTES_MAX:
                active.file.pwrite(header + payload, offset)
            else:
                active.file.pwrite(payload, offset + HEADER_BYTES)
                active.file.pwrite(header, offset)
        except DiskError as error:
            self._fail(error)
        active.index.append(size, term, header)
        self._reader.tail.append(Entry(payload, index, term, kind, position))
        self.last_index, self.last_term, self.end_position = index, term, position + size
        return position

    def sync(self) -> int:
        """Block until all records are durable; return `synced_index`. No other sync may be under way.

        Raises `LogFailed` when the sync or anything before it failed; then the log promises nothing any more.
        """
        run = self.begin_sync()
        if run is not None:
            failed = None
            try:
                run.file.fdatasync()
            except DiskError as error:
                failed = error
            self.end_sync(failed)
        return self.synced_index

    def begin_sync(self) -> SyncRun | None:
        """Begin a sync of all records, and return it; None when all of them are durable. Its owner calls `fdatasync`
        of its file once, in whatever thread, and then `end_sync`, whatever else it calls in between. No other sync may
        be under way.

        Raises `LogFailed` when anything before it failed.
        """
        self._raise_if_failed()
        assert self._sync_run is None, "a sync of the log is under way"
        if self.end_position > self.synced_position:
            self._sync_run = SyncRun(self._sync_file, self._epoch, self.last_index, self.end_position)
        return self._sync_run

    @property
    def sync_covers_all(self) -> bool:
        """True while a sync is under way whose end makes every record durable that is there now."""
        run = self._sync_run
        return run is not None and run.epoch == self._epoch and run.position == self.end_position

    def end_sync(self, error: BaseException | None = None) -> None:
        """End the sync under way: its records are durable, unless its `fdatasync` raised `error` or the log was cut
        meanwhile.

        Raises `LogFailed` when the sync or anything before it failed; then the log promises nothing any more.
        """
        run, self._sync_run = self._sync_run, None
        assert run is not None, "no sync of the log is under way"
        try:
            if run.file is not self._sync_file:  # replaced meanwhile
                run.file.close()
        except DiskError as closing:
            self._fail(closing)
        if error is not None:
            self._fail(error)
        self._raise_if_failed()
        if run.epoch == self._epoch and run.position > self.synced_position:
            try:
                self._mark.set_progress(run.epoch, run.position)
            except DiskError as marking:
                self._fail(marking)
            self.synced_index, self.synced_position = run.index, run.position

    def truncate_from(self, index: int) -> None:
        """Remove record `index` and all after it, durable on return.

        Raises `ValueError` unless `first_index <= index <= last_index + 1`, or for the genesis record; `DiskFull` with
        nothing changed; `LogFailed` when the disk fails. The caller must never truncate committed records.
        """
        self._raise_if_failed()
        if not max(self.first_index, GENESIS_INDEX + 1) <= index <= self.last_index + 1:
            raise ValueError(f"cannot truncate from {index}: the log holds {self.first_index} to {self.last_index}")
        if index == self.last_index + 1:
            return
        require_descriptors(self._disk, self._directory, STEP_DESCRIPTORS)
        position = self._reader.position_of(index)
        last_term = self.term_at(index - 1)
        self._epoch += 1
        self.synced_index = min(self.synced_index, index - 1)
        self.synced_position = min(self.synced_position, position)
        try:
            self._mark.set_floor(self._epoch, self.synced_position)  # or recovery would take the cut for a loss
            cut_log(self._disk, self._segments, position)
            sync_file = self._disk.open(self._segments.active.path)
        except DiskError as error:
            self._fail(error)
        active = self._segments.active
        assert active.index is not None
        active.index.truncate(index)
        self._reader.truncate(index)
        self.last_index, self.last_term, self.end_position = index - 1, last_term, position
        self._replace_sync_file(sync_file)
        self.synced_index, self.synced_position = index - 1, position
        try:
            self._restore_allocation()
        except DiskError as error:
            self._fail(error)

    def can_drop_before(self, index: int) -> bool:
        """Return whether a whole segment other than the last one lies before record `index`."""
        segments = self._segments.segments
        return len(segments) > 1 and segments[1].first_index <= index

    def drop_before(self, index: int) -> LogBase:
        """Remove the segments that lie wholly before record `index`, except the last segment; return the new base.

        The base is durable before anything is removed; the removal is durable on return. Raises `ValueError` for an
        index beyond `synced_index + 1`, `DiskFull` with nothing changed, `LogFailed` when the disk fails.
        """
        self._raise_if_failed()
        if index > self.synced_index + 1:
            raise ValueError(f"index {index} is beyond what is synced, {self.synced_index}")
        first = self._segments.with_index(max(index, self.first_index))
        if first is self._segments.segments[0]:
            return self.base
        require_descriptors(self._disk, self._directory, STEP_DESCRIPTORS)
        base = LogBase(first.start, first.first_index - 1, self._reader.term_at(first.first_index - 1))
        self._set_base(self._stored_base._replace(base=base, link=self.chain.at(base.index)))
        while self._segments.segments[0] is not first:
            self._segments.remove_first()
        try:
            remove_segments(self._disk, self._directory, before=base.position)
        except DiskError as error:
            self._fail(error)
        return base

    def close(self) -> None:
        """Sync the log and close its files. No sync may be under way, and no method may be called afterwards.

        Raises `LogFailed` as `sync` does; the files are closed all the same.
        """
        try:
            if self._failure is None:
                self.sync()
                self._mark.set_floor(self._epoch, self.synced_position)
        except DiskError as error:
            self._fail(error)
        finally:
            self._sync_file.close()
            self._mark.close()
            self._segments.close()

    # Reading

    def entry(self, index: int) -> Entry:
        """Read record `index`, verifying its CRC. Raises `IndexError` (`LogTruncated`), `LogCorruption`."""
        self._check_bounds(index)
        return self._reader.entry(index)

    def term_at(self, index: int) -> int:
        """Return the term of a record or of the base without reading it. Raises `IndexError` outside the log."""
        base, entry = self.base, self._reader.tail.get(index)
        if entry is not None and index > base.index:
            return entry.term
        if index == base.index:
            return base.term
        self._check_bounds(index)
        return self._reader.term_at(index)

    def entries(self, first: int, max_bytes: int, last: int | None = None) -> list[Entry]:
        """Return records from `first` up to `last` that together take at most `max_bytes` on disk; at least one.

        Raises as `entry` does.
        """
        if not self.base.index < first <= self.last_index:
            self._check_bounds(first)
        return self._reader.entries(first, self.last_index if last is None else min(last, self.last_index), max_bytes)

    def indexes_of_kind(self, kind: int, first: int) -> list[int]:
        """Return the indexes of a kind's records from `first` on, at most `last_index + 1`. Reads headers only."""
        return self._reader.indexes_of_kind(kind, max(first, self.first_index), self.last_index)

    def position_of(self, index: int) -> int:
        """Return the position of the record's first byte. Raises `IndexError` outside the log."""
        self._check_bounds(index)
        return self._reader.position_of(index)

    def index_at(self, position: int) -> int:
        """Return the index of the record at a position. Raises `LookupError`, `LogTruncated` before the log."""
        if 0 <= position < self.base.position:
            raise LogTruncated(f"position {position}", self.first_index)
        index = self._reader.index_at(position) if 0 <= position < self.end_position else None
        if index is None:
            raise LookupError(f"no record begins at position {position}")
        return index

    # Inside

    def _check_bounds(self, index: int) -> None:
        if not self.first_index <= index <= self.last_index:
            if 0 < index < self.first_index:
                raise LogTruncated(f"index {index}", self.first_index)
            raise IndexError(f"index {index} is outside the log, which holds {self.first_index} to {self.last_index}")

    def _check_append(self, index: int, term: int, kind: int) -> None:
        self._raise_if_failed()
        if index != self.last_index + 1:
            raise ValueError(f"index {index} does not follow {self.last_index}")
        if term < self.last_term:
            raise ValueError(f"term {term} is older than the last record's, {self.last_term}")
        if kind not in KINDS:
            raise ValueError(f"unknown kind {kind}")

    def _raise_if_failed(self) -> None:
        if self._failure is not None:
            raise LogFailed(self._failure)

    def _fail(self, error: BaseException) -> NoReturn:
        if self._failure is None:
            self._failure = f"the commit log stopped: {error}"
        raise LogFailed(self._failure) from error

    def _set_base(self, stored: StoredBase) -> None:
        """Store the base, durable on return. Raises `DiskFull` with nothing changed."""
        try:
            write_base(self._disk, self._directory, stored)
        except DiskFull:
            raise
        except DiskError as error:
            self._fail(error)
        self._stored_base = stored
        self._segments.base_link = stored.link

    def _make_room(self, size: int, kind: int) -> None:
        """Ensure that `size` bytes fit behind the end, in the active segment or in a new one."""
        active = self._segments.active
        used = self.end_position - active.start
        try:
            if used == 0 or used + size <= self._segment_bytes:
                self._grow(max(self._segment_bytes, size))
            else:
                self._roll_over(max(self._segment_bytes, size))
        except DiskFull:
            if kind != KIND_NOOP or self.end_position + size > self._allocated:
                raise
        except DiskError as error:
            self._fail(error)

    def _roll_over(self, segment_bytes: int) -> None:
        """Seal the active segment and begin the next one. Raises `DiskFull` with nothing changed."""
        prepare_segment(self._disk, self._directory, segment_bytes + NOOP_RESERVE_BYTES)
        try:
            seal_active(self._segments)
            self._mark.set_floor(self._epoch, self.end_position)
            segment = publish_segment(self._disk, self._directory, self.end_position, self.last_index + 1)
            sync_file = self._disk.open(segment.path)
        except DiskError as error:  # DiskFull as well: the sealed segment may not be written to, and no other exists
            self._fail(error)
        self._segments.add(segment)
        self.synced_index, self.synced_position = self.last_index, self.end_position
        self._replace_sync_file(sync_file)
        self._note_allocation(segment_bytes)

    def _restore_allocation(self) -> None:
        """Allocate the active segment if there is space; otherwise each `append` tries again."""
        self._limit = self._allocated = self.end_position
        with contextlib.suppress(DiskFull):
            self._grow(self._segment_bytes)

    def _grow(self, segment_bytes: int) -> None:
        grow_active(self._disk, self._segments, segment_bytes + NOOP_RESERVE_BYTES)
        self._note_allocation(segment_bytes)

    def _note_allocation(self, segment_bytes: int) -> None:
        self._limit = self._segments.active.start + segment_bytes
        self._allocated = self._limit + NOOP_RESERVE_BYTES

    def _replace_sync_file(self, file: File) -> None:
        """Make later syncs use `file`. The old file stays open for the sync under way, if there is one."""
        former, self._sync_file = self._sync_file, file
        if self._sync_run is None or self._sync_run.file is not former:
            try:
                former.close()
            except DiskError as error:  # DiskFull as well: it says that writes may be lost
                self._fail(error)
