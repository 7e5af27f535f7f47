"""Runs the lineage job on a real cluster and a real Spark while topics are purged beside it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import keelmq
from keelmq_spark.job import JobOptions, start
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables.storage import Place
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.patience import PATIENCE_S
from tests.spark.queries import begun, ended
from tests.spark.test_lineage import content, events_in
from tests.spark.test_source import send, servers

pytestmark = pytest.mark.process


def purge(cluster: ClusterProcess, topic: str) -> int:
    async def run() -> int:
        connection = keelmq.Connection(cluster.urls, call_timeout_ms=60_000)
        try:
            return (await keelmq.Admin(connection).purge_topic(topic)).messages
        finally:
            connection.close()

    return asyncio.run(run())


def consume(cluster: ClusterProcess, topic: str, group: str, count: int) -> list[str]:
    """Have a group process messages, and return their ids."""

    async def run() -> list[str]:
        seen: list[str] = []
        enough = asyncio.Event()

        async def handle(message: keelmq.ReceivedMessage) -> None:
            seen.append(message.message_id)
            if len(seen) >= count:
                enough.set()

        async with asyncio.timeout(PATIENCE_S), keelmq.Consumer(cluster.urls, group, topic, handle, start="earliest"):
            await enough.wait()
        return seen

    return asyncio.run(run())


def edges(place: Place, kind: str) -> list[str]:
    with Graph(place) as graph:
        rows = graph.rows("SELECT src FROM edges WHERE kind = ? ORDER BY src", [kind])
    return [row["src"].partition("/")[2] for row in rows]


def test_a_job_that_tails_a_purged_topic_tells_who_had_what(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    live = JobOptions(servers(cluster), tmp_path / "live", interval_ms=50, max_entries=3)
    batches: Sequence[Sequence[bytes]] = [[b"x" * 10] * 5 for _ in range(8)]
    query = begun(lambda: start(spark, live))
    try:
        first = send(cluster, "purged", batches)
        read = consume(cluster, "purged", "readers", len(first))
        assert sorted(read) == sorted(first)
        second = send(cluster, "purged", batches)
        wait_for(lambda: events_in(live.tables) >= len(first) + len(second), "both in the tables")
        removed = purge(cluster, "purged")
        third = send(cluster, "purged", batches)
        assert removed == len(first) + len(second)
        assert purge(cluster, "purged") == len(third)
        fourth = send(cluster, "purged", batches)
        query.processAllAvailable()
    finally:
        query.stop()
    assert edges(live.tables, "PURGED_FROM") == sorted([*first, *second, *third])
    assert edges(live.tables, "CONSUMED_BY") == sorted(first)
    with Graph(live.tables) as graph:
        waiting = [each["node_id"].partition("/")[2] for each in answers.orphans(graph)]
        assert sorted(waiting) == sorted(fourth)
        story = answers.story(graph, f"message:purged/{second[0]}")
        assert [each["kind"] for each in story["edges"]] == ["IN_TOPIC", "PURGED_FROM"]

    whole = JobOptions(live.servers, tmp_path / "whole", format="parquet", until_end=True)
    ended(lambda: start(spark, whole))
    assert content(whole.tables, "parquet") == content(live.tables, "delta")
