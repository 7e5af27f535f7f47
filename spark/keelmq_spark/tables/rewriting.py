"""Rewrites Parquet files of a table: many small ones into one, and without rows that are too old.

A rewritten file gets its name when it is complete. What it replaces is removed then; readers tell by the names which
files are replaced, so that no row counts twice in between.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
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
MERGED_FILE_BYTES: Final = 128 * 1024 * 1024
"""A merged file is closed at this size."""

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
    pq.write_table(rows, sink, row_group_size=ROW_GROUP_ROWS, **_options(rows.schema, table, rows.num_rows))


def merge(paths: Sequence[Path], table: str, small_bytes: int, file_bytes: int = MERGED_FILE_BYTES) -> None:
    """Merge files of less than `small_bytes` that follow each other among all files of a directory, and remove them.

    A merged file stands for the range from its first to its last file, so none that stays is between them."""
    run: list[Path] = []
    run_bytes = 0
    for path in sorted(paths, key=range_of):
        size = path.stat().st_size
        if size >= small_bytes or run_bytes + size > file_bytes:
            _merge_run(run, table)
            run, run_bytes = [], 0
        if size < small_bytes:
            run.append(path)
            run_bytes += size
    _merge_run(run, table)


def _merge_run(run: Sequence[Path], table: str) -> None:
    if len(run) > 1:
        _merge_into(run[0].with_name(name_of(range_of(run[-1])[1], range_of(run[0])[0])), run, table)


def _merge_into(target: Path, paths: Sequence[Path], table: str) -> None:
    schema = pa.unify_schemas([pq.read_schema(path) for path in paths])
    rows = sum(pq.read_metadata(path).num_rows for path in paths)
    options = {**_options(schema, table, rows), "compression_level": COMPACTED_LEVEL}
    with _replacing(target) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        for group in _row_groups(paths, schema):
            writer.write_table(_sorted(group, table), ROW_GROUP_ROWS)
    for path in paths:
        path.unlink()


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
            waiting.append(_with_schema(file.read_row_group(number), schema))
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
        rows[field.name] if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type) for field in schema
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


def _options(schema: Any, table: str, rows: int) -> dict[str, Any]:
    bloom: Any = {column: {"ndv": max(1, min(rows, ROW_GROUP_ROWS)), "fpp": BLOOM_FPP} for column in LOOKED_UP[table]}
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
    temporary = path.with_name(f".{path.name}.next")
    yield temporary
    temporary.replace(path)


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
