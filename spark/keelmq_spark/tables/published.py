"""Reads the files of tables with all columns, and looks up published messages by their places."""

from collections.abc import Sequence
from typing import Any, Final

import duckdb
import pyarrow as pa

from keelmq_spark.tables.schema import ADDED_COLUMNS

NOTHING_PUBLISHED: Final = pa.table(
    {
        "offset": pa.array([], pa.int64()),
        **{name: pa.array([], pa.string()) for name in ("node_id", "tag", "key", "properties")},
    }
)
"""The answer of `published` without messages."""


def with_columns(name: str, files: str) -> str:
    """Return SQL for all columns of the table `name`, of which the query `files` may lack those of later versions.

    Missing columns are null."""
    added = ", ".join(f'NULL::VARCHAR AS "{column}"' for column in ADDED_COLUMNS[name])
    return f"{files} UNION ALL BY NAME SELECT {added} WHERE false" if added else files


def published_in(files: Sequence[str], topic: str, queue: int, begin: int, end: int) -> Any:
    """Return `offset`, `node_id`, `tag`, `key` and `properties` of the messages at begin <= offset < end, from the
    files of the table `events`.
    """
    if not files or begin >= end:
        return NOTHING_PUBLISHED
    with duckdb.connect() as connection:
        return connection.sql(
            f"""SELECT "offset", 'message:' || topic || '/' || message_id AS node_id, tag, key, properties
               FROM ({with_columns("events", "SELECT * FROM read_parquet(?, union_by_name = true)")})
               WHERE type = 'PUBLISH' AND topic = ? AND queue = ? AND "offset" >= ? AND "offset" < ?
               QUALIFY row_number() OVER (PARTITION BY "offset" ORDER BY raft_index DESC) = 1
               ORDER BY "offset" """,  # noqa: S608
            params=[files, topic, queue, begin, end],
        ).to_arrow_table()
