"""Damaged rows of the index are an error for whoever reads them, and never look like the end of the rows."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DbClosedError, Rdict

from store.errors import IndexUnreadable
from store.index.index import Index
from store.log.errors import DiskError
from tests.descriptors import without_descriptors

ROWS = 4000
KEYS = [b"r%05d" % number for number in range(ROWS)]

Read = Callable[[Index], object]
READS: dict[str, Read] = {
    "get": lambda index: [index.get(key) for key in KEYS],
    "scan": lambda index: list(index.scan(b"r", b"s")),
    "scan with staged rows": lambda index: list(index.scan(b"r", b"s")),
    "scan of a part": lambda index: [list(index.scan(key, key + b"\xff")) for key in KEYS],
    "last": lambda index: [index.last(b"r", key) for key in KEYS],
    "pairs": lambda index: list(index.pairs()),
    "beginning": lambda index: index.beginning(KEYS),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the directory of a closed index, one block of which is damaged."""
    path = tmp_path / "index"
    index = Index.open(str(path))
    index.put_all([(key, os.urandom(100)) for key in KEYS])
    index.commit()
    index.close()
    (file,) = path.glob("*.sst")
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(b"damaged")
    return path


@pytest.mark.parametrize("name", READS)
def test_a_read_that_meets_a_damaged_block_fails_and_tells_the_node(path: Path, name: str) -> None:
    index, told = Index.open(str(path)), list[str]()
    if "staged" in name:
        index.put(b"rz", b"")
    index.rows.on_unreadable = told.append
    with pytest.raises(IndexUnreadable, match="block checksum mismatch") as failed:
        READS[name](index)
    assert told == [str(failed.value)]
    index.close()


def test_rows_before_the_damaged_block_are_read(path: Path) -> None:
    index = Index.open(str(path))
    assert [key for key, _ in index.scan(b"r", KEYS[100])] == KEYS[:100]
    assert index.get(KEYS[-1]) is not None
    assert index.beginning([KEYS[0], b"s"]) == [True, False]
    assert [key for key, _ in index.scan(KEYS[-10], b"s")] == KEYS[-10:]
    index.close()


def test_a_compaction_that_meets_a_damaged_block_is_told_by_the_next_write(path: Path) -> None:
    index = Index.open(str(path))

    def write() -> None:
        for number in range(1000):
            index.put_all([(key, b"%d" % number) for key in KEYS[::100]])
            index.commit()
            with contextlib.suppress(DiskError):  # it waits, and hears of the compaction as well
                index.flush()

    told: list[str] = []
    index.rows.on_unreadable = told.append
    with pytest.raises(IndexUnreadable, match="block checksum mismatch"):
        write()
    assert len(told) == 1
    with pytest.raises(DiskError):
        index.close()


class WithoutDescriptors:
    """A database whose iterators over pairs find no descriptor for a file of the table."""

    def __init__(self, database: Rdict) -> None:
        self._database = database
        self.found = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def items(self, from_key: bytes) -> Iterator[Any]:
        with without_descriptors():
            pairs = list(self._database.items(from_key=from_key))
        self.found = len(pairs)
        return iter(pairs)


def test_a_want_of_descriptors_that_is_over_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "index")
    monkeypatch.setattr("store.index.rocksdb_options.OPEN_FILES_MAX", 20)  # so that a table's file may be closed
    index = Index.open(path)
    for number in range(60):
        index.put_all([(b"r%02d-%d" % (number, each), b"x" * 100) for each in range(50)])
        index.commit()
        index.flush()
        if number == 30:
            index._database.compact_range(None, None)
    index.close()
    index, told = Index.open(path), list[str]()
    index.rows.on_unreadable = told.append
    database = WithoutDescriptors(index._database)
    monkeypatch.setattr(index.rows, "_database", database)
    assert len(list(index.scan(b"r", b"s"))) == 60 * 50
    assert database.found < 60 * 50, "it was short"
    assert not told
    monkeypatch.undo()
    index.close()


def test_a_read_after_the_end_is_no_damage(path: Path) -> None:
    index, told = Index.open(str(path)), list[str]()
    index.rows.on_unreadable = told.append
    scan = index.scan(b"r", b"s")
    next(scan)
    index.close()
    with pytest.raises(DbClosedError):
        index.get(KEYS[0])
    with pytest.raises(DbClosedError):
        list(scan)
    assert not told


def test_pairs_of_rocksdict_just_end_at_a_damaged_block(path: Path) -> None:
    """Once the library raises there itself, StoredRows need no longer ask whether rows follow."""
    index = Index.open(str(path))
    assert 0 < len(list(index._database.items(from_key=b"r"))) < ROWS
    index.close()
