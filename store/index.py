"""The RocksDB index: everything that is derived from the commit log, also what was removed from its front since.

Promises
    - Writes are staged with `put`, `delete` and `delete_range` and are visible to `get` and `scan` at once; `commit`
      makes all of them one RocksDB write. What is staged is never on disk without the rest of it.
    - The write-ahead log of RocksDB is off: the commit log is the WAL. A process that dies loses the newest commits,
      and only whole ones, newest first; the state machine replays them from the commit log.
    - Nothing is durable when `commit` returns. `flush(wait=True)` returns when everything committed is on disk.

One column family holds all tables, because rocksdict flushes one family at a time: families could reach the disk
apart, and `applied_index` would no longer tell which effects are there. See docs/index-layout.md.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final, cast

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from store import keys
from store.errors import IndexDamaged, IndexOutdated
from store.log_errors import DiskError, DiskFull

FORMAT: Final = b"3"
UPGRADED_FORMATS: Final = (b"2",)
"""Of earlier versions; such an index is upgraded in place when the state machine loads it (store/index_upgrade.py)."""
OUTDATED_FORMATS: Final = (b"1",)
"""Of earlier versions, which did not count what points at the log: such an index is made anew from the log."""

WRITE_BUFFER_BYTES: Final = 8 * 1024 * 1024
WRITE_BUFFERS_MAX: Final = 3
BLOCK_CACHE_BYTES: Final = 12 * 1024 * 1024
METADATA_BLOCK_BYTES: Final = 4096
OPEN_FILES_MAX: Final = 128
BACKGROUND_JOBS_MAX: Final = 2
BLOOM_BITS_PER_KEY: Final = 10


class Index:
    """A sorted map of bytes to bytes. One owner; not safe for use from several threads."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self._staged: dict[bytes, bytes | None] = {}
        self._deleted_ranges: list[tuple[bytes, bytes]] = []
        self._write_options = WriteOptions()
        # The stub calls it a method; it is a property.
        self._write_options.disable_wal = True  # type: ignore[assignment, method-assign]

    @classmethod
    def open(cls, path: str) -> "Index":
        """Open the index at `path`; a missing one is created. IndexDamaged if it cannot be opened or read,
        IndexOutdated if an earlier version made it, DiskFull if there is no room to open it."""
        try:
            # Without the family named, rocksdict opens an existing database with options it finds there, which lack the
            # Bloom filters and the size of the cache.
            index = cls(Rdict(path, _options(), column_families={"default": _options()}))
        except Exception as error:  # rocksdict raises nothing narrower
            if _says_full(error):
                raise _full("open", path) from error
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

    def get(self, key: bytes) -> bytes | None:
        if key in self._staged:
            return self._staged[key]
        if self._deleted_ranges and self._in_deleted_range(key):
            return None
        value: bytes | None = self._database.get(key)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        self._staged[key] = value

    def delete(self, key: bytes) -> None:
        self._staged[key] = None

    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete begin <= key < end, what is staged included."""
        for key in [key for key in self._staged if begin <= key < end]:
            del self._staged[key]
        self._deleted_ranges.append((begin, end))

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The pairs of begin <= key < end in key order. Close the iterator when leaving early: it pins the database."""
        stored = self._scan_database(begin, end)
        if not self._staged and not self._deleted_ranges:
            return stored
        return self._merge_staged(begin, end, stored)

    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Every committed pair, in key order, as of this call: what is written later is not seen. Drop it when done: it
        keeps what it shows.
        """
        return cast(Iterator[tuple[bytes, bytes]], self._database.snapshot().items(from_key=b""))

    def estimate_pairs(self) -> int:
        """About how many pairs there are."""
        estimate = self._database.property_int_value("rocksdb.estimate-num-keys")
        return int(estimate or 0)

    def last(self, begin: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the greatest key of begin <= key < end. While much is staged it looks at all of that."""
        staged = max(
            ((key, value) for key, value in self._staged.items() if begin <= key < end and value is not None),
            default=None,
        )
        pairs = cast(Iterator[tuple[bytes, bytes]], self._database.items(backwards=True, from_key=end))
        for key, value in pairs:
            if key < begin or (staged is not None and key <= staged[0]):
                break
            if key < end and key not in self._staged and not self._in_deleted_range(key):
                return key, value
        return staged

    def commit(self) -> None:
        """Write everything staged as one atomic write; not durable on return."""
        if not self._staged and not self._deleted_ranges:
            return
        batch = WriteBatch(raw_mode=True)
        for begin, end in self._deleted_ranges:
            batch.delete_range(begin, end)
        put = batch.put
        for key, value in self._staged.items():
            if value is None:
                batch.delete(key)
            else:
                put(key, value)
        self._database.write(batch, self._write_options)
        self._staged.clear()
        self._deleted_ranges.clear()

    def flush(self, wait: bool = True) -> None:
        """Bring everything committed to disk; with wait=False only start doing so. DiskFull when it does not fit,
        DiskError when it fails otherwise.
        """
        try:
            self._database.flush(wait)
        except Exception as error:  # rocksdict raises nothing narrower
            path = self._database.path()
            raise (_full("flush", path) if _says_full(error) else DiskError("flush", path, 0, str(error))) from error

    def close(self) -> None:
        """Flush and close. What is staged and not committed is dropped. DiskFull or DiskError when what was committed
        since the last flush is not on disk; it is closed all the same."""
        self._staged.clear()
        self._deleted_ranges.clear()
        try:
            self.flush()
        except DiskError:
            with contextlib.suppress(Exception):  # it tries to flush once more, and is closed whatever comes of that
                self._database.close()
            raise
        self._database.close()

    def _in_deleted_range(self, key: bytes) -> bool:
        return any(begin <= key < end for begin, end in self._deleted_ranges)

    def _scan_database(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in cast(Iterator[tuple[bytes, bytes]], self._database.items(from_key=begin)):
            if key >= end:
                return
            yield key, value

    def _merge_staged(
        self, begin: bytes, end: bytes, stored: Iterator[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, bytes]]:
        """Reads no further than the caller does: what is stored may be much more than what is staged."""
        staged = sorted((key, value) for key, value in self._staged.items() if begin <= key < end)
        deleted_ranges = tuple(self._deleted_ranges)
        ahead = iter(staged)
        next_key, next_value = next(ahead, (end, None))
        for key, value in stored:
            while next_key < key:
                if next_value is not None:
                    yield next_key, next_value
                next_key, next_value = next(ahead, (end, None))
            if next_key != key and not any(first <= key < last for first, last in deleted_ranges):
                yield key, value
        while next_key < end:
            if next_value is not None:
                yield next_key, next_value
            next_key, next_value = next(ahead, (end, None))


def _options() -> Options:
    """Small: the index shares the memory of an idle node (<= 120 MiB) with Python and the HTTP server."""
    table = BlockBasedOptions()
    table.set_block_cache(Cache(BLOCK_CACHE_BYTES))
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # In parts of a page each: the filter of a large file is larger than a shard of the cache, is never kept there, and
    # would be read as a whole for every single key.
    table.set_index_type(BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(METADATA_BLOCK_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_max_background_jobs(BACKGROUND_JOBS_MAX)
    options.set_max_open_files(OPEN_FILES_MAX)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * 1024 * 1024)
    return options


def _says_full(error: Exception) -> bool:
    """RocksDB tells so by a text only."""
    return os.strerror(errno.ENOSPC) in str(error)


def _full(operation: str, path: str) -> DiskFull:
    return DiskFull(operation, path, errno.ENOSPC, os.strerror(errno.ENOSPC))
