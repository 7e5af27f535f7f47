"""The tables are the same whatever happens between two writes."""

import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from keelmq_spark.cli import app
from keelmq_spark.folding.fold import Fold
from keelmq_spark.folding.fold_state import FoldState
from keelmq_spark.folding.places import READ_AHEAD_MESSAGES, Places
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables import layout
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.directory import TablesLock
from keelmq_spark.tables.errors import Gap, OtherLog, TablesError, TablesInUse
from keelmq_spark.tables.tables import Tables
from tests.unit.spark import killed_writer
from tests.unit.spark.history import START_US, History, shop
from tests.unit.spark.stored import rows

ROOT = Path(__file__).parents[3]
KILLS_STEP = 4
"""1 kills before each of the 43 (Delta) and 65 (Parquet) changes, which takes a minute."""
FORMATS: list[Format] = ["delta", "parquet"]


@pytest.mark.parametrize("compact_every", [layout.COMPACT_EVERY, 2])
@pytest.mark.parametrize("format", FORMATS)
def test_a_writer_that_is_killed_before_any_change_and_begins_again_makes_the_same_tables(
    format: Format, compact_every: int, tmp_path: Path
) -> None:
    options = [str(tmp_path), format, str(KILLS_STEP), str(compact_every)]
    command = [sys.executable, "-m", "tests.unit.spark.killed_writer", *options]
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
    log = shop()
    killed_writer.write(tmp_path / "one", format)
    for end in (3, 6, 4, 20, 12, 100):
        LineageSink(Tables(tmp_path / "other", format)).write(log.between(1, end), 1, end)
    assert killed_writer.content(tmp_path / "one", format) == killed_writer.content(tmp_path / "other", format)


@pytest.mark.parametrize("format", FORMATS)
def test_a_range_that_is_not_remembered_any_more_is_looked_up(format: Format, tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "m-0", "m-1")
    log.publish("other", "n-0")
    log.write(tmp_path, format)
    log.publish("orders", "m-2")
    log.ack("g", "orders", 1, 3)
    log.write(tmp_path, format)  # a new process: its cache is empty
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
    assert asked == [("t", 0, 0, READ_AHEAD_MESSAGES)]


@pytest.mark.parametrize("format", FORMATS)
def test_a_group_that_is_behind_costs_few_look_ups(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job begins again, so its cache is empty; messages that come meanwhile are not missed."""
    log = History()
    log.publish("orders", *(f"m-{number}" for number in range(500)))
    log.write(tmp_path, format)
    asked = []
    published = Tables.published

    def counted(tables: Tables, *range: Any) -> Any:
        asked.append(range)
        return published(tables, *range)

    monkeypatch.setattr(Tables, "published", counted)
    for begin in range(0, 500, 5):
        log.ack("g", "orders", begin, begin + 5)
    log.publish("orders", "new")
    log.ack("g", "orders", 500, 501)
    sink = LineageSink(Tables(tmp_path, format))
    for begin in range(2, log.end, 5):
        end = min(begin + 5, log.end)
        sink.write(log.between(begin, end), begin, end)
    consumed = [edge["src"] for edge in rows(Tables(tmp_path, format), "edges") if edge["kind"] == "CONSUMED_BY"]
    assert sorted(consumed) == sorted(["message:orders/new", *(f"message:orders/m-{n}" for n in range(500))])
    assert len(asked) == 1


@pytest.mark.parametrize("format", FORMATS)
def test_tables_keep_the_format_that_they_were_begun_in(format: Format, tmp_path: Path) -> None:
    killed_writer.write(tmp_path, format)
    other: Format = "parquet" if format == "delta" else "delta"
    tables = Tables(tmp_path, other)
    assert (tables.format, tables.next_index) == (format, killed_writer.KILLED_AT[-1])


@pytest.mark.parametrize("format", FORMATS)
def test_readers_never_see_a_part_of_a_batch(format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = shop()
    sink = LineageSink(Tables(tmp_path, format))
    sink.write(log.between(1, 14), 1, 14)
    before = killed_writer.content(tmp_path, format)
    monkeypatch.setattr(sink.tables, "add_commit", _die)
    with pytest.raises(Dead):
        sink.write(log.between(14, log.end), 14, log.end)
    assert killed_writer.content(tmp_path, format) == before
    log.write(tmp_path, format)
    log.write(tmp_path / "whole", format)
    assert killed_writer.content(tmp_path, format) == killed_writer.content(tmp_path / "whole", format)


class Dead(Exception):
    """Stands for the end of the process."""


def _die(*_: object) -> None:
    raise Dead


@pytest.mark.parametrize("format", FORMATS)
def test_a_second_writer_is_refused_and_the_tables_are_those_of_the_first(format: Format, tmp_path: Path) -> None:
    log = shop()
    late = LineageSink(Tables(tmp_path, format))
    LineageSink(Tables(tmp_path, format)).write(log.between(1, 14), 1, 14)
    with pytest.raises(TablesInUse):
        late.write(log.between(1, 10), 1, 10)
    log.write(tmp_path, format)
    log.write(tmp_path / "alone", format)
    assert killed_writer.content(tmp_path, format) == killed_writer.content(tmp_path / "alone", format)


LOCKED = """
import pathlib, sys
from keelmq_spark.tables.directory import TablesLock

with TablesLock(pathlib.Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_lock_names_its_owner_and_goes_with_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOCKED, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        asked = CliRunner().invoke(app, ["run", "--tables", str(tmp_path)])
        assert (asked.exit_code, f"process {owner.pid} on " in asked.stderr) == (1, True), asked.stderr
        owner.kill()
    with TablesLock(tmp_path):
        pass


def test_tables_of_another_cluster_are_refused(tmp_path: Path) -> None:
    log = shop()
    LineageSink(Tables(tmp_path), "one").write(log.between(1, 14), 1, 14)
    with pytest.raises(OtherLog, match="of the cluster one, and the servers are of the cluster two"):
        LineageSink(Tables(tmp_path), "two")
    LineageSink(Tables(tmp_path), "one").write(log.between(14, log.end), 14, log.end)
    assert Tables(tmp_path).next_index == log.end


def test_a_batch_that_begins_behind_the_end_of_the_tables_is_refused(tmp_path: Path) -> None:
    log = shop()
    sink = LineageSink(Tables(tmp_path))
    sink.write(log.between(1, 14), 1, 14)
    with pytest.raises(Gap, match=r"begins at entry 15 .* ends before 14"):
        sink.write(log.between(15, log.end), 15, log.end)
    assert sink.next_index == 14


def test_entries_without_events_move_the_end_of_the_tables(tmp_path: Path) -> None:
    log = shop()
    log.write(tmp_path)
    sink = LineageSink(Tables(tmp_path))
    sink.write(log.between(1, 1), log.end, log.end + 500)
    commit = Tables(tmp_path).commit
    assert commit is not None
    assert (commit.begin_index, commit.end_index) == (log.end, log.end + 500)
    assert LineageSink(Tables(tmp_path)).next_index == log.end + 500


@pytest.mark.parametrize("begins_again", [False, True])
def test_what_is_pruned_is_consumed_by_nobody(begins_again: bool, tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "a", "b")
    end = log.publish("orders", "c") + 1
    sink = LineageSink(Tables(tmp_path))
    sink.write(log.between(1, end), 1, end)
    sink.prune(datetime.fromtimestamp(START_US / 1_000_000 + 2, UTC))
    if begins_again:
        sink = LineageSink(Tables(tmp_path))
    log.ack("g", "orders", 0, 3)
    sink.write(log.between(end, log.end), end, log.end)
    consumed = {row["src"] for row in rows(Tables(tmp_path), "edges") if row["kind"] == "CONSUMED_BY"}
    assert consumed == {"message:orders/c"}


def test_a_job_that_begins_again_knows_that_a_topic_was_made_again(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "old-0", "old-1")
    log.ack("g", "orders", 0, 2)
    log.write(tmp_path)
    log._ends.clear()
    log.publish("orders", "new-0")
    log.ack("g", "orders", 0, 1)
    log.write(tmp_path)
    consumed = {row["src"] for row in rows(Tables(tmp_path), "edges") if row["kind"] == "CONSUMED_BY"}
    assert consumed == {"message:orders/old-0", "message:orders/old-1", "message:orders/new-0"}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["my tables", "Zürich", "a#b?c", "a[1]*", "o'clock"])
def test_a_directory_may_have_any_name(name: str, format: Format, tmp_path: Path) -> None:
    log = shop()
    log.write(tmp_path / name, format)
    log.ack("late", "orders", 0, 3)
    log.write(tmp_path / name)  # looks the messages up
    with Graph(tmp_path / name) as graph:
        (found,) = graph.rows("SELECT count(*) AS n FROM edges WHERE dst = 'consumer_group:late'")
    assert found["n"] == 3


@pytest.mark.parametrize("name", ["a%20b", "x%2Fy", "%e4", "a\\b", "a\tb"])
def test_a_directory_that_deltalake_takes_for_another_is_refused_and_not_made(name: str, tmp_path: Path) -> None:
    log = shop()
    with pytest.raises(TablesError, match="another directory"):
        log.write(tmp_path / name)
    told = CliRunner().invoke(app, ["run", "--tables", str(tmp_path / name)])
    assert (told.exit_code, "another directory" in " ".join(told.output.split())) == (1, True)
    assert not any(tmp_path.iterdir())
    log.write(tmp_path / name, "parquet")
    with Graph(tmp_path / name) as graph:
        assert graph.rows("SELECT count(*) AS n FROM events")[0]["n"] == log.table().num_rows
    (tmp_path / "link").symlink_to(tmp_path / name)
    with pytest.raises(TablesError, match="another directory"):
        Tables(tmp_path / "link").storage.uri("events")


@pytest.mark.parametrize("format", FORMATS)
def test_the_first_batch_of_all_may_have_no_events(format: Format, tmp_path: Path) -> None:
    log = History()
    for _ in range(4):
        log.entry()
    log.write(tmp_path, format)
    assert Tables(tmp_path).next_index == log.end
    log.publish("orders", "a-0")
    log.write(tmp_path)
    assert [row["node_id"] for row in rows(Tables(tmp_path), "nodes") if row["kind"] == "message"]


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_open_stays_when_jobs_begin_again_and_nothing_happens(format: Format, tmp_path: Path) -> None:
    log = shop()
    log.write(tmp_path, format)
    before = killed_writer.content(tmp_path, format)
    for end in (log.end + 5, log.end + 9):
        sink = LineageSink(Tables(tmp_path))
        sink.write(log.between(1, 1), sink.next_index, end)
        assert killed_writer.content(tmp_path, format) == before
    tables = Tables(tmp_path)
    tables.recover()
    tables.compact()
    assert killed_writer.content(tmp_path, format) == before


def test_compaction_by_another_program_is_kept(tmp_path: Path) -> None:
    log = shop()
    LineageSink(Tables(tmp_path)).write(log.between(1, 14), 1, 14)
    LineageSink(Tables(tmp_path)).write(log.between(14, 20), 14, 20)
    outside = DeltaTable(str(tmp_path / "events"))
    outside.optimize.compact()
    outside.vacuum(0, dry_run=False, enforce_retention_duration=False)
    log.write(tmp_path)
    log.write(tmp_path / "whole")
    whole = killed_writer.content(tmp_path / "whole", "delta")
    assert killed_writer.content(tmp_path, "delta") == whole
    tables = Tables(tmp_path)
    tables.recover()
    tables.compact()
    assert len(tables.events.files()) == 1, "its files are merged with those of the job"
    assert killed_writer.content(tmp_path, "delta") == whole


def test_a_merge_is_no_change_of_another_job(tmp_path: Path) -> None:
    log = killed_writer.longer()
    for end in (log.end // 2, log.end):
        sink = LineageSink(Tables(tmp_path))
        sink.write(log.between(max(sink.next_index, 1), end), max(sink.next_index, 1), end)
    before = killed_writer.content(tmp_path, "delta")
    merged = Tables(tmp_path)
    merged.recover()
    merged.compact()
    versions = {name: DeltaTable(str(tmp_path / name)).version() for name in merged.all}
    assert killed_writer.content(tmp_path, "delta") == before
    again = Tables(tmp_path)
    again.recover()
    assert {name: table.version for name, table in again.all.items()} == versions, "nothing is restored"
    log.publish("orders", "later")
    log.write(tmp_path)
    log.write(tmp_path / "whole")
    assert killed_writer.content(tmp_path, "delta") == killed_writer.content(tmp_path / "whole", "delta")


def test_records_of_a_later_layout_and_tables_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    (tmp_path / "later" / "_commits").mkdir(parents=True)
    (tmp_path / "later" / "_commits" / f"{1:020d}.json").write_text('{"layout": 2}')
    with pytest.raises(TablesError, match="layout 2"):
        Tables(tmp_path / "later")
    (tmp_path / "earlier" / "_state").mkdir(parents=True)
    (tmp_path / "earlier" / "_state" / f"{7:020d}.state").write_bytes(b"")
    with pytest.raises(TablesError, match="earlier version"):
        LineageSink(Tables(tmp_path / "earlier"))
