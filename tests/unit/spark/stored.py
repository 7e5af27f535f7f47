"""Steps that the tests of tables share: writing by new jobs, reading, and the command."""

from collections.abc import Callable
from typing import Any

import duckdb
from typer.testing import CliRunner

from keelmq_spark.cli import app
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.history import History

Expected = Callable[[int], dict[str, list[str]]]
"""Returns the content of tables in a directory whose job has written the entries before an end."""


def write(place: Any, log: History, *ends: int) -> None:
    """Have a new job write batches that end before the entries `ends`."""
    sink = LineageSink(Tables(place))
    for end in ends:
        begin = sink.next_index or 1
        sink.write(log.between(begin, end), begin, end)


def rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    """Return the rows of the table with that name."""
    files = getattr(tables, name).files()
    relation = duckdb.connect().sql("SELECT * FROM read_parquet(?, hive_partitioning = true)", params=[files])
    found: list[dict[str, Any]] = relation.to_arrow_table().to_pylist()
    return found


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)
