"""Storage of the tables: Delta or Parquet files under one path, which change together, with a commit (commits.py).

Rows that were written and not committed are undone when a job begins (`recover`), and readers never see them. So a job
that was killed at any point goes on from the last commit, wherever its batches begin and end.
"""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.tables.commits import Commit, Commits, Format, TablesError, TablesInUse
from keelmq_spark.tables.published import published_in
from keelmq_spark.tables.rewriting import (
    ROW_GROUP_ROWS,
    merge,
    name_of,
    range_of,
    remove_older,
    split_replaced,
    statistics,
    write_file,
)
from keelmq_spark.tables.schema import ADDED_COLUMNS as ADDED_COLUMNS
from keelmq_spark.tables.schema import EDGES, NODES
from keelmq_spark.tables.schema import SCHEMA as SCHEMA

APPLICATION: Final = "keelmq-lineage"
COMPACT_EVERY: Final = 200
"""Number of writes of a table, by this job or earlier ones, after which its small files are compacted into large
ones."""
SMALL_FILE_BYTES: Final = 16 * 1024 * 1024
FILES_PER_WRITE: Final = {"events": 1, "nodes": 1, "edges": 5}
"""Files that a write usually adds to a table; a write of edges has a file for each kind that it has."""
VACUUM_AFTER_HOURS: Final = 1
"""Hours that a reader may continue with files that a compaction replaced."""
TIMES: Final = {"events": "ts", "nodes": "last_ts", "edges": "ts"}
"""Columns with the time by which rows are pruned."""
STATED: Final = {"events": ["ts", "raft_index", "offset"], "nodes": ["first_ts", "last_ts"], "edges": ["ts"]}
"""Columns whose least and greatest value in each file a Delta table tells, so that queries skip files."""

LOOKED_UP: Final = {"events": ["message_id"], "nodes": ["node_id"], "edges": ["src", "dst"]}
"""Columns with a Bloom filter: a look-up reads only row groups that may contain the value."""
_OPEN: Final = "open"
_REORGANIZED: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "ADD COLUMN")
"""Operations of Delta that leave the rows as they are."""
PARTITIONS: Final[dict[str, str | None]] = {"events": None, "nodes": _OPEN, "edges": "kind"}
"""Partition column by table. `open` of a node means that it may still change: the next batch replaces it."""


class Table(Protocol):
    """One table, as of the last commit and the writes since then."""

    @property
    def version(self) -> int | None:
        """Version that a commit names; None where the files' names say what is committed."""

    def recover(self) -> None:
        """Undo what was written and not committed."""

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        """Add `rows`, the last of them of the entry `raft_index`, and replace the open rows if `open_rows` is given.

        Raises TablesInUse when another job has written the table."""

    def committed(self) -> None:
        """Note that what was written is committed, and remove or combine files where that is due."""

    def files(self) -> list[str]:
        """Return the Parquet files that make up the table now."""

    def compact(self) -> None:
        """Combine many small files into few large ones; the rows stay the same."""

    def prune(self, before: datetime) -> int:
        """Remove rows whose time is before `before`, except open ones, and return their number."""


class Tables:
    """Owns the three tables and their commits under `path`. `format` applies to new tables."""

    def __init__(self, path: str | Path, format: Format = "delta") -> None:
        self.path = Path(path).absolute()
        self._commits = Commits(self.path)
        self.commit: Commit | None = self._commits.last()
        """The last commit; None before the first."""
        self.format = self.commit.format if self.commit is not None else format
        self.events = self._table("events")
        self.nodes = self._table("nodes")
        self.edges = self._table("edges")

    def _table(self, name: str) -> Table:
        if self.format == "delta":
            return DeltaFiles(self.path, name, self.commit.tables[name] if self.commit is not None else None)
        return ParquetFiles(self.path, name, self.next_index - 1)

    @property
    def next_index(self) -> int:
        """Raft index of the first entry that is not in the tables; 0 before the first commit."""
        return self.commit.end_index if self.commit is not None else 0

    @property
    def all(self) -> dict[str, Table]:
        return {"events": self.events, "nodes": self.nodes, "edges": self.edges}

    def recover(self) -> bytes | None:
        """Undo what was not committed, and return the state of the last commit; None before the first.

        Raises TablesError for tables that an earlier version made."""
        if self.commit is None and any((self.path / "_state").glob("*.state")):
            raise TablesError(
                f"{self.path} has tables of an earlier version, which do not say of which log they are: name another "
                "directory, and the job makes them anew from the log"
            )
        for table in self.all.values():
            table.recover()
        return self._commits.state(self.commit) if self.commit is not None else None

    def require_current(self) -> None:
        """Raise TablesInUse when another job has committed since the last commit."""
        newest = self._commits.last()
        if newest != self.commit:
            raise TablesInUse(f"{self.path} was changed by another job: only one job may write a set of tables")

    def add_commit(self, cluster_uid: str, begin_index: int, end_index: int, state: bytes | None) -> None:
        """Commit everything that was written. `state` is None when it is that of the last commit.

        Raises TablesInUse when another job has committed since the last commit."""
        before = self.commit
        if state is not None:
            state_name = self._commits.write_state(state)
        elif before is not None:
            state_name = before.state
        else:
            raise ValueError("the first commit needs a state")
        versions = {name: table.version for name, table in self.all.items()}
        self.commit = Commit(
            number=before.number + 1 if before is not None else 1,
            format=self.format,
            cluster_uid=cluster_uid,
            begin_index=begin_index,
            end_index=end_index,
            tables={name: version for name, version in versions.items() if version is not None},
            state=state_name,
            schema=max(SCHEMA, before.schema if before is not None else SCHEMA),
        )
        self._commits.add(self.commit)
        self._commits.remove_others(self.commit, *([before] if before is not None else []))
        for table in self.all.values():
            table.committed()

    def compact(self) -> None:
        """Combine many small files into few large ones. Raises TablesInUse when another job writes the tables."""
        self.require_current()
        for table in self.all.values():
            table.compact()
        self._commit_rewritten()

    def prune(self, before: datetime) -> dict[str, int]:
        """Remove what happened before `before`: events, edges, and nodes that no longer change. Return the number of
        removed rows by table. Raises TablesInUse when another job writes the tables.
        """
        self.require_current()
        removed = {name: table.prune(before) for name, table in self.all.items()}
        self._commit_rewritten()
        return removed

    def _commit_rewritten(self) -> None:
        if self.commit is not None:
            self.add_commit(self.commit.cluster_uid, self.commit.end_index, self.commit.end_index, None)

    def published(self, topic: str, queue: int, begin: int, end: int) -> Any:
        """Return `offset`, `node_id`, `tag`, `key` and `properties` of the messages at begin <= offset < end, from the
        table `events`.
        """
        return published_in(self.events.files(), topic, queue, begin, end)


class _Part(NamedTuple):
    """Rows of one partition of a table."""

    value: str | None
    rows: Any

    def name(self, column: str | None, raft_index: int) -> str:
        file = name_of(raft_index)
        return file if column is None else f"{column}={self.value}/{file}"


def _parts(name: str, rows: Any, open_rows: Any) -> list[_Part]:
    """Split `rows` by partition, and drop the column that the partition's name contains."""
    if name == "nodes":
        return [_Part("false", rows), _Part("true", open_rows)]
    if name != "edges":
        return [_Part(None, rows)]
    kinds = sorted(pc.unique(rows["kind"]).to_pylist())
    return [_Part(kind, rows.filter(pc.equal(rows["kind"], kind)).drop_columns(["kind"])) for kind in kinds]


class DeltaFiles:
    """A Delta table. The commit names its version; later versions are undone, unless they only reorganized files."""

    def __init__(self, path: Path, name: str, version: int | None) -> None:
        """`version` is the committed version; None before the first commit, when the table is empty."""
        self._path = path / name
        self._name = name
        self._partition = PARTITIONS[name]
        self._table: Any = None
        self._version = version
        self._writes = 0
        """Number of writes whose small files are not compacted yet."""

    @property
    def version(self) -> int | None:
        return self._version

    def recover(self) -> None:
        table = self._newest()
        if table is None:
            table = self._create()
        settled = self._settled_version(table)
        if table.version() != settled:
            table.restore(settled)
        self._add_columns(table)
        self._table, self._version = table, table.version()
        sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
        self._writes = sum(size < SMALL_FILE_BYTES for size in sizes) // FILES_PER_WRITE[self._name]

    def _add_columns(self, table: Any) -> None:
        """Give a table of an earlier version its new columns, in place; its rows have null there."""
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        known = {field.name for field in table.schema().fields}
        missing = [name for name in ADDED_COLUMNS[self._name] if name not in known]
        if missing:
            table.alter.add_columns([Field(name, PrimitiveType("string"), nullable=True) for name in missing])

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError

        table = self._table
        table.update_incremental()
        self._require_own(table)
        properties = CommitProperties(app_transactions=[Transaction(APPLICATION, raft_index)])
        actions = [] if open_rows is None else self._removals(table)
        for part in _parts(self._name, rows, open_rows):
            actions += self._add(part, raft_index)
        partition_by = [self._partition] if self._partition else []
        try:
            table.create_write_transaction(
                actions, "append", table.schema(), partition_by=partition_by, commit_properties=properties
            )
        except CommitFailedError as exc:
            raise TablesInUse(f"{self._path} was changed by another job: {exc}") from exc
        table.update_incremental()
        self._version = (self._version or 0) + 1
        self._require_own(table)
        self._writes += 1

    def committed(self) -> None:
        if self._writes >= _compact_after(self._name):
            self._writes = 0
            self.compact()

    def prune(self, before: datetime) -> int:
        table = self._table
        table.update_incremental()
        self._require_own(table)
        condition = f"{TIMES[self._name]} < arrow_cast('{before.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
        settled = f"{_OPEN} = false AND " if self._partition == _OPEN else ""
        removed = table.delete(settled + condition)["num_deleted_rows"]
        table.update_incremental()
        self._version = table.version()
        return int(removed or 0)

    def files(self) -> list[str]:
        table = self._table
        if table is None:
            table = self._newest()
            if table is None:
                return []
            settled = self._settled_version(table)
            if table.version() != settled:
                table.load_as_version(settled)
        return [uri.removeprefix("file://") for uri in table.file_uris()]

    def _require_own(self, table: Any) -> None:
        if table.version() != self._version:
            raise TablesInUse(f"{self._path} was changed by another job: only one job may write a set of tables")

    def _settled_version(self, table: Any) -> int:
        """Return the version of `table`, the newest one, that has the committed rows."""
        committed: int = self._version or 0
        newest: int = table.version()
        later = newest - committed
        if later <= 0:
            return committed
        operations = [each["operation"] for each in table.history(later)]
        return newest if all(operation in _REORGANIZED for operation in operations) else committed

    def compact(self) -> None:
        """Combine many small files into few large ones; the rows stay the same."""
        from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties

        table = self._table
        bloom = ColumnProperties(bloom_filter_properties=BloomFilterProperties(set_bloom_filter_enabled=True))
        writer = WriterProperties(
            compression="ZSTD",
            max_row_group_size=ROW_GROUP_ROWS,
            column_properties=dict.fromkeys(LOOKED_UP[self._name], bloom),
        )
        settled: Any = [(_OPEN, "=", "false")] if self._partition == _OPEN else None
        table.optimize.compact(partition_filters=settled, writer_properties=writer)
        table.vacuum(VACUUM_AFTER_HOURS, dry_run=False, enforce_retention_duration=False)
        table.create_checkpoint()
        table.update_incremental()
        self._version = table.version()

    def _newest(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(str(self._path)) if DeltaTable.is_deltatable(str(self._path)) else None

    def _create(self) -> Any:
        from deltalake import DeltaTable

        columns = _schema(self._name)
        if self._partition is not None and self._partition not in columns.names:
            columns = columns.append(pa.field(self._partition, pa.bool_()))
        return DeltaTable.create(str(self._path), columns, mode="ignore", partition_by=self._partition, name=self._name)

    def _add(self, part: _Part, raft_index: int) -> list[Any]:
        from deltalake.transaction import AddAction

        if not part.rows.num_rows:
            return []
        name = part.name(self._partition, raft_index)
        size = write_file(part.rows, self._path / name, LOOKED_UP[self._name])
        values = {} if self._partition is None else {self._partition: part.value}
        stated = json.dumps(statistics(part.rows, STATED[self._name]))
        return [AddAction(name, size, values, _now_ms(), True, stated)]

    def _removals(self, table: Any) -> list[Any]:
        from deltalake._internal import RemoveAction

        uris = table.file_uris(file_pruning_predicate=[(_OPEN, "=", "true")])
        names = [f"{_OPEN}=true/{uri.rpartition('/')[2]}" for uri in uris]
        return [RemoveAction(name, True, _now_ms(), None, {_OPEN: "true"}) for name in names]


class ParquetFiles:
    """A table of Parquet files, each named by the last Raft index of its batch, or by that of its first and its last
    batch. Files beyond the committed index are not part of it.

    The open rows are those of the newest file among the open ones."""

    def __init__(self, path: Path, name: str, raft_index: int) -> None:
        """`raft_index` is the last committed index."""
        self._path = path / name
        self._name = name
        self._partition = PARTITIONS[name]
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
        for part in _parts(self._name, rows, open_rows):
            if part.rows.num_rows or part.rows is open_rows:
                write_file(part.rows, self._path / part.name(self._partition, raft_index), LOOKED_UP[self._name])
        self._through = raft_index
        self._writes += 1

    def committed(self) -> None:
        for old in self._path.glob(f"{_OPEN}=true/part-*.parquet"):
            if _index_of(old) < self._committed:  # readers may still be at the commit before this one
                old.unlink()
        self._committed = self._through
        if self._writes >= _compact_after(self._name):
            self._writes = 0
            self.compact()

    def files(self) -> list[str]:
        found = [path for path in self._path.rglob("part-*.parquet") if _index_of(path) <= self._through]
        files, _ = split_replaced(found)
        newest = max((_index_of(path) for path in files if path.parent.name == f"{_OPEN}=true"), default=0)
        return sorted(str(path) for path in files if path.parent.name != f"{_OPEN}=true" or _index_of(path) == newest)

    def compact(self) -> None:
        by_directory: dict[Path, list[Path]] = {}
        for path in self._settled():
            by_directory.setdefault(path.parent, []).append(path)
        for files in by_directory.values():
            merge(files, LOOKED_UP[self._name], SMALL_FILE_BYTES)

    def prune(self, before: datetime) -> int:
        return sum(remove_older(path, TIMES[self._name], before, LOOKED_UP[self._name]) for path in self._settled())

    def _settled(self) -> list[Path]:
        files, _ = split_replaced(list(self._path.rglob("part-*.parquet")))
        return [path for path in files if _index_of(path) <= self._committed and path.parent.name != f"{_OPEN}=true"]


def _schema(name: str) -> Any:
    if name != "events":
        return NODES if name == "nodes" else EDGES
    from keelmq_spark.views.events import EVENTS_ARROW  # imports PySpark, which readers of the tables do not need

    return EVENTS_ARROW


def _index_of(path: Path) -> int:
    return range_of(path)[1]


def _compact_after(name: str) -> int:
    """Return the number of writes after which a table is compacted: not all at the same commit, for short pauses."""
    return COMPACT_EVERY + COMPACT_EVERY // 3 * list(PARTITIONS).index(name)


def _now_ms() -> int:
    return int(time.time() * 1000)
