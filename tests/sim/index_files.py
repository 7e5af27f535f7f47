"""The indexes of simulated nodes, kept in RocksDB or in a map that does the same as RocksDB, much faster.

Either way a dead process leaves only flushed data: its files, copied while it still has them open. A test runs seeds
both ways and compares their traces.
"""

import shutil
import tempfile
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from unittest import mock
from weakref import WeakSet

from rocksdict import Options

import store.index.index
from store.index.index import Index
from store.index.rocksdb_options import rocksdb_options

FLUSHES_PER_COMPACTION = 8
ASKS_PER_FLUSH = 3
MEMORY_DIRECTORY = Path("/dev/shm")


class StillIndex(Index):
    """An index that does nothing in the background, so that the files at a crash are a function of the seed. A flush
    that nobody waits for is done when it was asked for ASKS_PER_FLUSH times.
    """

    _flushes = 0
    _asks_left = 0

    @classmethod
    def open(cls, path: str) -> "StillIndex":
        index = super().open(path)
        assert isinstance(index, StillIndex)
        return index

    @property
    def is_flushing(self) -> bool:
        if self._asks_left:
            self._asks_left -= 1
            if not self._asks_left:
                self.flush()
        return bool(self._asks_left)

    def flush(self, wait: bool = True) -> None:
        if not wait:
            self._asks_left = ASKS_PER_FLUSH
            return
        self._asks_left = 0
        super().flush()
        self._flushes += 1
        if self._flushes % FLUSHES_PER_COMPACTION == 0:  # every read looks into every file
            self._database.compact_range(None, None)


def _still_options() -> Options:
    """Return options without automatic compactions from the start: a compaction that begins while a database is opened
    would run into a copy of its files.
    """
    options = rocksdb_options()
    options.set_disable_auto_compactions(True)
    return options


class IndexFiles(Protocol):
    """The indexes of one run, by name."""

    def installed(self) -> AbstractContextManager[object]:
        """Prepare the indexes. No other method may be called outside this context, and no file is left after it."""
        ...

    def open(self, name: str) -> Index: ...
    def copy(self, name: str, to: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def exists(self, name: str) -> bool: ...
    def move(self, name: str, to: str) -> None: ...


class RocksFiles:
    """Indexes in RocksDB, in a directory of their own, in memory where possible."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        parent = MEMORY_DIRECTORY if MEMORY_DIRECTORY.is_dir() else None
        still = mock.patch("store.index.index.rocksdb_options", _still_options)
        with tempfile.TemporaryDirectory(prefix="keelmq-sim-", dir=parent) as directory, still:
            self._directory = Path(directory)
            yield

    def open(self, name: str) -> Index:
        return StillIndex.open(str(self._directory / name))

    def copy(self, name: str, to: str) -> None:
        shutil.copytree(self._directory / name, self._directory / to, copy_function=_copy_if_there)

    def remove(self, name: str) -> None:
        shutil.rmtree(self._directory / name)

    def exists(self, name: str) -> bool:
        return (self._directory / name).exists()

    def move(self, name: str, to: str) -> None:
        (self._directory / name).rename(self._directory / to)


def _copy_if_there(source: str, target: str) -> None:
    """Copy a file unless it is gone: RocksDB deletes files that a compaction has replaced, which nobody needs."""
    with suppress(FileNotFoundError):
        shutil.copy(source, target)


class MemoryFiles:
    def __init__(self) -> None:
        self._flushed: dict[str, dict[bytes, bytes]] = {}

    def installed(self) -> AbstractContextManager[object]:
        return mock.patch.multiple(
            store.index.index,
            Rdict=self._database,
            WriteBatch=MemoryBatch,
            WriteOptions=mock.Mock,
            rocksdb_options=lambda: None,
        )

    def open(self, name: str) -> Index:
        return StillIndex.open(name)

    def copy(self, name: str, to: str) -> None:
        self._flushed[to] = self._flushed[name]

    def remove(self, name: str) -> None:
        del self._flushed[name]

    def exists(self, name: str) -> bool:
        return name in self._flushed

    def move(self, name: str, to: str) -> None:
        self._flushed[to] = self._flushed.pop(name)

    def _database(self, name: str, options: None, column_families: object) -> "MemoryDatabase":
        return MemoryDatabase(self._flushed, name)


class MemoryBatch:
    """A replacement of `rocksdict.WriteBatch`."""

    def __init__(self, raw_mode: bool) -> None:
        assert raw_mode
        self.puts: list[tuple[bytes, bytes | None]] = []
        self.ranges: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.puts.append((key, value))

    def delete(self, key: bytes) -> None:
        self.puts.append((key, None))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        assert not self.puts, "ranges come first"
        self.ranges.append((begin, end))


class MemoryIterator:
    """A replacement of `rocksdict.RdictIter`. One that was placed with `seek` keeps what it sees, whatever is written
    later; one that walks downwards does not survive a write.
    """

    def __init__(self, database: "MemoryDatabase") -> None:
        self._database, self._keys, self._values = database, database._keys, database._values
        self._writes: int | None = database._writes
        self._place = -1

    def seek(self, key: bytes) -> None:
        self._place = bisect_left(self._keys, key)
        self._writes = None
        self._database._pinned.add(self)

    def seek_for_prev(self, key: bytes) -> None:
        self._place = bisect_right(self._keys, key) - 1

    def next(self) -> None:
        self._place += 1

    def prev(self) -> None:
        self._place -= 1

    def valid(self) -> bool:
        assert self._writes in (None, self._database._writes), "written to while it was read"
        return 0 <= self._place < len(self._keys)

    def key(self) -> bytes:
        return self._keys[self._place]

    def value(self) -> bytes:
        return self._values[self._keys[self._place]]

    def status(self) -> None:
        """Do nothing, because memory can be read."""


class MemoryDatabase:
    """A replacement of `rocksdict.Rdict` in raw mode, as far as the index uses it."""

    def __init__(self, flushed: dict[str, dict[bytes, bytes]], name: str) -> None:
        self._flushed, self._name = flushed, name
        self._values = dict(flushed.setdefault(name, {}))
        self._keys = sorted(self._values)
        self._writes = 0
        self._pinned: WeakSet[MemoryIterator] = WeakSet()

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def items(self, *, from_key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs from `from_key` on. Unlike RocksDB's iterator, this one does not survive a write."""
        keys, writes = self._keys, self._writes
        for place in range(bisect_left(keys, from_key), len(keys)):
            yield keys[place], self._values[keys[place]]
            assert writes == self._writes, "written to while it was read"

    def iter(self) -> "MemoryIterator":
        return MemoryIterator(self)

    def property_int_value(self, name: str) -> int:
        return {
            "rocksdb.estimate-num-keys": len(self._keys),
            "rocksdb.num-immutable-mem-table": 0,
            "rocksdb.is-write-stopped": 0,
            "rocksdb.cur-size-active-mem-table": 0,
            "rocksdb.background-errors": 0,
        }[name]

    def property_value(self, name: str) -> str:
        return {"rocksdb.num-files-at-level0": "0"}[name]

    def write(self, batch: MemoryBatch, options: object) -> None:
        self._writes += 1
        if self._pinned:
            self._values, self._keys = dict(self._values), list(self._keys)
            self._pinned.clear()
        values, keys = self._values, self._keys
        for begin, end in batch.ranges:
            first, last = bisect_left(keys, begin), bisect_left(keys, end)
            for key in keys[first:last]:
                del values[key]
            del keys[first:last]
        for key, value in batch.puts:
            if value is None:
                if values.pop(key, None) is not None:
                    del keys[bisect_left(keys, key)]
            else:
                if key not in values:
                    insort(keys, key)
                values[key] = value

    def flush(self, wait: bool) -> None:
        self._flushed[self._name] = dict(self._values)

    def compact_range(self, begin: None, end: None) -> None:
        """Do nothing, because there is nothing to gain."""

    def close(self) -> None:
        """Do nothing, because the index flushes first."""
