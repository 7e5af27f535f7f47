"""Tests the data source on a real cluster and a real Spark: it reads every event once, through restarts and a dead
leader.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import keelmq
from keelmq_spark.job import JobOptions, start
from keelmq_spark.log_reader import DataLoss, LogReader
from keelmq_spark.options import SourceOptions
from keelmq_spark.source import open_log
from keelmq_spark.tables.errors import OtherLog
from keelmq_spark.tables.tables import Tables
from keelmq_spark.views.events import spark_schema
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.patience import PATIENCE_S
from tests.spark.queries import begun, ended, in_time, listened

pytestmark = pytest.mark.process


def urls(cluster: ClusterProcess) -> list[str]:
    return cluster.urls


def servers(cluster: ClusterProcess) -> str:
    return ",".join(urls(cluster))


def send(cluster: ClusterProcess, topic: str, batches: Sequence[Sequence[keelmq.Message | bytes]]) -> list[str]:
    """Send the batches, each to a queue of its own choice, and return the ids of the messages."""

    async def run() -> list[str]:
        connection = keelmq.Connection(urls(cluster), call_timeout_ms=60_000)
        await keelmq.Admin(connection).put_topic(topic, queues=2)
        connection.close()
        async with keelmq.Producer(urls(cluster), send_timeout_ms=60_000) as producer:
            results = await asyncio.gather(*(producer.send_batch(topic, list(batch)) for batch in batches))
        return [result.message_id(n) for result in results for n in range(result.count)]

    return asyncio.run(run())


def read(spark: SparkSession, cluster: ClusterProcess, **options: str) -> DataFrame:
    reader = spark.read.format("keelmq").option("servers", servers(cluster))
    return reader.options(**options).load()


def rows_of(spark: SparkSession, cluster: ClusterProcess, where: str = "true", **options: str) -> list[Row]:
    return in_time(lambda: read(spark, cluster, **options).where(where).collect())


def stream(spark: SparkSession, cluster: ClusterProcess, **options: str) -> DataFrame:
    reader = spark.readStream.format("keelmq").option("servers", servers(cluster))
    return reader.options(**options).load()


def write(frame: DataFrame, directory: Path, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    return writer.trigger(**trigger).start(str(directory / "rows"))


def run_available(frame: DataFrame, directory: Path) -> int:
    """Read everything available; return how many batches had rows."""
    batches = ended(lambda: write(frame, directory, availableNow=True))
    sources = [source for progress in batches for source in progress.sources if source.latestOffset]
    last = json.loads(sources[-1].latestOffset)
    assert all(json.loads(source.endOffset)["index"] <= last["index"] for source in sources)
    return sum(progress.numInputRows > 0 for progress in batches)


def published(spark: SparkSession, directory: Path, topic: str) -> list[str]:
    """Return the message ids of what was published to the topic; no event may be there twice."""
    rows = spark.read.parquet(str(directory / "rows")).select("event_id", "type", "topic", "message_id").collect()
    assert len({row.event_id for row in rows}) == len(rows)
    return [row.message_id for row in rows if row.type == "PUBLISH" and row.topic == topic]


def test_a_batch_reads_every_event(spark: SparkSession, cluster: ClusterProcess) -> None:
    assert rows_of(spark, cluster, view="events", startingOffsets="latest") == []
    message = keelmq.Message(
        body=b"twelve bytes",
        keys=["k1", "k2"],
        properties={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "causation_id": "cause"},
    )
    sent = send(cluster, "batch", [[message, b"plain"], [b"other"] * 3])
    assert in_time(lambda: read(spark, cluster, view="events").schema) == spark_schema()
    rows = {row.message_id: row for row in rows_of(spark, cluster, "topic = 'batch'", view="events")}
    assert sorted(rows) == sorted(sent)
    row = rows[sent[0]]
    assert (row.type, row.key, row.trace_id, row.causation_id, row.bytes) == ("PUBLISH", "k1 k2", "a" * 32, "cause", 12)
    assert row.event_id == f"0:{row.raft_index}:{row.event_id.rpartition(':')[2]}"
    assert (rows[sent[1]].key, rows[sent[1]].bytes, rows[sent[1]].offset) == (None, 5, row.offset + 1)


def test_a_query_goes_on_where_it_ended(spark: SparkSession, cluster: ClusterProcess, tmp_path: Path) -> None:
    sent = [each for _ in range(3) for each in send(cluster, "restart", [[b"x" * 10] * 7 for _ in range(20)])]
    frame = stream(spark, cluster, view="events", maxOffsetsPerTrigger="2")
    assert run_available(frame, tmp_path) > 1
    assert sorted(published(spark, tmp_path, "restart")) == sorted(sent)
    for _ in range(2):
        sent += send(cluster, "restart", [[b"y" * 10] * 3])
    frame = stream(spark, cluster, view="events", maxBytesPerTrigger="1", readerName="going-on")
    assert run_available(frame, tmp_path) > 1
    run_available(frame, tmp_path)
    assert sorted(published(spark, tmp_path, "restart")) == sorted(sent)
    seen = [each for node in cluster.nodes.values() for each in node.known_status()["log_readers"]]
    lags = {each["reader"]: each["lag"] for each in sorted(seen, key=lambda each: -each["silent_ms"])}
    assert lags["going-on"] == 0
    assert lags["spark:events"] > 0, "it ended before the others were sent"


def test_a_dead_leader_stops_and_repeats_nothing(spark: SparkSession, cluster: ClusterProcess, tmp_path: Path) -> None:
    sent = send(cluster, "leader", [[b"x" * 10] * 5 for _ in range(20)])
    frame = stream(spark, cluster, view="events")
    query = begun(lambda: write(frame, tmp_path, processingTime="200 milliseconds"))
    try:
        read_rows = 0

        def has_read(count: int) -> bool:
            nonlocal read_rows
            assert query.exception() is None, query.exception()
            read_rows = sum(progress.numInputRows for progress in query.recentProgress)
            return read_rows >= count

        wait_for(lambda: has_read(len(sent)), "the first rows")
        before = read_rows
        leader = cluster.wait_leader()
        leader.kill()
        sent += send(cluster, "leader", [[b"y" * 10] * 5 for _ in range(20)])
        wait_for(lambda: has_read(before + 100), "what was sent without the leader")
        leader.start()
        cluster.wait_ready()
        sent += send(cluster, "leader", [[b"z" * 10] * 5 for _ in range(20)])
        wait_for(lambda: has_read(before + 200), "what was sent after its return")
    finally:
        query.stop()
    run_available(stream(spark, cluster, view="events"), tmp_path)
    assert sorted(published(spark, tmp_path, "leader")) == sorted(sent)


def test_messages_look_like_those_of_the_kafka_source(spark: SparkSession, cluster: ClusterProcess) -> None:
    message = keelmq.Message(body=b"v", sharding_key="user", tag="T", keys=["k"], properties={"p": "1"}, born_at_ms=5)
    sent = send(cluster, "messages", [[message], [b"a", b"b"]])
    options = {"subscribe": "messages", "includeHeaders": "true"}
    rows = {row.message_id: row for row in rows_of(spark, cluster, **options)}
    assert sorted(rows) == sorted(sent)
    row = rows[sent[0]]
    assert (bytes(row.key), bytes(row.value), row.topic, row.tag) == (b"user", b"v", "messages", "T")
    assert (row.keys, row.properties) == (["k"], {"p": "1"})
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("p", b"1")]
    assert (row.timestamp, row.born_timestamp.microsecond) == (row.store_timestamp, 5_000)
    last = max(rows.values(), key=lambda each: (each.partition, each.offset))
    starting = json.dumps({"messages": {str(last.partition): last.offset}})
    later = rows_of(spark, cluster, subscribe="messages", startingOffsets=starting)
    assert [each.offset for each in later if each.partition == last.partition] == [last.offset]
    index = max(row.raft_index for row in rows_of(spark, cluster, "topic = 'messages'", view="events"))
    ending = json.dumps({"index": index})
    assert len(rows_of(spark, cluster, subscribe="messages", endingOffsets=ending)) < len(sent)
    begun_ms = int(last.timestamp.timestamp() * 1000)
    assert rows_of(spark, cluster, subscribe="messages", startingTimestamp=str(begun_ms))
    assert not rows_of(spark, cluster, subscribe="messages", startingTimestamp=str(begun_ms + 3_600_000))


def test_topics_by_pattern_ends_by_queue_and_topics_that_do_not_exist(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    first = send(cluster, "by-pattern-1", [[b"x"] * 5])
    second = send(cluster, "by-pattern-2", [[b"y"] * 5])
    send(cluster, "not-by-pattern-1", [[b"z"]])

    def found(**options: str) -> list[str]:
        return sorted(row.message_id for row in rows_of(spark, cluster, **options))

    assert found(subscribePattern="by-pattern-[0-9]") == sorted(first + second)
    rows = rows_of(spark, cluster, subscribe="by-pattern-1")
    ends = json.dumps({"by-pattern-1": {str(rows[0].partition): 3}})
    assert found(subscribe="by-pattern-1", endingOffsets=ends) == first[:3]
    latest = json.dumps({"by-pattern-1": {"0": -1, "1": -1}})
    assert found(subscribe="by-pattern-1", endingOffsets=latest) == first
    with pytest.raises(PySparkException, match="there is no topic nowhere;"):
        found(subscribe="by-pattern-1,nowhere")
    assert found(subscribe="by-pattern-1,nowhere,%RETRY%nobody", failOnDataLoss="false") == first
    assert found(subscribe="%RETRY%nobody") == []
    with pytest.raises(StreamingQueryException, match="there is no topic nowhere;"):
        ended(lambda: write(stream(spark, cluster, subscribe="nowhere"), tmp_path, availableNow=True))


def test_nodes_are_asked_for_what_a_query_wants_only(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    first, second = send(cluster, "filtered-1", [[b"x"] * 5]), send(cluster, "filtered-2", [[b"y"] * 5])
    found = rows_of(spark, cluster, "topic IN ('filtered-1', 'filtered-2')", view="events")
    everything = {row.event_id: row for row in found}
    assert {row.message_id for row in everything.values()} == {*first, *second}

    with listened(cluster.wait_leader().url) as (url, asked):
        reader = spark.read.format("keelmq").options(servers=url, view="events")

        def filtered() -> list[Row]:
            asked.clear()
            return reader.load().where("topic LIKE 'filtered-1%' AND type = 'PUBLISH'").collect()

        rows = in_time(filtered)
        assert sorted(row.message_id for row in rows) == sorted(first)
        assert all(everything[row.event_id] == row for row in rows)
        read_paths = [path for path in asked if "blocks=true" in path and "to_index=1&" not in path]
        assert [path.partition("&topics=")[2] for path in read_paths] == ["filtered-1*&types=PUBLISH"]
    run_available(stream(spark, cluster, view="events", subscribe="filtered-1"), tmp_path)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.message_id for row in rows) == sorted(first)
    assert all(everything[row.event_id].offset == row.offset for row in rows)


def test_a_checkpoint_and_tables_of_another_cluster_are_refused(
    spark: SparkSession, cluster: ClusterProcess, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    send(cluster, "first", [[b"x"] * 5])
    job = JobOptions(servers(cluster), tmp_path / "tables", until_end=True)
    ended(lambda: start(spark, job))
    before = Tables(job.tables).commit
    run_available(stream(spark, cluster, view="events"), tmp_path / "query")
    with ClusterProcess(tmp_path_factory.mktemp("other"), nodes=1) as other:
        send(other, "first", [[b"y"] * 5])
        frame = stream(spark, other, view="events")
        with pytest.raises(StreamingQueryException, match=r"answer for the cluster \w+: name the servers"):
            ended(lambda: write(frame, tmp_path / "query", availableNow=True))
        with pytest.raises(OtherLog, match="name the servers of that cluster, or other tables"):
            start(spark, replace(job, servers=servers(other)))
        right = SourceOptions.parse({"servers": servers(cluster), "view": "events"})
        with open_log(right) as log:
            log.end_index(1)
            for server in (*urls(cluster), *urls(other)):
                with open_log(replace(right, servers=(server,)), log.cluster_uid) as one:
                    if server in urls(cluster):
                        assert one.end_index(1) > 1
                        continue
                    with pytest.raises(OtherLog):
                        one.end_index(1)
    assert Tables(job.tables).commit == before


def remove_what_is_there(cluster: ClusterProcess) -> int:
    """Fill a topic that keeps nothing, until all earlier entries are removed; return the log's first index then."""
    node = cluster.wait_leader()
    for topic in ("orders", "filler"):
        settings = {"queues": 2, "retention_ms": 1}
        assert node.request("PUT", f"/v1/topics/{topic}", payload=settings).status in (200, 201)
    status = node.status()  # taken before: the expiry of the last filler may be the last entry
    assert status is not None
    last_index = status["applied_index"]
    send(cluster, "filler", [[os.urandom(250_000)] for _ in range(40)])

    def first_index() -> int | None:
        reply = node.request("GET", "/v1/log/events?from_index=1")
        found = reply.json()["first_index"] if reply.status == 410 else 0
        return found if found > last_index else None

    return wait_for(first_index, "the front of the log to be removed")


def test_what_is_removed_is_an_error_unless_it_is_skipped(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """A query that begins where the log begins reads the rest; the job was away for longer than the log is kept."""
    options = ("--retention-check-ms", "50", "--segment-bytes", str(1 << 16))
    with ClusterProcess(tmp_path_factory.mktemp("short"), nodes=1, options=options) as cluster:
        gone = send(cluster, "orders", [[b"x"] * 5])
        job = JobOptions(servers(cluster), tmp_path / "tables", until_end=True)
        ended(lambda: start(spark, job))
        first_index = remove_what_is_there(cluster)
        kept = send(cluster, "kept", [[b"y"] * 5])
        earliest = rows_of(spark, cluster, view="events", startingOffsets="earliest")
        assert min(row.raft_index for row in earliest) >= first_index
        with LogReader(
            tuple(servers(cluster).split(",")), timeout_ms=int(1000 * PATIENCE_S), fetch_max_bytes=1 << 20
        ) as log:
            planned = 1, log.end_index(1)  # when the log still began there
            assert list(log.pages(*planned, from_earliest=True))
            with pytest.raises(DataLoss):
                list(log.pages(*planned))
        assert sorted(row.message_id for row in earliest if row.topic == "kept") == sorted(kept)
        with pytest.raises(StreamingQueryException, match=r"failOnDataLoss=false .keelmq-lineage run --skip-removed"):
            ended(lambda: start(spark, job))
        skipping = replace(job, skip_removed=True)
        ended(lambda: start(spark, skipping))
        events = pyarrow.concat_tables(pyarrow.parquet.read_table(path) for path in Tables(job.tables).events.files())
        assert set(gone) | set(kept) <= set(events["message_id"].to_pylist())
