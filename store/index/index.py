"""The RocksDB index: all data derived from the commit log, including records since removed from the log's front.

Promises
    - Writes are staged with `put`, `delete` and `delete_range` and are visible to `get`, `scan` and `last`, also to a
      scan under way: reads do not depend on when writes are committed. `commit` makes all staged writes one RocksDB
      write. Staged writes reach the disk all together or not at all.
    - Reading and staging cost the same however much is staged: a scan costs what it yields and skips.
    - The write-ahead log of RocksDB is off: the commit log is the WAL. A process that dies loses the newest commits,
      and only whole ones, newest first; the state machine replays them from the commit log.
    - A read that fails raises IndexUnreadable, and never looks like the end of the rows.
    - Nothing is durable when `commit` returns. `flush(wait=True)` returns when all commits are on disk.
    - `try_commit` and `begin_flush` never hold their caller for the disk: RocksDB never delays a write here, a write
      that it would stop comes back undone, and no flush is asked for that it would put off. `commit`, `flush` and
      `close` wait.

One column family holds all tables, because rocksdict flushes one family at a time: families could reach the disk apart,
and `applied_index` would no longer tell which effects are there. See docs/index-layout.md.
"""

import contextlib
import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from rocksdict import Rdict, WriteBatch, WriteOptions

from store.descriptors import are_free
from store.errors import IndexDamaged, IndexOutdated
from store.index import keys
from store.index.rocksdb_options import WRITE_BUFFER_BYTES, rocksdb_options
from store.index.staged_writes import StagedWrites
from store.index.stored_rows import StoredRows
from store.log.errors import DiskError, DiskFull
from store.steps import ITEMS_PER_STEP, Steps

FORMAT: Final = b"3"
UPGRADED_FORMATS: Final = (b"2",)
"""Formats of earlier versions that the state machine upgrades in place (store/state/index_upgrade.py)."""
OUTDATED_FORMATS: Final = (b"1",)
"""Formats of earlier versions that did not count references to the log: such an index is rebuilt from the log."""

FLUSH_FILES_MAX: Final = 20
"""Number of files at level 0 from which on no flush is begun: compactions do not keep up, and RocksDB would have a
flush wait for them, one file before it stops writes. Full buffers are still brought to disk."""
WOULD_WAIT: Final = "Result incomplete"
"""Begin of rocksdict's message when RocksDB refuses a write for which it would have waited."""
DAMAGED: Final = "Corruption"
"""Begin of rocksdict's message when the checksum of a block does not match."""
FULL_BUFFER_BYTES: Final = WRITE_BUFFER_BYTES * 3 // 4
"""Size below which RocksDB does not replace a write buffer; it does so at the first write after the buffer is nearly
full."""
FLUSH_DESCRIPTORS: Final = 4
"""File descriptors that have to be free before a flush: for its file, and for the compaction that may follow."""
ASKED_AGAIN_BYTES: Final = 256 * 1024

FULL_ERRNOS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)
FAILED_ERRNOS: Final = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM)


class IndexFigures(NamedTuple):
    """Figures of RocksDB on its files, its memory and its work."""

    file_bytes: int
    memtable_bytes: int
    pending_compaction_bytes: int
    """Estimate of the bytes that compactions have to rewrite."""
    running_compactions: int
    running_flushes: int
    is_write_stopped: bool
    write_stops: int
    """Number of times that RocksDB has stopped all writes since the start."""
    write_waits: int
    """Number of times that a writer has waited until RocksDB took writes."""


class Index:
    """A sorted map of bytes to bytes. It has one owner; not safe for use from several threads."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.rows = StoredRows(database)
        """The committed rows."""
        self._writes = StagedWrites()
        self._staged = self._writes.values
        self.touched: list[tuple[bytes, ...]] = []
        """Staged keys with their values, in the order of staging. Replicas need not share that order: a group that was
        loaded from the index may come at another place than a group that was just created. The reader that hashes the
        list clears it.
        """
        self._batch: WriteBatch | None = None
        """The write of the first `_prepared_rows` staged keys, while it is being prepared and until it is written."""
        self._prepared_rows = 0
        self._failures_told = 0
        self._was_refused = False
        self._write_waits = 0
        self._asked_at_bytes = -ASKED_AGAIN_BYTES
        self._waiting, self._at_once = WriteOptions(), WriteOptions()
        for options in self._waiting, self._at_once:
            # The type stub declares disable_wal as a method; it is a property.
            options.disable_wal = True  # type: ignore[assignment, method-assign]
        self._at_once.no_slowdown = True

    @classmethod
    def open(cls, path: str) -> "Index":
        """Open the index at `path`; a missing index is created. Raises IndexDamaged if it cannot be opened,
        IndexUnreadable if it cannot be read, IndexOutdated if an earlier version made it, DiskFull if there is no room
        to open it, DiskError if the disk failed: the index on disk may be sound.
        """
        try:
            # Without the family named, rocksdict opens an existing database with options it finds there, which lack the
            # Bloom filters and the size of the cache.
            index = cls(Rdict(path, rocksdb_options(), column_families={"default": rocksdb_options()}))
        except Exception as error:  # rocksdict raises nothing narrower
            if (failure := _disk_error("open", path, error)) is not None:
                raise failure from error
            raise IndexDamaged(f"{path} cannot be opened: {error}") from error
        found = index.get(keys.META_FORMAT)
        if found is None and next(index.scan(b"", b"\xff"), None) is None:
            index.put(keys.META_FORMAT, FORMAT)
            index.commit()
        elif found in OUTDATED_FORMATS:
            index._database.close()
            raise IndexOutdated(f"{path} has format {found!r}, this version writes {FORMAT!r}")
        elif found != FORMAT and found not in UPGRADED_FORMATS:
            index._database.close()
            raise IndexDamaged(f"{path} has format {found!r}, this version reads {FORMAT!r}")
        return index

    @property
    def staged_rows(self) -> int:
        """Number of keys whose writes are staged."""
        return len(self._staged)

    def get(self, key: bytes) -> bytes | None:
        if key in self._staged:
            return self._staged[key]
        if self._writes.range_begins and self._writes.deleted_range(key) is not None:
            return None
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:  # rocksdict raises nothing narrower
            raise self.rows.unreadable(error) from error
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self._staged[key] = value
        self.touched.append((key, value))

    def put_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Stage many pairs, as `put` for each would."""
        self._staged.update(pairs)
        self.touched.extend(pairs)

    def delete(self, key: bytes) -> None:
        self._staged[key] = None
        self.touched.append((key,))

    def delete_all(self, deleted: Sequence[bytes]) -> None:
        """Stage many deletions, as `delete` for each would."""
        self._staged.update(dict.fromkeys(deleted))
        self.touched.extend([(key,) for key in deleted])

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete begin <= key < end, staged pairs included."""
        self._writes.delete_range(begin, end)
        self.touched.append((begin, end))

    def delete_named(self, begin: bytes, end: bytes, deleted: Sequence[bytes]) -> None:
        """Delete begin <= key < end, where `deleted` are all keys that are there: as `delete_all` of them would, and
        written as one range.
        """
        self._writes.delete_range(begin, end)
        self.touched.extend([(key,) for key in deleted])

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs of begin <= key < end in key order. Close the iterator when leaving early: it pins the
        database.

        Writes that are staged meanwhile are seen beyond the current key. The scan reads no further than its caller
        does.
        """
        writes, staged = self._writes, self._staged
        stored = self.rows.first_from(begin)
        stored_key, stored_value = next(stored, (end, b""))
        passed: bytes | None = None
        size, removals = 0, writes.removals  # as of the last call of `writes.keys()`
        keys: list[bytes] = []
        place = 0
        while True:
            if size != len(staged) or removals != writes.removals:
                keys, size, removals = writes.keys(), len(staged), writes.removals
                place = bisect_left(keys, begin) if passed is None else bisect_right(keys, passed)
            staged_key = keys[place] if place < len(keys) else end
            if stored_key < staged_key and stored_key < end:
                hidden = writes.deleted_range(stored_key) if writes.range_begins else None
                if hidden is None:
                    passed = stored_key
                    yield stored_key, stored_value
                else:
                    stored = self.rows.first_from(hidden[1])
                stored_key, stored_value = next(stored, (end, b""))
            elif staged_key < end:
                if stored_key == staged_key:
                    stored_key, stored_value = next(stored, (end, b""))
                passed = staged_key
                place += 1
                value = staged[staged_key]
                if value is not None:
                    yield staged_key, value
            else:
                return

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over every committed pair, in key order, as of this call: later writes are not seen. Drop
        it when done: it keeps its data alive in the database.
        """
        return self.rows.snapshot()

    def estimate_pairs(self) -> int:
        """Return RocksDB's estimate of the number of pairs."""
        estimate = self._database.property_int_value("rocksdb.estimate-num-keys")
        return int(estimate or 0)

    def figures(self) -> IndexFigures:
        """Return RocksDB's own figures. Costs some twenty microseconds: for a page of metrics, not for a step."""

        def number(name: str) -> int:
            return int(self._database.property_int_value(f"rocksdb.{name}") or 0)

        counted = self._database.property_value("rocksdb.cf-write-stall-stats") or ""

        def stalls(kind: str) -> int:
            found = re.search(rf"total-{kind}: (\d+)", counted)
            return int(found[1]) if found is not None else 0

        return IndexFigures(
            file_bytes=number("total-sst-files-size"),
            memtable_bytes=number("cur-size-all-mem-tables"),
            pending_compaction_bytes=number("estimate-pending-compaction-bytes"),
            running_compactions=number("num-running-compactions"),
            running_flushes=number("num-running-flushes"),
            is_write_stopped=bool(number("is-write-stopped")),
            write_stops=stalls("stops"),
            write_waits=self._write_waits,
        )

    def last(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """Return the pair with the greatest key of begin <= key < end; None if there is none."""
        writes, staged = self._writes, self._staged
        keys = writes.keys()
        place = bisect_left(keys, end) - 1
        stored = self.rows.last_before(end, begin)
        found = next(stored, None)
        while True:
            staged_key = keys[place] if place >= 0 and keys[place] >= begin else None
            if staged_key is None or (found is not None and found[0] > staged_key):
                hidden = writes.deleted_range(found[0]) if found is not None else None
                if hidden is None:
                    return found
                stored = self.rows.last_before(hidden[0], begin)
                found = next(stored, None)
            else:
                value = staged[staged_key]
                if value is not None:
                    return staged_key, value
                place -= 1
                if found is not None and found[0] == staged_key:
                    found = next(stored, None)

    def prepare_commit(self) -> Steps[None]:
        """Prepare the write that the next `commit` makes, so that it is left little to do. Until then only keys may be
        staged that are not staged yet.
        """
        self._batch, rows = self._begin_batch(), iter(self._staged.items())
        for _ in range(0, len(self._staged), ITEMS_PER_STEP):
            _fill(self._batch, islice(rows, ITEMS_PER_STEP))
            yield
        self._prepared_rows = len(self._staged)

    def _begin_batch(self) -> WriteBatch:
        batch = WriteBatch(raw_mode=True)
        for begin, end in self._writes.deleted_ranges:
            batch.delete_range(begin, end)
        return batch

    def commit(self) -> None:
        """Write all staged writes as one atomic write; not durable on return. Waits until RocksDB takes writes. Raises
        DiskFull or DiskError when it never will again, because an earlier flush did not fit or failed, and
        IndexUnreadable when a compaction has met damage.
        """
        self._commit(self._waiting)

    def try_commit(self) -> bool:
        """Commit as `commit` does, unless RocksDB takes no writes because flushes or compactions do not keep up, or the
        write may begin a flush for which no file can be opened. Return False then: nothing is written, and everything
        is staged as before. To be tried again once in a while.
        """
        if self._writes and not self._may_open_files():
            return self._refuse()
        # What was prepared is lost with a write that is refused, and to make it again takes long: an empty one asks.
        if (self._batch is not None or self._was_refused) and not self._takes_writes():
            return False
        return self._commit(self._at_once)

    def _commit(self, options: WriteOptions) -> bool:
        if not self._writes:
            return True
        batch, prepared = self._batch or self._begin_batch(), self._prepared_rows
        self._batch, self._prepared_rows = None, 0
        _fill(batch, islice(self._staged.items(), prepared, None))
        if not self._write(batch, options):
            return False
        self._writes.clear()
        return True

    def _takes_writes(self) -> bool:
        """Return whether RocksDB takes writes now. Raises as `commit` does when it never will again."""
        return self._write(WriteBatch(raw_mode=True), self._at_once)

    def _write(self, batch: WriteBatch, options: WriteOptions) -> bool:
        try:
            self._database.write(batch, options)
        except Exception as error:  # rocksdict raises nothing narrower
            if str(error).startswith(DAMAGED):  # met by a compaction
                raise self.rows.unreadable(error) from error
            if not str(error).startswith(WOULD_WAIT):  # an earlier flush has failed
                raise self._failure("write", error) from error
            return self._refuse()
        self._was_refused = False
        return True

    def _refuse(self) -> bool:
        self._write_waits += not self._was_refused
        self._was_refused = True
        return False

    def _may_open_files(self) -> bool:
        """Return whether a flush that the next write may begin finds file descriptors: without one RocksDB never takes
        a write again. Asked again when the buffer has grown by ASKED_AGAIN_BYTES.
        """
        size_bytes = self._database.property_int_value("rocksdb.cur-size-active-mem-table") or 0
        if size_bytes < FULL_BUFFER_BYTES:
            return True
        if not 0 <= size_bytes - self._asked_at_bytes < ASKED_AGAIN_BYTES:
            self._asked_at_bytes = size_bytes if are_free(FLUSH_DESCRIPTORS) else -ASKED_AGAIN_BYTES
        return self._asked_at_bytes >= 0

    def flush(self, wait: bool = True) -> None:
        """Bring all commits to disk; with wait=False only start doing so. Raises DiskFull when they do not fit,
        DiskError when the flush fails otherwise.
        """
        try:
            self._database.flush(wait)
        except Exception as error:  # rocksdict raises nothing narrower
            raise self._failure("flush", error) from error

    def _failure(self, operation: str, error: Exception) -> DiskError:
        path = self._database.path()
        return _disk_error(operation, path, error) or DiskError(operation, path, 0, str(error))

    @property
    def is_flushing(self) -> bool:
        """True while the rows of a flush are not on disk yet; for ever when the flush has failed."""
        return bool(self._database.property_int_value("rocksdb.num-immutable-mem-table"))

    def begin_flush(self) -> bool:
        """Start a flush without waiting. Return False while an earlier flush is not done or compactions do not keep up,
        for which RocksDB would wait, while it takes no writes, when it would refuse, or while it could open no file.
        Raises DiskFull or DiskError, once, when the earlier one has failed, or IndexUnreadable.
        """
        database = self._database
        if self.is_flushing:
            failures = database.property_int_value("rocksdb.background-errors") or 0
            if failures > self._failures_told:
                self._failures_told = failures
                self._takes_writes()  # RocksDB tells only those who wait for the flush, or write
            return False
        if int(database.property_value("rocksdb.num-files-at-level0") or 0) >= FLUSH_FILES_MAX:
            return False
        if database.property_int_value("rocksdb.is-write-stopped") or not are_free(FLUSH_DESCRIPTORS):
            return False
        self.flush(wait=False)
        return True

    def close(self) -> None:
        """Flush and close; writes that are staged and not committed are dropped. Raises DiskFull or DiskError when
        commits since the last flush are not on disk; the index is closed all the same.
        """
        self._writes.clear()
        try:
            self.flush()
        except DiskError:
            with contextlib.suppress(Exception):  # close tries to flush once more, and closes even if that fails
                self._database.close()
            raise
        self._database.close()

    def beginning(self, prefixes: Sequence[bytes]) -> list[bool]:
        """Return for each prefix whether a key begins with it, which costs less than a scan for each. It may be true
        all the same where such keys are deleted by what is staged.
        """
        staged, found = self._writes.keys(), self.rows.beginning(prefixes)
        for number, prefix in enumerate(prefixes):
            place = bisect_left(staged, prefix)
            found[number] |= place < len(staged) and staged[place].startswith(prefix)
        return found


def _fill(batch: WriteBatch, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
    put = batch.put
    for key, value in rows:
        if value is None:
            batch.delete(key)
        else:
            put(key, value)


def _disk_error(operation: str, path: str, error: Exception) -> DiskError | None:
    """Return the operating system's error, which RocksDB reports only in its text; None when the error is of another
    kind.
    """
    for kind, numbers in ((DiskFull, FULL_ERRNOS), (DiskError, FAILED_ERRNOS)):
        for number in numbers:
            if os.strerror(number) in str(error):
                return kind(operation, path, number, str(error))
    return None
