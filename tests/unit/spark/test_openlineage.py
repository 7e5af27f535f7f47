"""Run events for OpenLineage: their content, their form, and both transports."""

import json
import re
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from keelmq_spark.folding.fold import Fold
from keelmq_spark.folding.fold_state import FoldState
from keelmq_spark.folding.places import Places
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.openlineage import Reporter, client_of
from keelmq_spark.tables.tables import Tables
from tests.unit.spark.folded import no_table
from tests.unit.spark.history import History, shop

URI = re.compile(r"https?://\S+")
FACETS = {
    "jobType": "JobTypeJobFacet.json",
    "inputStatistics": "InputStatisticsInputDatasetFacet.json",
    "outputStatistics": "OutputStatisticsOutputDatasetFacet.json",
}


class Receiver:
    """An OpenLineage backend: takes events at the path that the HTTP transport posts to."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.refuses = False
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/api/v1/lineage"
                if not receiver.refuses:
                    receiver.events.append(json.loads(body))
                self.send_response(400 if receiver.refuses else 201)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


class Job:
    """Folds batches, and reports them as the lineage job does."""

    def __init__(self, target: str, name: str, **options: Any) -> None:
        self.reporter = Reporter(client_of(target), name, **options)
        self._fold = Fold(FoldState(), Places(no_table))
        self.tick, self.close, self.read_from = self.reporter.tick, self.reporter.close, self.reporter.read_from

    def add(self, batch: Any) -> None:
        self.reporter.add(batch, self._fold.fold(batch).edges)


def check_form(event: Any) -> None:
    """Check the form that the published schemas of a run event and of the facets demand (OpenLineage 2-0-2)."""
    assert event["eventType"] in ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER")
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert URI.fullmatch(event["producer"])
    assert URI.fullmatch(event["schemaURL"])
    assert event["schemaURL"].endswith("/RunEvent")
    assert str(uuid.UUID(event["run"]["runId"])) == event["run"]["runId"]
    named = [event["job"], *event["inputs"], *event["outputs"]]
    for each in named:
        assert isinstance(each["namespace"], str)
        assert each["name"]
    kinds = ("facets", "inputFacets", "outputFacets")
    for name, facet in [item for each in named for kind in kinds for item in each.get(kind, {}).items()]:
        assert URI.fullmatch(facet["_producer"])
        assert FACETS[name] in facet["_schemaURL"]
        for number in ("rowCount", "size", "fileCount"):
            assert isinstance(facet.get(number, 0), int)
        if name == "jobType":
            assert {"processingType", "integration"} <= facet.keys()


def test_groups_are_jobs_and_topics_are_datasets(receiver: Receiver) -> None:
    reporter = Job(receiver.url, "prod")
    reporter.add(shop().table())
    reporter.close()
    for event in receiver.events:
        check_form(event)
        assert event["job"]["namespace"] == "keelmq://prod"
    complete = {event["job"]["name"]: event for event in receiver.events if event["eventType"] == "COMPLETE"}
    assert complete.keys() == {"web", "shop", "shipping", "audit"}
    shipping = complete["shipping"]
    (orders,) = shipping["inputs"]
    (shipments,) = shipping["outputs"]
    assert (orders["namespace"], orders["name"]) == ("keelmq://prod", "orders")
    assert orders["inputFacets"]["inputStatistics"]["rowCount"] == 4, "the dead letter is not processed"
    assert shipments["name"] == "shipments"
    assert (
        shipments["outputFacets"]["outputStatistics"] | {"rowCount": 2, "size": 2}
        == (shipments["outputFacets"]["outputStatistics"])
    )


def test_what_a_group_did_not_select_is_not_read(tmp_path: Path) -> None:
    log = History()
    log.entry(*(log.published("orders", f"o-{number}", tag="gift" if number == 4 else "book") for number in range(10)))
    log.ack("gifts", "orders", 0, 10, filter="TAGS IN ('gift')")
    log.ack("toys", "orders", 0, 10, filter="TAGS IN ('toy')")
    sink = LineageSink(Tables(tmp_path / "tables"))
    reporter = Reporter(client_of(str(tmp_path / "events.json")), "prod")
    for begin, end in ((1, 2), (2, log.end)):
        sink.write(log.between(begin, end), begin, end)
        reporter.add(log.between(begin, end), sink.edges)
    reporter.close()
    rows = {
        each["job"]["name"]: each["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"]
        for each in told(tmp_path / "events.json")
    }
    assert rows == {"gifts": 1, "toys": 0}


def test_a_batch_without_events_adds_no_edges_again(tmp_path: Path) -> None:
    log = History()
    log.publish("orders", "o-0")
    log.ack("g", "orders", 0, 1)
    sink = LineageSink(Tables(tmp_path))
    sink.write(log.table(), 1, log.end)
    assert "CONSUMED_BY" in sink.edges["kind"].to_pylist()
    sink.write(log.between(log.end, log.end), log.end, log.end + 1)
    assert sink.edges.num_rows == 0


def test_a_run_begins_and_ends_once(receiver: Receiver) -> None:
    reporter = Job(receiver.url, "prod")
    reporter.add(shop().table())
    reporter.close()
    by_run: dict[str, list[str]] = {}
    for event in receiver.events:
        by_run.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert len(by_run) == 4
    assert set(map(tuple, by_run.values())) == {("START", "COMPLETE")}


def test_a_window_that_is_told_again_is_the_same_run(tmp_path: Path) -> None:
    def told(name: str) -> list[Any]:
        reporter = Job(str(tmp_path / name), "prod")
        reporter.add(shop().table())
        reporter.close()
        return [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]

    first, again = told("first.json"), told("again.json")
    assert len(first) == 8
    for event in first:
        check_form(event)
    assert [event["run"] for event in first] == [event["run"] for event in again]


def test_a_window_is_told_when_its_time_is_over(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    reporter = Job(str(file), "prod", window_s=10)
    table = shop().table()
    ends = []
    for index in sorted(set(table["raft_index"].to_pylist())):  # an entry per second
        reporter.add(table.filter(pc.equal(table["raft_index"], index)))
        ends.append(len(file.read_text().splitlines()) if file.exists() else 0)
    assert ends[9] == 0 < ends[10]
    reporter.close()


def told(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_window_ends_by_the_clock_when_nothing_else_happens(tmp_path: Path) -> None:
    file, now_s = tmp_path / "events.json", 100.0
    reporter = Job(str(file), "prod", window_s=60, clock=lambda: now_s)
    reporter.tick()
    reporter.add(shop().between(1, 3))
    now_s += 59
    reporter.tick()
    assert told(file) == []
    now_s += 1
    reporter.tick()
    assert [each["eventType"] for each in told(file)] == ["START", "COMPLETE"]
    reporter.tick()
    reporter.close()
    assert len(told(file)) == 2


def test_a_run_names_the_topics_of_earlier_windows(tmp_path: Path) -> None:
    file = tmp_path / "events.json"
    log = History()
    log.publish("rare", "r-0", group="web")
    log.ack("shipping", "rare", 0, 1)
    reporter = Job(str(file), "prod", window_s=1)
    reporter.add(log.table())
    first = len(told(file))
    log.publish("orders", "a-0", group="web")
    log.ack("shipping", "orders", 0, 1)
    reporter.add(log.between(3, log.end))
    reporter.close()
    web, shipping = (each for each in told(file)[first:] if each["eventType"] == "COMPLETE")
    if web["job"]["name"] == "shipping":
        web, shipping = shipping, web
    counts = [(each["name"], each["outputFacets"]["outputStatistics"]["rowCount"]) for each in web["outputs"]]
    assert counts == [("orders", 1), ("rare", 0)]
    read = [(each["name"], each["inputFacets"]["inputStatistics"]["rowCount"]) for each in shipping["inputs"]]
    assert read == [("orders", 1), ("rare", 0)]


def test_a_backend_that_is_away_for_a_while_is_told_everything(receiver: Receiver) -> None:
    receiver.refuses = True
    reporter = Job(receiver.url, "prod", window_s=10)
    table = shop().table()
    reporter.add(table.filter(pc.less_equal(table["raft_index"], 15)))
    assert receiver.events == []
    receiver.refuses = False
    reporter.add(table.filter(pc.greater(table["raft_index"], 15)))
    reporter.close()
    (orders,) = [e["inputs"][0] for e in receiver.events if (e["job"]["name"], e["eventType"]) == ("shipping", "START")]
    assert orders["inputFacets"]["inputStatistics"]["rowCount"] == 4, "the dead letter is not processed"


@pytest.mark.parametrize(
    ("name", "uid", "namespace"),
    [("", "0b6c", "keelmq://0b6c"), ("prod", "0b6c", "keelmq://prod"), ("", "", "keelmq://default")],
)
def test_a_cluster_without_a_name_has_its_unique_id(name: str, uid: str, namespace: str, tmp_path: Path) -> None:
    reporter = Job(str(tmp_path / "events.json"), name)
    reporter.read_from(uid)
    reporter.add(shop().table())
    reporter.close()
    assert {each["job"]["namespace"] for each in told(tmp_path / "events.json")} == {namespace}


def test_nothing_happened_is_not_told(tmp_path: Path) -> None:
    reporter = Job(str(tmp_path / "events.json"), "prod")
    reporter.add(History().table())
    reporter.close()
    assert not (tmp_path / "events.json").exists()


def test_another_transport_is_refused() -> None:
    with pytest.raises(ValueError, match="--openlineage"):
        client_of("ftp://somewhere")
