"""Storage of the tables: Delta or Parquet files under one path, written so that a repeated write changes nothing.

Every write of a table records the Raft index up to which the table is complete: in Delta as the version of the
application transaction `keelmq-lineage`, in Parquet in the name of a marker file. Rows up to that index are never
written again, wherever the batches begin and end after a restart.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keelmq_spark.schema import EDGES, NODES

APPLICATION: Final = "keelmq-lineage"
COMPACT_EVERY: Final = 200
"""Number of writes of a Delta table after which its small files are compacted into large ones."""
VACUUM_AFTER_HOURS: Final = 1
"""Hours that a reader may continue with files that a compaction replaced."""
ROW_GROUP_ROWS: Final = 100_000

Format = Literal["delta", "parquet"]
LOOKED_UP: Final = {"events": ["message_id"], "nodes": ["node_id"], "edges": ["src", "dst"]}
"""Columns with a Bloom filter: a look-up reads only row groups that may contain the value."""
_OPEN: Final = "open"
PARTITIONS: Final[dict[str, str | None]] = {"events": None, "nodes": _OPEN, "edges": "kind"}
"""Partition column by table. `open` of a node means that it may still change: the next batch replaces it."""


class Table(Protocol):
    """One table. `raft_index` is the index up to which it is complete, 0 for a table that does not exist yet."""

    @property
    def raft_index(self) -> int: ...

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        """Add `rows`, and replace the open rows if `open_rows` is given, in one step.

        Does nothing if `raft_index` is already reached."""

    def files(self) -> list[str]:
        """Return the Parquet files that make up the table now."""

    def compact(self) -> None:
        """Combine many small files into few large ones, where the format supports it."""


class Tables:
    """Owns the three tables and the state of the job under `path`. `format` applies to new tables."""

    def __init__(self, path: str | Path, format: Format = "delta") -> None:
        self.path = Path(path).absolute()
        self.format = format_of(self.path) or format
        make: type[DeltaFiles | ParquetFiles] = DeltaFiles if self.format == "delta" else ParquetFiles
        self.events: Table = make(self.path, "events")
        self.nodes: Table = make(self.path, "nodes")
        self.edges: Table = make(self.path, "edges")

    def read_state(self) -> bytes | None:
        """Return the data of the last `write_state`; None before the first."""
        states = sorted((self.path / "_state").glob("*.state"))
        return states[-1].read_bytes() if states else None

    def write_state(self, data: bytes, raft_index: int) -> None:
        """Replace the state in one step."""
        directory = self.path / "_state"
        directory.mkdir(parents=True, exist_ok=True)
        before = sorted(directory.glob("*.state"))
        temporary = directory / "next"
        temporary.write_bytes(data)
        temporary.replace(directory / f"{raft_index:020d}.state")
        for old in before:
            if old.name != f"{raft_index:020d}.state":
                old.unlink()

    def published(self, topic: str, queue: int, begin: int, end: int) -> Any:
        """Return `offset` and `node_id` of the messages at begin <= offset < end, from the table `events`."""
        files = self.events.files()
        if not files or begin >= end:
            return pa.table({"offset": pa.array([], pa.int64()), "node_id": pa.array([], pa.string())})
        with duckdb.connect() as connection:
            return connection.sql(
                """SELECT "offset", 'message:' || topic || '/' || message_id AS node_id FROM read_parquet(?)
                   WHERE type = 'PUBLISH' AND topic = ? AND queue = ? AND "offset" >= ? AND "offset" < ?
                   QUALIFY row_number() OVER (PARTITION BY "offset" ORDER BY raft_index DESC) = 1
                   ORDER BY "offset" """,
                params=[files, topic, queue, begin, end],
            ).to_arrow_table()


def format_of(path: Path) -> Format | None:
    """Return the format of the existing tables; None when there are none yet."""
    if (path / "events" / "_delta_log").exists():
        return "delta"
    return "parquet" if any((path / "events").glob("_complete-*")) else None


class _Part(NamedTuple):
    """Rows of one partition of a table."""

    value: str | None
    rows: Any

    def name(self, column: str | None, raft_index: int) -> str:
        file = f"part-{raft_index:020d}.parquet"
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
    def __init__(self, path: Path, name: str) -> None:
        self._path = path / name
        self._name = name
        self._partition = PARTITIONS[name]
        self._table: Any = None
        self._writes = (
            COMPACT_EVERY // 3 * list(PARTITIONS).index(name)
        )  # one table at a time, so that pauses are short

    @property
    def raft_index(self) -> int:
        table = self._load()
        return (table.transaction_version(APPLICATION) or 0) if table is not None else 0

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        if raft_index <= self.raft_index:
            return
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction(APPLICATION, raft_index)])
        table = self._load() or self._create()
        actions = [] if open_rows is None else self._removals(table)
        for part in _parts(self._name, rows, open_rows):
            actions += self._add(part, raft_index)
        partition_by = [self._partition] if self._partition else []
        table.create_write_transaction(
            actions, "append", table.schema(), partition_by=partition_by, commit_properties=properties
        )
        self._writes += 1
        if self._writes % COMPACT_EVERY == 0:
            self.compact()

    def files(self) -> list[str]:
        table = self._load()
        return [uri.removeprefix("file://") for uri in table.file_uris()] if table is not None else []

    def compact(self) -> None:
        """Combine many small files into few large ones; the rows stay the same."""
        from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties

        table = self._load()
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

    def _load(self) -> Any:
        from deltalake import DeltaTable

        if self._table is not None:
            self._table.update_incremental()
        elif DeltaTable.is_deltatable(str(self._path)):
            self._table = DeltaTable(str(self._path))
        return self._table

    def _create(self) -> Any:
        from deltalake import DeltaTable

        columns = _schema(self._name)
        if self._partition is not None and self._partition not in columns.names:
            columns = columns.append(pa.field(self._partition, pa.bool_()))
        self._table = DeltaTable.create(
            str(self._path), columns, mode="ignore", partition_by=self._partition, name=self._name
        )
        return self._table

    def _add(self, part: _Part, raft_index: int) -> list[Any]:
        from deltalake.transaction import AddAction

        if not part.rows.num_rows:
            return []
        name = part.name(self._partition, raft_index)
        size = write_file(part.rows, self._path / name, LOOKED_UP[self._name])
        values = {} if self._partition is None else {self._partition: part.value}
        return [AddAction(name, size, values, _now_ms(), True, f'{{"numRecords": {part.rows.num_rows}}}')]

    def _removals(self, table: Any) -> list[Any]:
        from deltalake._internal import RemoveAction

        uris = table.file_uris(file_pruning_predicate=[(_OPEN, "=", "true")])
        names = [f"{_OPEN}=true/{uri.rpartition('/')[2]}" for uri in uris]
        return [RemoveAction(name, True, _now_ms(), None, {_OPEN: "true"}) for name in names]


class ParquetFiles:
    """A table of Parquet files. The file `_complete-<index>` marks the table as complete up to the index.

    Files with a higher index are not part of the table yet.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path / name
        self._name = name
        self._partition = PARTITIONS[name]

    @property
    def raft_index(self) -> int:
        return max((_index_of(path) for path in self._path.glob("_complete-*")), default=0)

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        done = self.raft_index
        if raft_index <= done:
            return
        for left in self._path.rglob("part-*.parquet"):
            if _index_of(left) > done:
                left.unlink()
        parts = [part for part in _parts(self._name, rows, open_rows) if part.rows.num_rows]
        for part in parts:
            write_file(part.rows, self._path / part.name(self._partition, raft_index), LOOKED_UP[self._name])
        before = list(self._path.glob("_complete-*"))
        self._path.mkdir(parents=True, exist_ok=True)
        (self._path / f"_complete-{raft_index:020d}").touch()
        for old in before:
            old.unlink()
        for old in self._path.glob(f"{_OPEN}=true/part-*.parquet"):
            if _index_of(old) < raft_index:
                old.unlink()

    def files(self) -> list[str]:
        done = self.raft_index
        files = [path for path in self._path.rglob("part-*.parquet") if _index_of(path) <= done]
        newest = max((_index_of(path) for path in files if path.parent.name == f"{_OPEN}=true"), default=0)
        return sorted(str(path) for path in files if path.parent.name != f"{_OPEN}=true" or _index_of(path) == newest)

    def compact(self) -> None:
        """Do nothing: Parquet files stay as they were written."""


def _schema(name: str) -> Any:
    if name != "events":
        return NODES if name == "nodes" else EDGES
    from keelmq_spark.events import EVENTS_ARROW  # imports PySpark, which readers of the tables do not need

    return EVENTS_ARROW


def _index_of(path: Path) -> int:
    return int(path.stem.rpartition("-")[2])


def _now_ms() -> int:
    return int(time.time() * 1000)


def write_file(rows: Any, path: Path, looked_up: Sequence[str]) -> int:
    """Write a Parquet file, completely or not at all, and return its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.next")
    bloom: Any = {column: {"ndv": min(rows.num_rows, ROW_GROUP_ROWS), "fpp": 0.01} for column in looked_up}
    pq.write_table(rows, temporary, compression="zstd", row_group_size=ROW_GROUP_ROWS, bloom_filter_options=bloom)
    size = temporary.stat().st_size
    temporary.replace(path)
    return size
