"""A table of Parquet files, whose names say what is committed."""

from datetime import datetime
from pathlib import Path
from typing import Any

from keelmq_spark.tables import layout
from keelmq_spark.tables.layout import FILES_PER_WRITE, OPEN, SMALL_FILE_BYTES, TIMES
from keelmq_spark.tables.published import Rows
from keelmq_spark.tables.rewriting import merge, name_of, range_of, remove_older, split_replaced, write_file


class ParquetFiles:
    """A table of Parquet files, each named by the last Raft index of its batch, or by that of its first and its last
    batch. Files beyond the committed index are not part of it.

    The open rows are those of the newest file among the open ones."""

    def __init__(self, path: Path, name: str, raft_index: int) -> None:
        """`raft_index` is the last committed index."""
        self._path = path / name
        self._name = name
        self._through = self._committed = raft_index
        self._writes = 0
        """Number of writes whose small files are not compacted yet."""

    @property
    def version(self) -> int | None:
        return None

    def recover(self) -> None:
        for left in self._path.rglob("part-*.parquet"):
            if _index_of(left) > self._committed:
                left.unlink()
        kept, replaced = split_replaced(list(self._path.rglob("part-*.parquet")))
        for left in (*replaced, *self._path.rglob(".part-*.next")):
            left.unlink()
        self._writes = sum(path.stat().st_size < SMALL_FILE_BYTES for path in kept) // FILES_PER_WRITE[self._name]

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        for part in layout.parts(self._name, rows, open_rows):
            if part.rows.num_rows or part.rows is open_rows:
                path = self._path.parent / part.folder(self._name) / name_of(raft_index)
                write_file(part.rows, path, self._name)
        self._through = raft_index
        self._writes += 1

    def committed(self) -> None:
        # Readers may still be at the commit before this one. Its open rows may be older than it: a batch without events
        # writes none.
        open_files = self._path.glob(f"{OPEN}=true/part-*.parquet")
        earlier = sorted((path for path in open_files if _index_of(path) <= self._committed), key=_index_of)
        for old in earlier[:-1]:
            old.unlink()
        self._committed = self._through
        if self._writes >= layout.compact_after(self._name):
            self._writes = 0
            self.compact()

    def files(self) -> list[str]:
        found = [path for path in self._path.rglob("part-*.parquet") if _index_of(path) <= self._through]
        files, _ = split_replaced(found)
        newest = max((_index_of(path) for path in files if path.parent.name == f"{OPEN}=true"), default=0)
        return sorted(str(path) for path in files if path.parent.name != f"{OPEN}=true" or _index_of(path) == newest)

    def rows(self) -> Rows:
        return Rows(self.files())

    def compact(self) -> None:
        by_directory: dict[Path, list[Path]] = {}
        for path in self._settled():
            by_directory.setdefault(path.parent, []).append(path)
        for files in by_directory.values():
            merge(files, self._name, SMALL_FILE_BYTES)

    def prune(self, before: datetime) -> int:
        return sum(remove_older(path, TIMES[self._name], before, self._name) for path in self._settled())

    def _settled(self) -> list[Path]:
        files, _ = split_replaced(list(self._path.rglob("part-*.parquet")))
        return [path for path in files if _index_of(path) <= self._committed and path.parent.name != f"{OPEN}=true"]


def _index_of(path: Path) -> int:
    return range_of(path)[1]
