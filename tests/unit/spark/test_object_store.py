"""Tables in an object store: the promises of tables in a directory, without a lock. The store is a real process."""

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from keelmq.cli.operations.object_store import ObjectStore
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables import layout
from keelmq_spark.tables.commits import KEPT
from keelmq_spark.tables.errors import OtherLog, TablesInUse
from keelmq_spark.tables.storage import storage_of
from keelmq_spark.tables.tables import Tables
from tests.object_store import LIST_PAGE, StoreProcess
from tests.store_requests import RequestRelay
from tests.unit.spark import killed_writer
from tests.unit.spark.history import START_US, shop
from tests.unit.spark.killed_store_writer import content
from tests.unit.spark.stored import Expected, cli, write

ROOT: Final = Path(__file__).parents[3]
KILLS_STEP: Final = 20
"""1 kills before each of the 47 changes, which takes three minutes."""


def bucket_of(place: str) -> str:
    return place.split("/")[2]


def test_what_is_written_is_read(place: str, expected: Expected) -> None:
    log = shop()
    write(place, log, 14, log.end)
    assert content(place) == expected(log.end)


def test_a_writer_that_is_killed_before_any_change_and_begins_again_makes_the_same_tables(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.spark.killed_store_writer", str(tmp_path), str(KILLS_STEP), "2"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[-1]) >= 3, done.stdout


class Dead(Exception):
    """Stands for the end of the process."""


def test_what_is_undone_is_not_seen_and_what_is_committed_is_found_again(
    place: str, expected: Expected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that came back by a RESTORE has no statistics of most columns; groups look up messages in it."""
    log = shop()
    sink = LineageSink(Tables(place))
    sink.write(log.between(1, 14), 1, 14)
    before = content(place)

    def die(*_: object) -> None:
        raise Dead

    monkeypatch.setattr(sink.tables, "add_commit", die)
    with pytest.raises(Dead):
        sink.write(log.between(14, log.end), 14, log.end)
    assert content(place) == before
    again = LineageSink(Tables(place))
    assert again.tables.published("orders", 0, 0, 4)["offset"].to_pylist() == [0, 1, 2, 3]
    write(place, log, log.end)
    assert content(place) == expected(log.end)


def before_call(owner: Any, name: str, then: Callable[[], object]) -> None:
    """Have `then` done once, right before the next call of the method."""
    method = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        setattr(owner, name, method)
        then()
        return method(*arguments, **named)

    setattr(owner, name, called)


MOMENTS: Final[dict[str, Callable[[Any], tuple[Any, str]]]] = {
    "before the events": lambda tables: (tables.events, "write"),
    "before the version of the events": lambda tables: (tables.events._table, "create_write_transaction"),
    "before the edges": lambda tables: (tables.edges, "write"),
    "before the nodes": lambda tables: (tables.nodes, "write"),
    "before the commit": lambda tables: (tables, "add_commit"),
    "before the record": lambda tables: (tables._commits, "add"),
}


@pytest.mark.parametrize(
    ("moment", "other_begins"),
    [
        *((moment, "at that moment") for moment in MOMENTS),
        ("before the version of the events", "with the first job"),
        ("before the edges", "with the first job"),
    ],
)
def test_of_two_jobs_one_commits_and_the_other_one_leaves_nothing(
    place: str, expected: Expected, moment: str, other_begins: str
) -> None:
    log = shop()
    one, early = LineageSink(Tables(place)), LineageSink(Tables(place))
    failed: list[str] = []

    def other() -> None:
        job = early if other_begins == "with the first job" else LineageSink(Tables(place))
        try:
            job.write(log.between(1, 10), 1, 10)
        except TablesInUse:
            failed.append("other")

    before_call(*MOMENTS[moment](one.tables), other)
    try:
        one.write(log.between(1, 14), 1, 14)
    except TablesInUse:
        failed.append("one")
    assert len(failed) == 1
    assert Tables(place).next_index == (10 if failed == ["one"] else 14)
    assert content(place) == expected(Tables(place).next_index)


@pytest.mark.parametrize("change", ["compact", "prune"])
def test_tidying_does_not_commit_the_rows_of_another_job(place: str, expected: Expected, change: str) -> None:
    """The other job writes when the last change of the table is made, and before this job looks at its version."""
    log = shop()
    write(place, log, 8, 14)
    one, other = LineageSink(Tables(place)), Tables(place)
    table = vars(one.tables.events)["_table"]

    def write_events() -> None:
        events: Any = other.events
        events._table = events._newest()
        events._version = events._table.version()
        events.write(log.between(14, log.end), log.end - 1)

    def last_change() -> None:
        before_call(table, "update_incremental", write_events)

    before_call(table, "vacuum" if change == "compact" else "delete", last_change)
    before = datetime.fromtimestamp(START_US / 1e6 + 3, UTC)
    with pytest.raises(TablesInUse):
        one.tables.compact() if change == "compact" else one.prune(before)
    assert Tables(place).next_index == 14
    write(place, log, log.end)
    assert content(place) == expected(log.end)


KINDS: Final = ("LIST", "GET", "HEAD", "PUT", "POST", "DELETE")
WRITER: Final = """
import sys
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.history import shop

log = shop()
tables = Tables(sys.argv[1])
with tables.storage.lock():
    sink = LineageSink(tables)
    for end in (1, 5, 8, 11, 14, 17, 20, 23, 26):
        if end > 1:
            sink.write(log.between(sink.next_index or 1, end), sink.next_index or 1, end)
        print("written", flush=True)
        sys.stdin.readline()
"""


def test_a_batch_costs_few_requests_and_what_has_to_be_new_is_created_only_once(
    server: StoreProcess, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: list[dict[str, int]] = []
    with RequestRelay(server) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.url)
        command = [sys.executable, "-c", WRITER, place]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            at = 0
            for _ in writer.stdout:
                kinds = [request.kind for request in relay.requests[at:]]
                at = len(relay.requests)
                costs.append({kind: kinds.count(kind) for kind in KINDS})
                writer.stdin.write("\n")
                writer.stdin.flush()
        assert writer.returncode == 0
    for cost in costs[1:]:
        assert cost["LIST"] <= 14
        assert cost["PUT"] <= 6 + 1 + 2 + 8  # versions, state and record; events; nodes; each kind of edge
        assert cost["GET"] <= 17
        assert (cost["HEAD"], cost["POST"], cost["DELETE"] <= 1) == (0, 0, True)
    created = [request for request in relay.requests if request.method == "PUT" and request.path.endswith(".json")]
    assert len(created) == 3 + (len(costs) - 1) * 4
    assert all(request.is_conditional for request in created)
    assert not any(request.is_copy for request in relay.requests)


def test_tables_may_be_copied_into_a_directory(
    server: StoreProcess, place: str, tmp_path: Path, expected: Expected
) -> None:
    log = shop()
    write(place, log, 14, log.end)
    for key in server.keys(bucket_of(place)):
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        server.client.download_file(bucket_of(place), key, str(file))
    assert content(tmp_path / "shop" / "lineage") == expected(log.end)


def test_records_and_states_do_not_pile_up(server: StoreProcess, place: str) -> None:
    log = shop()
    write(place, log, log.end)
    sink = LineageSink(Tables(place))
    for end in range(log.end + 1, log.end + KEPT + 3):
        sink.write(log.between(1, 1), end - 1, end)
    write(place, killed_writer.longer(), killed_writer.longer().end)
    names = [key.rpartition("/")[2] for key in server.keys(bucket_of(place)) if "/_commits/" in key]
    assert len([name for name in names if name.endswith(".json")]) == KEPT
    assert len([name for name in names if name.endswith(".state")]) == 2
    assert len(names) == KEPT + 2


def test_lists_of_several_pages_are_read_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Expected
) -> None:
    log = shop()
    with StoreProcess(tmp_path) as server:
        server.use(monkeypatch)
        server.client.create_bucket(Bucket="tables")
        write("s3://tables", log, 8, 14, log.end)
        names = storage_of("s3://tables").names("_commits")
        assert len(names) == 3 + 2 > LIST_PAGE
        assert [name for name in names if name.endswith(".json")] == [f"{number:020d}.json" for number in (1, 2, 3)]
        assert content("s3://tables") == expected(log.end)


def test_a_job_that_writes_on_compacts(place: str, monkeypatch: pytest.MonkeyPatch, expected: Expected) -> None:
    monkeypatch.setattr(layout, "COMPACT_EVERY", 3)
    log = shop()
    write(place, log, *range(4, log.end, 4), log.end)
    tables = Tables(place)
    assert len(tables.events.files()) <= 3
    assert content(place) == expected(log.end)


def test_the_answer_to_a_record_may_be_lost(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """boto3 then repeats the request, which finds the object that the first one made."""
    call = ObjectStore.call

    def repeated(store: ObjectStore, operation: str, *arguments: Any, **named: Any) -> Any:
        answer = call(store, operation, *arguments, **named)
        return call(store, operation, *arguments, **named) if "IfNoneMatch" in named else answer

    monkeypatch.setattr(ObjectStore, "call", repeated)
    write(place, shop(), 14)
    assert Tables(place).next_index == 14
    storage = storage_of(place)
    with pytest.raises(FileExistsError):
        storage.create(f"_commits/{1:020d}.json", b"")


def test_tables_of_another_cluster_are_refused(place: str) -> None:
    log = shop()
    LineageSink(Tables(place), "one").write(log.between(1, 14), 1, 14)
    with pytest.raises(OtherLog, match="of the cluster one, and the servers are of the cluster two"):
        LineageSink(Tables(place), "two")


def test_tables_are_compacted_and_pruned(place: str, tmp_path: Path) -> None:
    log = shop()
    for each in (place, str(tmp_path)):
        write(each, log, 8, 14, log.end)
        done = cli("compact", "--tables", each)
        assert done.exit_code == 0, done.output
    assert content(place) == content(tmp_path)
    removed = []
    for tables in map(Tables, (place, str(tmp_path))):
        tables.recover()
        removed.append(tables.prune(datetime.fromtimestamp(START_US / 1e6 + 10, UTC)))
    assert removed[0] == removed[1]
    assert min(removed[0].values()) > 0
    assert content(place) == content(tmp_path)
    nothing = cli("prune", "--older-than", "10000", "--tables", place)
    assert (nothing.exit_code, "0 events, 0 nodes, 0 edges" in nothing.stdout) == (0, True), nothing.output
    log.publish("orders", "after-0")
    for each in (place, str(tmp_path)):
        write(each, log, log.end)
    assert content(place) == content(tmp_path)


def test_a_reader_goes_on_when_its_files_are_gone(place: str) -> None:
    log = shop()
    write(place, log, 8, 14)
    with Graph(place) as graph:
        before = graph.rows("SELECT event_id FROM events ORDER BY event_id")
        tables = Tables(place)
        tables.recover()
        tables.compact()
        for table in tables.all.values():
            vars(table)["_table"].vacuum(0, dry_run=False, enforce_retention_duration=False)
        assert graph.rows("SELECT event_id FROM events ORDER BY event_id") == before
