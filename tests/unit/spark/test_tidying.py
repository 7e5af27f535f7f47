"""Tables are tidied, and get the columns of later versions: their rows stay the same."""

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType
from typer.testing import CliRunner

import keelmq_spark.tables.tables as tables_module
from keelmq_spark.cli import app
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables import layout, rewriting
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.directory import TablesLock
from keelmq_spark.tables.published import rows_sql
from keelmq_spark.tables.schema import EDGES, NODES
from keelmq_spark.tables.tables import Tables
from keelmq_spark.views.events import EVENTS_ARROW
from tests.unit.spark import killed_writer
from tests.unit.spark.history import START_US, History, shop
from tests.unit.spark.stored import rows

FORMATS: list[Format] = ["delta", "parquet"]


class Dead(Exception):
    """Stands for the end of the process."""


def _die(*_: object) -> None:
    raise Dead


@pytest.mark.parametrize("format", FORMATS)
def test_compaction_keeps_every_row(format: Format, tmp_path: Path) -> None:
    killed_writer.write(tmp_path, format)
    before = killed_writer.content(tmp_path, format)
    files = len(Tables(tmp_path).edges.files())
    done = CliRunner().invoke(app, ["compact", "--tables", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert len(Tables(tmp_path).edges.files()) < files
    assert killed_writer.content(tmp_path, format) == before
    log = killed_writer.longer()
    log.write(tmp_path)
    assert len(rows(Tables(tmp_path), "events")) == log.table().num_rows


def test_a_merged_parquet_file_counts_once_beside_what_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction may end at any moment: what it replaces is known by its name, and removed at the next start."""
    killed_writer.write(tmp_path, "parquet")
    before = killed_writer.content(tmp_path, "parquet")
    files = {path: path.read_bytes() for path in (tmp_path / "events").rglob("part-*")}
    tables = Tables(tmp_path)
    tables.recover()
    tables.compact()
    for path, data in files.items():
        path.write_bytes(data)
    assert killed_writer.content(tmp_path, "parquet") == before
    assert Tables(tmp_path).events.files() == tables.events.files()
    Tables(tmp_path).recover()
    assert not any(path.exists() for path in files)


def test_only_files_that_follow_each_other_are_merged(tmp_path: Path) -> None:
    rows = pa.table({"n": list(range(1_000))})
    paths = [tmp_path / rewriting.name_of(index) for index in range(1, 6)]
    for path in paths:
        rewriting.write_file(rows if path == paths[2] else rows.slice(0, 1), path, "events")
    small_bytes = paths[2].stat().st_size
    rewriting.merge(paths, "events", small_bytes)
    left = sorted(tmp_path.glob("part-*"), key=rewriting.range_of)
    assert [rewriting.range_of(path) for path in left] == [(1, 2), (3, 3), (4, 5)]
    assert rewriting.split_replaced(left) == (left, [])
    rewriting.merge(left, "events", 1 << 20, file_bytes=small_bytes + 1)
    assert [rewriting.range_of(path) for path in sorted(tmp_path.glob("part-*"))] == [(1, 2), (3, 3), (4, 5)]
    rewriting.merge(left, "events", 1 << 20)
    (one,) = tmp_path.glob("part-*")
    assert pq.read_table(one).num_rows == 1_004


@pytest.mark.parametrize("format", FORMATS)
def test_a_reader_goes_on_when_its_files_are_compacted(format: Format, tmp_path: Path) -> None:
    killed_writer.write(tmp_path, format)
    with Graph(tmp_path) as graph:
        before = graph.rows("SELECT event_id FROM events ORDER BY event_id")
        tables = Tables(tmp_path)
        tables.recover()
        tables.compact()
        assert graph.rows("SELECT event_id FROM events ORDER BY event_id") == before


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("change", ["write", "compact"])
def test_a_reader_that_opens_tables_while_they_change_sees_every_row(
    change: str, format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = History()
    log.half("t1", "orders", "t1-0")
    for number in range(3):
        log.publish("orders", f"m-{number}")
        log.write(tmp_path, format)
    changes = [change]

    def opened(place: Path) -> Tables:
        """The job goes on between the commit that the reader reads and the files that it lists."""
        tables = Tables(place)
        while changes:
            changes.pop()
            for _ in range(2):
                log.publish("orders", f"later-{log.end}")
                log.write(place)
            if change == "compact":
                job = Tables(place)
                job.recover()
                job.compact()
        return tables

    monkeypatch.setattr("keelmq_spark.queries.graph.Tables", opened)
    with Graph(tmp_path) as graph:
        found = {row["message_id"] for row in graph.rows("SELECT message_id FROM events")}
        assert {"t1-0", "m-0", "m-1", "m-2"} <= found
        (transaction,) = graph.nodes(["transaction:t1"])
        assert transaction["state"] == "prepared"
    assert not changes


def test_a_reader_opens_tables_again_whose_files_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_writer.write(tmp_path, "parquet")
    compacted: list[str] = []

    def compacting(connection: Any, name: str, rows: Any) -> str:
        if not compacted:
            compacted.append(name)
            tables = Tables(tmp_path)
            tables.recover()
            tables.compact()
        return rows_sql(connection, name, rows)

    monkeypatch.setattr("keelmq_spark.queries.graph.rows_sql", compacting)
    with Graph(tmp_path) as graph:
        assert graph.rows("SELECT count(*) AS n FROM events")[0]["n"] == len(rows(Tables(tmp_path), "events"))


def at(entry: int) -> datetime:
    return datetime.fromtimestamp(START_US / 1e6 + entry, UTC)


@pytest.mark.parametrize("format", FORMATS)
def test_pruning_removes_what_is_older_and_settled(format: Format, tmp_path: Path) -> None:
    log = shop()
    log.write(tmp_path, format)
    log.half("open", "orders", "open-0")
    log.write(tmp_path, format)
    everything = {name: rows(Tables(tmp_path), name) for name in ("events", "nodes", "edges")}
    tables = Tables(tmp_path)
    tables.recover()
    removed = tables.prune(at(10))
    for name, column in (("events", "ts"), ("nodes", "last_ts"), ("edges", "ts")):
        kept = [row for row in everything[name] if row[column] >= at(10) or str(row.get("open")).lower() == "true"]
        assert 0 < len(kept) < len(everything[name])
        assert sorted(map(str, rows(Tables(tmp_path), name))) == sorted(map(str, kept))
        assert removed[name] == len(everything[name]) - len(kept)
    log.publish("orders", "after-0")
    log.write(tmp_path)
    assert len(rows(Tables(tmp_path), "events")) == len(everything["events"]) - removed["events"] + 1


@pytest.mark.parametrize("format", FORMATS)
def test_files_that_are_pruned_stay_as_small_as_compacted_ones(format: Format, tmp_path: Path) -> None:
    log = busy()
    LineageSink(Tables(tmp_path, format)).write(log.table(), 1, log.end)
    tables = Tables(tmp_path)
    tables.recover()
    tables.compact()

    def row_bytes() -> dict[str, float]:
        files = {name: table.files() for name, table in Tables(tmp_path).all.items() if name != "nodes"}
        read = {name: [pq.read_metadata(file) for file in found] for name, found in files.items()}
        for name, found in read.items():
            groups = [meta.row_group(at) for meta in found for at in range(meta.num_row_groups)]
            columns = [group.column(at) for group in groups for at in range(group.num_columns)]
            for column in columns:
                encoding = layout.ENCODINGS[name].get(column.path_in_schema)
                assert encoding is None or encoding in column.encodings, (name, column.path_in_schema)
        sizes = {name: sum(Path(file).stat().st_size for file in found) for name, found in files.items()}
        return {name: size / sum(meta.num_rows for meta in read[name]) for name, size in sizes.items()}

    before, with_bloom = row_bytes(), bloom_filters(tmp_path)
    assert with_bloom == {"events": {"message_id"}, "edges": {"src", "dst"}}
    assert min(tables.prune(at(60)).values()) > 0
    assert bloom_filters(tmp_path) == with_bloom
    for name, size in row_bytes().items():
        assert size <= before[name] * 1.15, name


def bloom_filters(path: Path) -> dict[str, set[str]]:
    """Return the columns that have Bloom filters in all files of a table."""
    found: dict[str, set[str]] = {}
    for name, table in Tables(path).all.items():
        if name == "nodes":
            continue
        listed = ", ".join(f"'{file}'" for file in table.files())
        sql = f"""SELECT path_in_schema FROM parquet_metadata([{listed}]) GROUP BY path_in_schema
                  HAVING bool_and(bloom_filter_offset IS NOT NULL)"""
        found[name] = {column for (column,) in duckdb.connect().execute(sql).fetchall()}
    return found


@pytest.mark.parametrize("format", FORMATS)
def test_pruning_that_is_killed_leaves_whole_tables(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_writer.write(tmp_path, format)
    before = killed_writer.content(tmp_path, format)
    tables = Tables(tmp_path)
    tables.recover()
    monkeypatch.setattr(tables, "add_commit", _die)
    with pytest.raises(Dead):
        tables.prune(at(10))
    if format == "delta":
        assert killed_writer.content(tmp_path, format) == before, "nothing is removed before the commit"
    again = Tables(tmp_path)
    again.recover()
    again.prune(at(10))
    assert min(row["ts"] for row in rows(again, "events")) >= at(10)
    assert min(row["ts"] for row in rows(again, "edges")) >= at(10)


@pytest.mark.parametrize("days", ["1000000", "inf", "-1"])
def test_ages_that_no_calendar_has_are_refused(days: str, tmp_path: Path) -> None:
    shop().write(tmp_path)
    for command in (["prune", "--older-than", days], ["run", "--once", "--keep-days", days, "--cores", "none"]):
        done = CliRunner().invoke(app, [*command, "--tables", str(tmp_path)])
        assert (done.exit_code, "--cores" in done.output) == (2, False), done.output


def test_tables_that_a_job_writes_are_not_tidied(tmp_path: Path) -> None:
    killed_writer.write(tmp_path, "parquet")
    before = killed_writer.content(tmp_path, "parquet")
    with TablesLock(tmp_path):
        for command in (["compact"], ["prune", "--older-than", "0"]):
            done = CliRunner().invoke(app, [*command, "--tables", str(tmp_path)])
            assert done.exit_code == 1
            assert f"process {os.getpid()}" in done.output
    assert killed_writer.content(tmp_path, "parquet") == before
    for command in (["compact"], ["prune", "--older-than", "0"]):
        done = CliRunner().invoke(app, [*command, "--tables", str(tmp_path / "none")])
        assert (done.exit_code, "there are no lineage tables" in done.output) == (1, True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("format", FORMATS)
def test_tables_of_an_earlier_schema_get_the_new_columns(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version without the new columns is simulated: its tables and its files lack them."""
    added, parts = list(layout.ADDED_COLUMNS["events"]), layout.parts

    def earlier_parts(name: str, rows: Any, open_rows: Any) -> Any:
        return parts(name, rows.drop_columns(added) if name == "events" else rows, open_rows)

    earlier = pa.schema([field for field in EVENTS_ARROW if field.name not in added])
    log = History()
    log.publish("orders", "a-0", "a-1")
    with monkeypatch.context() as before:
        before.setattr(layout, "schema_of", lambda name: {"events": earlier, "nodes": NODES, "edges": EDGES}[name])
        before.setattr(layout, "ADDED_COLUMNS", {"events": {}, "nodes": {}, "edges": {}})
        before.setattr(tables_module, "SCHEMA", 1)
        before.setattr(layout, "parts", earlier_parts)
        log.write(tmp_path, format)
    assert Tables(tmp_path).commit.schema == 1  # type: ignore[union-attr]
    with Graph(tmp_path) as graph:
        assert graph.rows("SELECT DISTINCT tag, filter FROM events") == [{"tag": None, "filter": None}]
    log.publish("orders", "b-0", tag="x")
    log.ack("g", "orders", 0, 3, filter="TAGS IN ('x')")
    log.write(tmp_path)
    tables = Tables(tmp_path)
    assert tables.commit is not None
    assert tables.commit.schema == tables_module.SCHEMA
    with Graph(tmp_path) as graph:
        assert graph.rows("SELECT message_id, tag FROM events WHERE type = 'PUBLISH' ORDER BY message_id") == [
            {"message_id": "a-0", "tag": None},
            {"message_id": "a-1", "tag": None},
            {"message_id": "b-0", "tag": "x"},
        ]
        consumed = graph.rows("SELECT src FROM edges WHERE kind = 'CONSUMED_BY'")
    assert consumed == [{"src": "message:orders/b-0"}]
    tables.recover()
    tables.compact()
    with Graph(tmp_path) as graph:
        assert len(graph.rows("SELECT tag FROM events WHERE tag IS NULL AND type = 'PUBLISH'")) == 2


def test_a_version_that_does_not_know_a_column_reads_and_writes_on(tmp_path: Path) -> None:
    """A later version has added a column to a table, and to its files; its commits say so."""
    log = History()
    log.publish("orders", "a-0")
    log.write(tmp_path)
    table = DeltaTable(tmp_path / "events")
    table.alter.add_columns([DeltaField("later", PrimitiveType("string"), nullable=True)])
    tables = Tables(tmp_path)
    tables.recover()
    log.publish("orders", "a-1")
    tables.events.write(log.between(2, 3).append_column("later", pa.array(["x"])), 2)
    assert tables.commit is not None
    tables.commit = msgspec.structs.replace(tables.commit, schema=99)
    tables.add_commit("", 2, 3, None)
    log.publish("orders", "b-0")
    log.write(tmp_path)
    commit = Tables(tmp_path).commit
    assert commit is not None
    assert commit.schema == 99
    with Graph(tmp_path) as graph:
        assert sorted(row["message_id"] for row in graph.rows("SELECT message_id FROM events")) == ["a-0", "a-1", "b-0"]


def test_files_of_a_delta_table_say_what_is_in_them(tmp_path: Path) -> None:
    log = History()
    for number in range(4):
        log.publish("orders", f"m-{number}")
        log.write(tmp_path)
    table = DeltaTable(tmp_path / "events")
    assert len(table.file_uris()) == 4
    assert len(table.file_uris(file_pruning_predicate=[("offset", "=", "2")])) == 1
    assert table.to_pyarrow_table(filters=[("raft_index", ">", 3)]).num_rows == 1
    stated = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert min(each["min.ts"] for each in stated) <= at(1) <= at(4) <= max(each["max.ts"] for each in stated)


@pytest.mark.parametrize("format", FORMATS)
def test_short_jobs_compact_what_earlier_ones_left(
    format: Format, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keelmq_spark.tables.layout.COMPACT_EVERY", 4)
    log = History()
    for number in range(12):
        log.publish("orders", f"m-{number}")
        log.write(tmp_path, format)
        tables = Tables(tmp_path)
        assert len(tables.events.files()) <= 4
        assert len(rows(tables, "events")) == number + 1


def busy() -> History:
    """Return messages with ids, keys and traces of their own, of which two groups process each."""
    log = History()
    for entry in range(200):
        names = [f"{hashlib.sha256(str(entry).encode()).hexdigest()[:24]}-{number}" for number in range(20)]
        row: dict[str, Any] = {"group": "web", "trace_id": hashlib.sha256(names[0].encode()).hexdigest()[:32]}
        log.entry(*(log.published("orders", name, key=f"order-{entry}", **row) for name in names))
        for group in ("billing", "shipping"):
            log.ack(group, "orders", entry * 20, entry * 20 + 20)
    return log


@pytest.mark.parametrize("format", FORMATS)
def test_ids_numbers_and_times_take_little_room_once_they_are_compacted(format: Format, tmp_path: Path) -> None:
    log = busy()
    sink = LineageSink(Tables(tmp_path, format))
    for begin in range(1, log.end, 100):
        end = min(begin + 100, log.end)
        sink.write(log.between(begin, end), begin, end)
    tables = Tables(tmp_path)
    tables.recover()
    before = killed_writer.content(tmp_path, format)
    tables.compact()
    assert killed_writer.content(tmp_path, format) == before
    sizes = {name: sum(Path(file).stat().st_size for file in table.files()) for name, table in tables.all.items()}
    assert sum(sizes.values()) / log.table().num_rows < 20.5, sizes
    for name, table in tables.all.items():
        for file in table.files():
            group = pq.read_metadata(file).row_group(0)
            found = {group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)}
            for column, encoding in layout.ENCODINGS[name].items():
                if column in found:
                    assert encoding in found[column], (name, column)
                    assert "RLE_DICTIONARY" not in found[column], (name, column)


@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_a_write_lie_in_the_order_of_their_ids(format: Format, tmp_path: Path) -> None:
    log = busy()
    LineageSink(Tables(tmp_path, format)).write(log.table(), 1, log.end)
    for name, table in Tables(tmp_path).all.items():
        for file in table.files():
            ids = pq.read_table(file, partitioning=None).select(layout.SORTED_BY[name]).to_pylist()
            assert [tuple(row.values()) for row in ids] == sorted(tuple(row.values()) for row in ids), name


def test_a_merged_file_has_full_row_groups_each_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "ROW_GROUP_ROWS", 100)
    paths = [tmp_path / rewriting.name_of(index) for index in range(1, 8)]
    for number, path in enumerate(paths):
        rows = [{"dst": f"group-{at % 3}", "src": f"{number}-{at:03}"} for at in range(60)]
        rewriting.write_file(pa.Table.from_pylist(rows), path, "edges")
    rewriting.merge(paths, "edges", 1 << 20)
    (one,) = tmp_path.glob("part-*")
    file = pq.ParquetFile(one)
    groups = [file.read_row_group(at).to_pylist() for at in range(file.num_row_groups)]
    assert [len(group) for group in groups] == [100, 100, 100, 100, 20]
    for group in groups:
        assert group == sorted(group, key=lambda row: (row["dst"], row["src"]))
    assert len({row["src"] for group in groups for row in group}) == 420


def test_files_of_a_merge_that_was_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "open=false").mkdir()
    left = [tmp_path / ".merged-1.parquet.next", tmp_path / "open=false" / ".merged-2.parquet.next"]
    kept = tmp_path / "merged-1.parquet"
    for path in (*left, kept):
        path.touch()
    rewriting.remove_unfinished(tmp_path)
    assert [path for path in tmp_path.rglob("*.*") if path.is_file()] == [kept]
