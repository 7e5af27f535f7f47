"""Writes rows as messages with a real cluster and a real Spark, which is killed meanwhile."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

import keelmq
from keelmq_spark.options_of_sink import SinkOptions
from keelmq_spark.writing import send_rows
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.spark.copying_job import ENTRIES_PER_BATCH
from tests.spark.queries import in_time
from tests.spark.test_source import rows_of, send, servers

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parents[2]
BATCHES: Final = 7 * ENTRIES_PER_BATCH
"""Sent to be copied: more than the query may copy before its last kill, and a batch at least afterwards."""
KILLS_MAX: Final = 5
"""Maximum number of kills until one comes within a batch, which is written again then: nearly always the first."""


def make_topic(cluster: ClusterProcess, topic: str) -> None:
    send(cluster, topic, [])


def stored(cluster: ClusterProcess, topic: str) -> int:
    """Return the number of messages that the topic ever had."""

    async def run() -> int:
        connection = keelmq.Connection(cluster.urls, call_timeout_ms=60_000)
        try:
            found = await keelmq.Admin(connection).topic(topic)
        finally:
            connection.close()
        return sum(queue.max_offset for queue in found.queue_offsets)

    return asyncio.run(run())


def test_a_frame_is_written_with_all_columns_and_once(spark: SparkSession, cluster: ClusterProcess) -> None:
    make_topic(cluster, "written")
    frame = spark.sql(
        """SELECT cast(id AS string) AS value, concat('customer-', id % 7) AS key, array(concat('order-', id)) AS keys,
                  'paid' AS tag, map('n', cast(id AS string)) AS properties, 'order-17' AS causation_id
           FROM range(0, 500, 1, 3)"""
    )
    writer = frame.write.format("keelmq").option("servers", servers(cluster)).option("topic", "written")
    for _ in range(2):
        in_time(writer.option("writeId", "monday").option("producerGroup", "spark").mode("append").save)
    found = rows_of(spark, cluster, subscribe="written")
    assert Counter(row.value.decode() for row in found) == Counter(str(n) for n in range(500))
    row = next(row for row in found if row.value == b"17")
    assert (row.key, row.keys, row.tag) == (b"customer-3", ["order-17"], "paid")
    assert row.properties == {"n": "17", "causation_id": "order-17", "producer_group": "spark"}
    assert len({(row.partition, row.key) for row in found}) == 7, "a key has one queue"
    in_time(writer.option("writeId", "tuesday").mode("append").save)
    assert stored(cluster, "written") == 1_000


def test_batches_are_written_once_also_beside_ones_that_were_written_before(
    spark: SparkSession, cluster: ClusterProcess
) -> None:
    make_topic(cluster, "batches")
    given = {"servers": servers(cluster), "topic": "batches", "onceBy": "batch", "batchMessages": "50"}
    rows = pa.record_batch({"value": [str(n) for n in range(2_000)]})
    for part in (rows.slice(0, 1_000), rows, rows):
        send_rows(SinkOptions.parse(given), "tuesday/0", [part])
    assert stored(cluster, "batches") == 2_000
    writer = spark.range(0, 2_000, 1, 2).selectExpr("cast(id AS string) AS value").write.format("keelmq")
    for _ in range(2):
        in_time(writer.options(**given, writeId="monday").mode("append").save)
    assert stored(cluster, "batches") == 4_000
    found = Counter(row.value.decode() for row in rows_of(spark, cluster, subscribe="batches"))
    assert found == Counter({str(n): 2 for n in range(2_000)})


def test_what_cannot_be_written_is_refused(spark: SparkSession, cluster: ClusterProcess) -> None:
    make_topic(cluster, "refused")
    writer = spark.sql("SELECT 'a' AS body").write.format("keelmq").option("servers", servers(cluster))
    with pytest.raises((AnalysisException, PySparkException), match="column body"):
        in_time(writer.option("topic", "refused").mode("append").save)
    writer = spark.sql("SELECT 'a' AS value").write.format("keelmq").option("servers", servers(cluster))
    with pytest.raises((AnalysisException, PySparkException), match="use the mode append"):
        in_time(writer.option("topic", "refused").mode("overwrite").save)
    with pytest.raises(PySparkException, match="topic_not_found"):
        in_time(writer.option("topic", "never-made").mode("append").save)
    assert stored(cluster, "refused") == 0


class Copying:
    """Runs the job as a process group of its own: Python, and the Java that it starts."""

    def __init__(self, cluster: ClusterProcess, directory: Path) -> None:
        self._command = [sys.executable, "-m", "tests.spark.copying_job", servers(cluster), "originals", "copies"]
        self._checkpoint = directory / "checkpoint"
        self._log = directory / "copying.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, str(self._checkpoint)], cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def check(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text(errors="replace")[-4_000:]

    def kill(self) -> bool:
        """Kill all its processes; return whether a batch had begun and was not noted as done."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        return self.is_in_a_batch()

    def is_in_a_batch(self) -> bool:
        began, done = (
            {path.name for path in (self._checkpoint / name).glob("[0-9]*")} for name in ("offsets", "commits")
        )
        return bool(began - done)


def test_a_query_that_is_killed_while_it_writes_copies_every_message_once(
    spark: SparkSession, cluster: ClusterProcess, tmp_path: Path
) -> None:
    make_topic(cluster, "copies")
    send(cluster, "originals", [[f"{batch}-{n}".encode() for n in range(20)] for batch in range(BATCHES)])
    job = Copying(cluster, tmp_path)
    for _ in range(KILLS_MAX):
        before = stored(cluster, "copies")
        job.start()

        def has_copied(before: int = before) -> bool:
            job.check()
            return stored(cluster, "copies") > before

        wait_for(has_copied, "a message of another batch")
        if job.kill():
            break
    else:
        pytest.fail("no kill came within a batch")
    job.start()
    try:

        def is_done() -> bool:
            job.check()
            return stored(cluster, "copies") >= 20 * BATCHES and not job.is_in_a_batch()

        wait_for(is_done, "all messages")
    finally:
        job.kill()
    found = Counter(row.value for row in rows_of(spark, cluster, subscribe="copies"))
    expected = Counter(row.value for row in rows_of(spark, cluster, subscribe="originals"))
    assert found == expected
