"""Rewrites Parquet files of a table: many small ones into one, and without rows that are too old.

A rewritten file gets its name when it is complete. What it replaces is removed then; readers tell by the names which
files are replaced, so that no row counts twice in between.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from keelmq_spark.tables.layout import COMPACTED_LEVEL, ENCODINGS, LOOKED_UP, SORTED_BY

ROW_GROUP_ROWS: Final = 150_000
"""Maximum number of rows in a row group. Bloom filters have sizes that are powers of two, and for so many ids the next
one is nearly full (BLOOM_FPP)."""
PAGE_ROWS: Final = 50_000
"""Maximum number of rows in a page. Pages are compressed each for itself: with 20,000 rows, the usual number, tables
take a tenth more room, with 150,000 a look-up takes a third more time."""
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Size at which a page ends at the latest: above that of so many rows."""
BLOOM_FPP: Final = 0.05
"""Share of the ids that are not in a row group, for which its Bloom filter has it read nevertheless."""
BLOOM_SHORT_MAX: Final = 1.4
"""Multiple of the size of a merged file's Bloom filter that the ids may need: one in six others is then read. Only row
groups that are not full have such filters."""
MERGED_FILE_BYTES: Final = 128 * 1024 * 1024
"""A merged file is closed at this size."""

_UNFINISHED: Final = ".next"
_INDEX_DIGITS: Final = 20


def name_of(last: int, first: int | None = None) -> str:
    """Return the name of a file with the rows of a batch that ends with the entry `last`; or of all batches whose last
    entry is from `first` to `last`.
    """
    numbers = (last,) if first is None else (first, last)
    return "-".join(("part", *(f"{number:0{_INDEX_DIGITS}d}" for number in numbers))) + ".parquet"


def range_of(path: Path) -> tuple[int, int]:
    """Return `first` and `last` of a file's name."""
    numbers = [int(part) for part in path.stem.split("-")[1:]]
    return numbers[0], numbers[-1]


def split_replaced(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of a table that count, and those that a merged file replaces."""
    kept: list[Path] = []
    replaced: list[Path] = []
    covered: dict[Path, int] = {}
    for path in sorted(files, key=lambda path: (path.parent, range_of(path)[0], -range_of(path)[1])):
        last = range_of(path)[1]
        if last <= covered.get(path.parent, -1):
            replaced.append(path)
        else:
            covered[path.parent] = last
            kept.append(path)
    return kept, replaced


def write_file(rows: Any, path: Path, table: str) -> int:
    """Write rows of a table as a Parquet file, completely or not at all, and return its size in bytes."""
    with _replacing(path) as temporary:
        _write(rows, temporary, table)
        size = temporary.stat().st_size
    return size


def parquet_of(rows: Any, table: str) -> bytes:
    """Return the content of a Parquet file."""
    made = pa.BufferOutputStream()
    _write(rows, made, table)
    content: bytes = made.getvalue().to_pybytes()
    return content


def _write(rows: Any, sink: Any, table: str) -> None:
    ids = dict.fromkeys(LOOKED_UP[table], max(1, min(rows.num_rows, ROW_GROUP_ROWS)))
    pq.write_table(rows, sink, row_group_size=ROW_GROUP_ROWS, **_options(rows.schema, table, ids))


def merge(paths: Sequence[Path], table: str, small_bytes: int, file_bytes: int = MERGED_FILE_BYTES) -> None:
    """Merge files of less than `small_bytes` that follow each other among all files of a directory, and remove them.

    A merged file stands for the range from its first to its last file, so none that stays is between them."""
    for run in runs(sorted(paths, key=range_of), small_bytes, file_bytes):
        merge_into(run[0].with_name(name_of(range_of(run[-1])[1], range_of(run[0])[0])), run, table)
        for path in run:
            path.unlink()


def runs(paths: Sequence[Path], small_bytes: int, file_bytes: int = MERGED_FILE_BYTES) -> Iterator[list[Path]]:
    """Yield what is to become one file: two or more files of less than `small_bytes` that follow each other."""
    run: list[Path] = []
    run_bytes = 0
    for path in paths:
        size = path.stat().st_size
        if size >= small_bytes or run_bytes + size > file_bytes:
            if len(run) > 1:
                yield run
            run, run_bytes = [], 0
        if size < small_bytes:
            run.append(path)
            run_bytes += size
    if len(run) > 1:
        yield run


def merge_into(target: Path, paths: Sequence[Path], table: str) -> None:
    """Write the rows of the files, in their order, into one, with the columns that any of them has. Each row group is
    sorted.
    """
    schema = _common_schema(paths)
    ids = {
        column: _filter_ids(_ids_max(paths, schema, column)) for column in LOOKED_UP[table] if column in schema.names
    }
    options = {**_options(schema, table, ids), "compression_level": COMPACTED_LEVEL}
    with _replacing(target) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        for group in _row_groups(paths, schema):
            writer.write_table(_sorted(group, table), ROW_GROUP_ROWS)


def _ids_max(paths: Sequence[Path], schema: Any, column: str) -> int:
    """Return the maximum number of different values that the column has in a row group."""
    alone = pa.schema([schema.field(column)])
    return max((pc.count_distinct(group[column]).as_py() for group in _row_groups(paths, alone)), default=0)


def _filter_ids(ids: int) -> int:
    """Return the number of ids for which a Bloom filter is made that is to hold `ids`. Its size is a power of two, and
    may be a little too small, rather than nearly twice as large as needed.
    """
    needed = max(1, ids) * -1.0 / math.log(1 - BLOOM_FPP ** (1 / 8))
    smaller = 2.0 ** math.floor(math.log2(needed))
    return max(1, int(ids * smaller / needed) if needed <= BLOOM_SHORT_MAX * smaller else ids)


def _common_schema(paths: Sequence[Path]) -> Any:
    """Return all columns that any of the files has."""
    found: dict[str, Any] = {}
    for path in paths:
        for field in pq.read_schema(path):
            found.setdefault(field.name, pa.field(field.name, _own_type(field.type)))
    return pa.schema(list(found.values()))


def _own_type(of_type: Any) -> Any:
    """Return the type that this package writes: other programs write texts as views, or with long offsets."""
    if pa.types.is_struct(of_type):
        return pa.struct([pa.field(each.name, _own_type(each.type)) for each in of_type])
    is_text = pa.types.is_large_string(of_type) or pa.types.is_string_view(of_type)
    return pa.string() if is_text else of_type


def _sorted(rows: Any, table: str) -> Any:
    """Return rows of several writes in the order of one."""
    keys = [(column, "ascending") for column in SORTED_BY[table]]
    return rows.sort_by(keys) if keys else rows


def _row_groups(paths: Sequence[Path], schema: Any) -> Iterator[Any]:
    waiting: list[Any] = []
    rows = 0
    for path in paths:
        file = pq.ParquetFile(path)
        for number in range(file.num_row_groups):
            waiting.append(_with_schema(file.read_row_group(number, schema.names), schema))
            rows += waiting[-1].num_rows
            while rows >= ROW_GROUP_ROWS:
                joined = pa.concat_tables(waiting)
                yield joined.slice(0, ROW_GROUP_ROWS)
                waiting, rows = [joined.slice(ROW_GROUP_ROWS)], rows - ROW_GROUP_ROWS
    if rows:
        yield pa.concat_tables(waiting)


def _with_schema(rows: Any, schema: Any) -> Any:
    """Return the rows with all columns of the schema; those of later versions are null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def remove_older(path: Path, column: str, before: datetime, table: str) -> int:
    """Remove the rows of a file whose time in `column` is before `before`, and the file when nothing is left. Return
    the number of removed rows.
    """
    times = pq.read_table(path, columns=[column])[column]
    older = pc.less(times, pa.scalar(before, times.type))
    count = int(pc.sum(older).as_py() or 0)
    if count == len(times):
        path.unlink()
    elif count:
        write_file(pq.read_table(path, partitioning=None).filter(pc.invert(older)), path, table)
    return count


def _options(schema: Any, table: str, ids: Mapping[str, int]) -> dict[str, Any]:
    bloom: Any = {column: {"ndv": ndv, "fpp": BLOOM_FPP} for column, ndv in ids.items()}
    leaves = [leaf for field in schema for leaf in _leaves(field)]
    encodings = ENCODINGS[table]
    return {
        "compression": "zstd",
        "max_rows_per_page": PAGE_ROWS,
        "data_page_size": PAGE_BYTES,
        "bloom_filter_options": bloom,
        "use_dictionary": [leaf for leaf in leaves if leaf not in encodings],
        "column_encoding": {leaf: encodings[leaf] for leaf in leaves if leaf in encodings},
    }


def _leaves(field: Any) -> list[str]:
    """Return the names of the columns that a field has in a file."""
    return [f"{field.name}.{each.name}" for each in field.type] if pa.types.is_struct(field.type) else [field.name]


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Give a file that is written completely the name `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}{_UNFINISHED}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_unfinished(directory: Path) -> None:
    """Remove the files that a job which was killed has not completed: nobody else looks for their names."""
    for left in directory.rglob(f".*{_UNFINISHED}"):
        left.unlink(missing_ok=True)


def statistics(rows: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return the statistics of a Delta file: the number of rows, and the least and the greatest value of columns."""
    found: dict[str, Any] = {"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for column in columns:
        values = rows[column]
        found["nullCount"][column] = values.null_count
        least = pc.min_max(values)
        if least["min"].is_valid:
            found["minValues"][column] = _stated(least["min"], pc.floor_temporal)
            found["maxValues"][column] = _stated(least["max"], pc.ceil_temporal)
    return found


def _stated(value: Any, rounded: Callable[..., Any]) -> Any:
    """Return a value as the statistics have it: times have milliseconds, so they are rounded outwards."""
    if not pa.types.is_timestamp(value.type):
        return value.as_py()
    at: datetime = rounded(value, unit="millisecond").as_py()
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
