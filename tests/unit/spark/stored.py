"""Steps that the tests of tables in an object store share: writing by new jobs, and the command."""

from collections.abc import Callable
from typing import Any

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


def cli(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)
