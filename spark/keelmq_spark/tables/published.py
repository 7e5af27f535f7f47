"""Reads the files of tables with all columns, and looks up published messages by their places."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import duckdb
import pyarrow as pa

from keelmq_spark.tables import layout
from keelmq_spark.tables.schema import ADDED_COLUMNS

NOTHING_PUBLISHED: Final = pa.table(
    {
        "offset": pa.array([], pa.int64()),
        **{name: pa.array([], pa.string()) for name in ("node_id", "tag", "key", "properties")},
    }
)
"""The answer of `published` without messages."""


class Rows(NamedTuple):
    """Rows of a table: Parquet files that DuckDB opens itself, or a dataset of PyArrow that reads them for it."""

    files: Sequence[str]
    dataset: Any = None


def rows_sql(connection: Any, name: str, rows: Rows) -> str:
    """Return SQL for all rows of the table `name`, with all columns. It holds in this connection."""
    if not rows.files:
        connection.register(f"no_{name}", layout.stored_schema(name).empty_table())
        return f"SELECT * FROM no_{name}"  # noqa: S608
    if rows.dataset is not None:
        connection.register(f"{name}_dataset", rows.dataset)
        return with_columns(name, f"SELECT * FROM {name}_dataset")  # noqa: S608
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in rows.files)
    partitioned = "false" if name == "events" else "true"
    options = f"hive_partitioning = {partitioned}, union_by_name = true"
    return with_columns(name, f"SELECT * FROM read_parquet([{listed}], {options})")  # noqa: S608


def with_columns(name: str, files: str) -> str:
    """Return SQL for all columns of the table `name`, of which the query `files` may lack those of later versions.

    Missing columns are null."""
    added = ", ".join(f'NULL::VARCHAR AS "{column}"' for column in ADDED_COLUMNS[name])
    return f"{files} UNION ALL BY NAME SELECT {added} WHERE false" if added else files


def published_in(rows: Rows, topic: str, queue: int, begin: int, end: int) -> Any:
    """Return `offset`, `node_id`, `tag`, `key` and `properties` of the messages at begin <= offset < end, from the
    rows of the table `events`.
    """
    if not rows.files or begin >= end:
        return NOTHING_PUBLISHED
    with duckdb.connect() as connection:
        return connection.sql(
            f"""SELECT "offset", 'message:' || topic || '/' || message_id AS node_id, tag, key, properties
               FROM ({rows_sql(connection, "events", rows)})
               WHERE type = 'PUBLISH' AND topic = ? AND queue = ? AND "offset" >= ? AND "offset" < ?
               QUALIFY row_number() OVER (PARTITION BY "offset" ORDER BY raft_index DESC) = 1
               ORDER BY "offset" """,  # noqa: S608
            params=[topic, queue, begin, end],
        ).to_arrow_table()
