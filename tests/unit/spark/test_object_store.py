"""Tables in an object store: the promises of tables in a directory, without a lock. The store is a real process."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables.tables import Tables
from tests.object_store import StoreProcess
from tests.unit.spark.history import History, shop

BUCKETS: Final = itertools.count()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    with StoreProcess(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.fixture
def server(process: StoreProcess, monkeypatch: pytest.MonkeyPatch) -> StoreProcess:
    """The store, in the variables of this process."""
    process.use(monkeypatch)
    return process


@pytest.fixture
def place(server: StoreProcess) -> str:
    """Return a folder in a new bucket."""
    bucket = f"bucket-{next(BUCKETS)}"
    server.client.create_bucket(Bucket=bucket)
    return f"s3://{bucket}/shop/lineage"


ROWS: Final = {
    "events": "SELECT * FROM events",
    "nodes": "SELECT * REPLACE (open::BOOLEAN AS open) FROM nodes",  # a text where the name of a directory has it
    "edges": "SELECT src, dst, kind, ts, event_id FROM edges",
}


def content(place: Any) -> dict[str, list[str]]:
    """Return the rows of each table, which do not depend on how they were written."""
    with Graph(place) as graph:
        return {name: sorted(map(str, graph.rows(query))) for name, query in ROWS.items()}


def write(place: Any, log: History, *ends: int) -> None:
    sink = LineageSink(Tables(place))
    for end in ends:
        begin = sink.next_index or 1
        sink.write(log.between(begin, end), begin, end)


def test_what_is_written_is_read(place: str, tmp_path: Any) -> None:
    log = shop()
    write(place, log, 14, log.end)
    write(tmp_path, log, 14, log.end)
    assert content(place) == content(tmp_path)
