"""Runs the lineage job on a real cluster and a real Spark: the tables must hold exactly the workload's actions."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from examples.lineage.truth import compare
from examples.lineage.workload import Workload
from keelmq_spark.job import JobOptions, start
from keelmq_spark.queries.graph import Graph, NoTables
from keelmq_spark.tables.storage import Place
from keelmq_spark.tables.tables import Tables
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.object_store import StoreProcess
from tests.patience import PATIENCE_S
from tests.spark.queries import begun, ended
from tests.unit.spark.killed_store_writer import content as content_anywhere

pytestmark = pytest.mark.process

ORDERS = 120
OPTIONS = (
    *("--election-timeout-ms", "500", "--heartbeat-ms", "50", "--check-max", "1000"),
    *("--check-immunity-ms", "1000", "--check-interval-ms", "1000"),
)


class InThread:
    """Runs a workload beside the test; `end` lets it finish."""

    def __init__(self, servers: list[str]) -> None:
        self.workload = Workload(servers, orders_per_s=25)
        self._enough = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        async def whole() -> None:
            await self.workload.prepare()
            async with asyncio.timeout(PATIENCE_S):
                await self.workload.run(lambda: self._enough.is_set() and self.workload.placed >= ORDERS)

        try:
            asyncio.run(whole())
        except BaseException as exc:
            self._failure = exc

    def end(self) -> None:
        self._enough.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def events_in(tables: Place) -> int:
    try:
        with Graph(tables) as graph:
            return int(graph.rows("SELECT count(*) AS n FROM events")[0]["n"])
    except NoTables:
        return 0


def content(place: Place, format: Any) -> dict[str, list[str]]:
    tables = Tables(place, format)
    found = {}
    for name, table in (("events", tables.events), ("nodes", tables.nodes), ("edges", tables.edges)):
        query = "SELECT * FROM read_parquet(?, hive_partitioning = true)"
        rows = duckdb.connect().sql(query, params=[table.files()]).to_arrow_table().to_pylist()
        found[name] = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)
    return found


def test_a_job_that_was_stopped_and_one_that_was_not_tell_the_truth(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ClusterProcess(tmp_path / "cluster", nodes=3, options=OPTIONS) as cluster:
        servers = cluster.urls
        live = JobOptions(",".join(servers), tmp_path / "live", interval_ms=100, max_entries=500)
        running = InThread(servers)
        try:
            query = begun(lambda: start(spark, live))
            wait_for(lambda: events_in(live.tables) > ORDERS, "events in the tables")
            query.stop()
            cluster.wait_leader().kill()
            query = begun(lambda: start(spark, live))
            before = events_in(live.tables)
            wait_for(lambda: events_in(live.tables) > before, "more events in the tables")
        finally:
            running.end()
        query.processAllAvailable()
        query.stop()
        with Graph(live.tables) as graph:
            result = compare(running.workload.truth, graph)
        assert result.pop("examples") == []
        assert [result[name] for name in ("missing", "extra", "wrong_state", "wrong_answers")] == [0, 0, 0, 0]
        assert result["messages"] > ORDERS

        whole = JobOptions(live.servers, tmp_path / "whole", format="parquet", until_end=True)
        ended(lambda: start(spark, whole))
        assert content(whole.tables, "parquet") == content(live.tables, "delta")

        with StoreProcess(tmp_path, list_page=1_000) as store:
            store.use(monkeypatch)
            store.client.create_bucket(Bucket="analytics")
            stored = replace(whole, tables="s3://analytics/lineage", format="delta", max_entries=500)
            ended(lambda: start(spark, stored))
            assert content_anywhere(stored.tables) == content_anywhere(whole.tables)
