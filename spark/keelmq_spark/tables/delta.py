"""A Delta table, written by the package deltalake. A commit names its version; whatever comes behind it, other than a
reorganization of its files, is undone by the next job.
"""

import json
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keelmq_spark.tables import layout
from keelmq_spark.tables.errors import TablesError, TablesInUse
from keelmq_spark.tables.layout import (
    COMPACTED_LEVEL,
    ENCODINGS,
    FILES_PER_WRITE,
    LOOKED_UP,
    OPEN,
    PARTITIONS,
    SMALL_FILE_BYTES,
    STATED,
    TIMES,
)
from keelmq_spark.tables.object_store import SCHEME
from keelmq_spark.tables.published import Rows
from keelmq_spark.tables.rewriting import (
    BLOOM_FPP,
    PAGE_BYTES,
    PAGE_ROWS,
    ROW_GROUP_ROWS,
    merge_into,
    name_of,
    remove_unfinished,
    runs,
    statistics,
)
from keelmq_spark.tables.storage import Storage

APPLICATION: Final = "keelmq-lineage"
VACUUM_AFTER_HOURS: Final = 1
"""Hours that a reader may continue with files that a compaction replaced."""
_MERGED: Final = "keelmq-merged"
"""Mark of a write that leaves the rows as they are."""
_REORGANIZED: Final = ("OPTIMIZE", _MERGED, "VACUUM START", "VACUUM END", "ADD COLUMN")
"""Operations of Delta that leave the rows as they are."""
SKIPPED_BY: Final = {"events": ["raft_index", "offset"], "nodes": [], "edges": []}
"""Columns whose statistics let readers of an object store skip files. Times are not among them: Delta rounds them."""
_PRUNED: Final = ("DELETE", *_REORGANIZED)


class DeltaFiles:
    """A Delta table in the folder `name` of a storage."""

    def __init__(self, storage: Storage, name: str, version: int | None) -> None:
        """`version` is the committed version; None before the first commit, when the table is empty."""
        self._storage = storage
        self._uri = storage.uri(name)
        self._name = name
        self._partition = PARTITIONS[name]
        self._table: Any = None
        self._options: dict[str, str] | None = None
        """What the table was opened with; credentials in it may expire."""
        self._version = version
        self._writes = 0
        """Number of writes whose small files are not compacted yet."""

    @property
    def version(self) -> int | None:
        return self._version

    def recover(self) -> None:
        table = self._newest()
        with self._alone():
            if table is None:
                table = self._create()
            settled = self._settled_version(table)
            if table.version() != settled:
                table.restore(settled, commit_properties=_once())
            self._add_columns(table)
            if self._options is None:
                remove_unfinished(Path(self._uri))
        self._table, self._version = table, table.version()
        sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
        self._writes = sum(size < SMALL_FILE_BYTES for size in sizes) // FILES_PER_WRITE[self._name]

    def _add_columns(self, table: Any) -> None:
        """Give a table of an earlier version its new columns, in place; its rows have null there."""
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        known = {field.name for field in table.schema().fields}
        missing = [name for name in layout.ADDED_COLUMNS[self._name] if name not in known]
        if missing:
            fields = [Field(name, PrimitiveType("string"), nullable=True) for name in missing]
            table.alter.add_columns(fields, commit_properties=_once())

    def write(self, rows: Any, raft_index: int, open_rows: Any = None) -> None:
        from deltalake import PostCommitHookProperties, Transaction

        table = self._current()
        table.update_incremental()
        self._require_own(table)
        actions = [] if open_rows is None else self._removals(table)
        for part in layout.parts(self._name, rows, open_rows):
            actions += self._add(part, raft_index)
        with self._alone():
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=[self._partition] if self._partition else [],
                commit_properties=_once(Transaction(APPLICATION, raft_index)),
                # Old versions go with a compaction: looking for them here would list all versions for each write.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        table.update_incremental()
        self._version = (self._version or 0) + 1
        self._require_own(table)
        self._writes += 1

    def committed(self) -> None:
        if self._writes >= layout.compact_after(self._name):
            self._writes = 0
            self.compact()

    def prune(self, before: datetime) -> int:
        table = self._current()
        table.update_incremental()
        self._require_own(table)
        condition = f"{TIMES[self._name]} < arrow_cast('{before.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
        settled = f"{OPEN} = false AND " if self._partition == OPEN else ""
        with self._alone():
            deleted = table.delete(
                settled + condition, writer_properties=_writer(self._name), commit_properties=_once()
            )
        self._take(table, _PRUNED)
        return int(deleted["num_deleted_rows"] or 0)

    def files(self) -> list[str]:
        return _files_of(self._settled())

    def rows(self) -> Rows:
        table = self._settled()
        files = _files_of(table)
        return Rows(files, self._dataset(table) if files and self._options is not None else None)

    def _dataset(self, table: Any) -> Any:
        """Return the table as a dataset that reads through the client of the package deltalake.

        The one that the package makes takes statistics that a file lacks for ones that nothing satisfies."""
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.dataset import FileSystemDataset, ParquetFileFormat, ParquetFragmentScanOptions
        from pyarrow.fs import PyFileSystem

        files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        sizes = {file["path"]: file["size_bytes"] for file in files}
        filesystem = PyFileSystem(DeltaStorageHandler(self._uri, self._options, sizes))
        parquet = ParquetFileFormat(default_fragment_scan_options=ParquetFragmentScanOptions(pre_buffer=True))
        fragments = [parquet.make_fragment(file["path"], filesystem, self._true_in(file)) for file in files]
        return FileSystemDataset(fragments, pa.schema(table.schema().to_arrow()), parquet, filesystem)

    def _true_in(self, file: dict[str, Any]) -> Any:
        """Return an expression that holds for all rows of a file, by which queries skip files."""
        true = pc.scalar(True)
        if self._partition is not None:
            true = pc.field(self._partition) == file[f"partition.{self._partition}"]
        for name in SKIPPED_BY[self._name]:
            least, greatest = file.get(f"min.{name}"), file.get(f"max.{name}")
            if least is not None and greatest is not None:
                column = pc.field(name)
                true &= column.is_null() | ((column >= least) & (column <= greatest))
        return true

    def _settled(self) -> Any:
        """Return the table as of the last commit and the writes since then; None if there is none."""
        if self._table is not None:
            return self._current()
        table = self._newest()
        if table is not None:
            settled = self._settled_version(table)
            if table.version() != settled:
                table.load_as_version(settled)
        return table

    def _current(self) -> Any:
        """Return the table that this job writes, opened anew when the credentials have been renewed since."""
        if self._storage.delta_options() != self._options:
            self._table = self._newest()
        return self._table

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Raise TablesInUse when a change of the table meets one of another job."""
        from deltalake.exceptions import CommitFailedError

        try:
            yield
        except CommitFailedError as exc:
            raise TablesInUse(f"{self._uri} was changed by another job: {exc}") from exc

    def _require_own(self, table: Any) -> None:
        if table.version() != self._version:
            raise self._changed()

    def _take(self, table: Any, operations: Collection[str]) -> None:
        """Take the newest version for this job's. Raises TablesInUse when it has more than these operations of
        Delta made: others are of another job, whose rows must not be committed.
        """
        table.update_incremental()
        later = table.version() - (self._version or 0)
        if later and any(_operation(each) not in operations for each in table.history(later)):
            raise self._changed()
        self._version = table.version()

    def _changed(self) -> TablesInUse:
        return TablesInUse(f"{self._uri} was changed by another job: only one job may write a set of tables")

    def _settled_version(self, table: Any) -> int:
        """Return the version of `table`, the newest one, that has the committed rows."""
        committed: int = self._version or 0
        newest: int = table.version()
        later = newest - committed
        if later <= 0:
            return committed
        operations = [_operation(each) for each in table.history(later)]
        return newest if all(operation in _REORGANIZED for operation in operations) else committed

    def compact(self) -> None:
        """Combine many small files into few large ones; the rows stay the same."""
        table = self._current()
        with self._alone():
            if self._options is None:
                self._merge_files(table, Path(self._uri))
            else:
                settled: Any = [(OPEN, "=", "false")] if self._partition == OPEN else None
                writer = _writer(self._name)
                table.optimize.compact(partition_filters=settled, writer_properties=writer, commit_properties=_once())
            table.vacuum(
                VACUUM_AFTER_HOURS,
                dry_run=False,
                enforce_retention_duration=False,
                commit_properties=_once(),
                full=True,  # A job that was killed leaves files of names that no later one uses, and no version has.
            )
        self._take(table, _REORGANIZED)
        table.create_checkpoint()
        table.cleanup_metadata()
        if self._options is not None:  # a table that is open goes on listing the versions since it was opened
            self._table = self._newest()
            self._take(self._table, _REORGANIZED)

    def _merge_files(self, table: Any, directory: Path) -> None:
        """Merge small files as those of Parquet tables are. The package deltalake could do it, but it can neither sort
        rows nor say how columns within a struct are encoded, for which tables take a tenth more room.
        """
        from deltalake import PostCommitHookProperties
        from deltalake._internal import RemoveAction
        from deltalake.transaction import AddAction

        begins: dict[str | None, list[tuple[Any, Path]]] = {}
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            value = file.get(f"partition.{self._partition}")
            value = str(value).lower() if isinstance(value, bool) else value
            begin = file.get(f"min.{STATED[self._name][0]}")
            begins.setdefault(value, []).append((begin, directory / unquote(file["path"])))
        actions: list[Any] = []
        for value, files in begins.items():
            if self._partition == OPEN and value == "true":
                continue
            in_order = [path for _, path in sorted(files, key=lambda file: (file[0] is not None, file))]
            values = {} if self._partition is None else {self._partition: value}
            for run in runs(in_order, SMALL_FILE_BYTES):
                merged = run[0].with_name(f"merged-{uuid.uuid4().hex}.parquet")
                merge_into(merged, run, self._name)
                times = pq.read_table(merged, columns=STATED[self._name], partitioning=None)
                stated = json.dumps(statistics(times, STATED[self._name]))
                now_ms, size = _now_ms(), merged.stat().st_size
                actions += [RemoveAction(_name_in(directory, path), False, now_ms, None, values) for path in run]
                actions.append(AddAction(_name_in(directory, merged), size, values, now_ms, False, stated))
        if actions:
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                partition_by=[self._partition] if self._partition else [],
                commit_properties=_once(merged=True),
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )

    def _newest(self) -> Any:
        from deltalake import DeltaTable

        self._options = options = self._storage.delta_options()
        try:
            known = DeltaTable.is_deltatable(self._uri, options)
            return DeltaTable(self._uri, storage_options=options) if known else None
        except OSError as exc:
            if options is None:
                raise
            raise TablesError(
                f"the package deltalake cannot open {self._uri}, and boto3 can: AWS_REGION has to be the region of the "
                "bucket, and a private certificate authority one of the system or in SSL_CERT_FILE"
            ) from exc

    def _create(self) -> Any:
        from deltalake import DeltaTable

        return DeltaTable.create(
            self._uri,
            layout.stored_schema(self._name),
            mode="ignore",
            partition_by=self._partition,
            name=self._name,
            storage_options=self._options,
        )

    def _add(self, part: layout.Part, raft_index: int) -> list[Any]:
        from deltalake.transaction import AddAction

        if not part.rows.num_rows:
            return []
        folder = part.folder(self._name)
        file, size = self._storage.write_rows(part.rows, folder, name_of(raft_index), self._name)
        name = f"{folder}/{file}".removeprefix(f"{self._name}/")
        values = {} if self._partition is None else {self._partition: part.value}
        stated = json.dumps(statistics(part.rows, STATED[self._name]))
        return [AddAction(name, size, values, _now_ms(), True, stated)]

    def _removals(self, table: Any) -> list[Any]:
        from deltalake._internal import RemoveAction

        uris = table.file_uris(file_pruning_predicate=[(OPEN, "=", "true")])
        names = [f"{OPEN}=true/{uri.rpartition('/')[2]}" for uri in uris]
        return [RemoveAction(name, True, _now_ms(), None, {OPEN: "true"}) for name in names]


def _writer(name: str) -> Any:
    """Return how deltalake writes the files of a table that it compacts or prunes."""
    from deltalake import BloomFilterProperties, ColumnProperties, WriterProperties

    bloom = BloomFilterProperties(set_bloom_filter_enabled=True, fpp=BLOOM_FPP, ndv=ROW_GROUP_ROWS)
    schema = layout.stored_schema(name)
    is_flat = not any(pa.types.is_struct(field.type) for field in schema)
    columns = {
        column: ColumnProperties(
            dictionary_enabled=column not in ENCODINGS[name],
            encoding=ENCODINGS[name].get(column),
            bloom_filter_properties=bloom if column in LOOKED_UP[name] else None,
        )
        for column in schema.names
    }
    return WriterProperties(
        compression="ZSTD",
        compression_level=COMPACTED_LEVEL,
        max_row_group_size=ROW_GROUP_ROWS,
        data_page_row_count_limit=PAGE_ROWS,
        data_page_size_limit=PAGE_BYTES,
        # deltalake cannot name columns within a struct, most of which are better off without a dictionary.
        default_column_properties=ColumnProperties(dictionary_enabled=is_flat),
        column_properties=columns,
    )


def _files_of(table: Any) -> list[str]:
    """Return the files as paths, or as URLs of an object store. Delta quotes both like URLs."""
    uris = [] if table is None else table.file_uris()
    return [uri if uri.startswith(SCHEME) else unquote(uri.removeprefix("file://")) for uri in uris]


def _operation(version: Mapping[str, Any]) -> str:
    """Return the operation that made a version of a table."""
    return _MERGED if _MERGED in version else str(version["operation"])


def _name_in(directory: Path, path: Path) -> str:
    return path.relative_to(directory).as_posix()


def _once(*transactions: Any, merged: bool = False) -> Any:
    """Return the properties of a change that fails when the table has changed, and is never made on top of that."""
    from deltalake import CommitProperties

    return CommitProperties(
        max_commit_retries=0,
        app_transactions=list(transactions) or None,
        custom_metadata={_MERGED: "true"} if merged else None,
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
