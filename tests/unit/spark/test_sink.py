"""The tables are the same whatever happens between two writes."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.compute as pc
import pytest

from keelmq_spark.fold import Fold
from keelmq_spark.fold_state import FoldState
from keelmq_spark.places import Places
from keelmq_spark.sink import LineageSink
from keelmq_spark.tables import Format, Tables
from tests.unit.spark import killed_writer
from tests.unit.spark.history import History, shop

ROOT = Path(__file__).parents[3]
KILLS_STEP = 4
"""1 kills before each of the 43 (Delta) and 65 (Parquet) changes, which takes a minute."""
FORMATS: list[Format] = ["delta", "parquet"]


def rows(tables: Tables, name: str) -> list[dict[str, Any]]:
    files = getattr(tables, name).files()
    relation = duckdb.connect().sql("SELECT * FROM read_parquet(?, hive_partitioning = true)", params=[files])
    found: list[dict[str, Any]] = relation.to_arrow_table().to_pylist()
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_a_writer_that_is_killed_before_any_change_and_begins_again_makes_the_same_tables(
    format: Format, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.unit.spark.killed_writer", str(tmp_path), format, str(KILLS_STEP)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[-1]) >= 10, done.stdout


@pytest.mark.parametrize("format", FORMATS)
def test_every_row_is_there_once(format: Format, tmp_path: Path) -> None:
    killed_writer.write(tmp_path, format)
    killed_writer.write(tmp_path, format)
    tables = Tables(tmp_path, format)
    table = shop().table()
    assert sorted(row["event_id"] for row in rows(tables, "events")) == sorted(table["event_id"].to_pylist())
    assert set(Counter((e["src"], e["dst"], e["kind"]) for e in rows(tables, "edges")).values()) == {1}
    assert set(Counter(node["node_id"] for node in rows(tables, "nodes")).values()) == {1}


@pytest.mark.parametrize("format", FORMATS)
def test_batches_that_end_elsewhere_after_a_restart_change_nothing(format: Format, tmp_path: Path) -> None:
    table = shop().table()
    killed_writer.write(tmp_path / "one", format)
    for end in (3, 6, 4, 20, 12, 100):
        LineageSink(Tables(tmp_path / "other", format)).write(table.filter(pc.less_equal(table["raft_index"], end)))
    assert killed_writer.content(tmp_path / "one", format) == killed_writer.content(tmp_path / "other", format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_range_that_is_not_remembered_any_more_is_looked_up(format: Format, tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "m-0", "m-1")
    log.publish("other", "n-0")
    LineageSink(Tables(tmp_path, format)).write(log.table())
    log.publish("orders", "m-2")
    log.ack("g", "orders", 1, 3)
    LineageSink(Tables(tmp_path, format)).write(log.table())  # a new process: its cache is empty
    consumed = {edge["src"] for edge in rows(Tables(tmp_path, format), "edges") if edge["kind"] == "CONSUMED_BY"}
    assert consumed == {"message:orders/m-1", "message:orders/m-2"}


def test_the_cache_is_bounded_and_what_it_forgot_is_asked_for() -> None:
    asked: list[tuple[str, int, int, int]] = []
    known = Tables("/nonexistent").published("t", 0, 0, 0)

    def lookup(topic: str, queue: int, begin: int, end: int) -> Any:
        asked.append((topic, queue, begin, end))
        return known

    places = Places(lookup, cached_messages_max=3)
    fold = Fold(FoldState(), places)
    log = History()
    for number in range(5):
        log.publish("t", f"m-{number}")
        fold.fold(log.table())
    assert places.between(("t", 0), 0, 5) == ([2, 3, 4], ["message:t/m-2", "message:t/m-3", "message:t/m-4"])
    assert asked == [("t", 0, 0, 2)]


def test_compaction_keeps_every_row(tmp_path: Path) -> None:
    killed_writer.write(tmp_path, "delta")
    tables = Tables(tmp_path)
    before = killed_writer.content(tmp_path, "delta")
    files = len(tables.edges.files())
    for table in (tables.events, tables.nodes, tables.edges):
        table.compact()
    assert len(Tables(tmp_path).edges.files()) < files
    assert killed_writer.content(tmp_path, "delta") == before
    log = shop()
    log.publish("orders", "z-0")
    LineageSink(Tables(tmp_path)).write(log.table())
    assert len(rows(Tables(tmp_path), "events")) == log.table().num_rows


@pytest.mark.parametrize("format", FORMATS)
def test_tables_keep_the_format_that_they_were_begun_in(format: Format, tmp_path: Path) -> None:
    killed_writer.write(tmp_path, format)
    other: Format = "parquet" if format == "delta" else "delta"
    tables = Tables(tmp_path, other)
    assert (tables.format, tables.events.raft_index) == (format, shop().table()["raft_index"][-1].as_py())
