"""The lineage job: a streaming query over the view `events` that updates the tables.

Spark reads the log in parallel and remembers its progress; each micro-batch goes through the fold into the tables. The
tables record the index up to which they are complete, so a batch that Spark repeats changes nothing.
"""

import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from keelmq_spark.events import EVENTS_ARROW
from keelmq_spark.java import use_java
from keelmq_spark.openlineage import Reporter
from keelmq_spark.sink import LineageSink
from keelmq_spark.tables import Format, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INTERVAL_MS: Final = 1_000
MAX_ENTRIES: Final = 5_000
"""Maximum Raft entries of a micro-batch; all its events are in the driver's memory at a time."""
POLL_S: Final = 0.2
_LAUNCHED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable set by spark-submit: the settings of the session are then those of the submission."""

log = logging.getLogger("keelmq.lineage")


@dataclass(frozen=True)
class JobOptions:
    servers: str
    tables: Path
    format: Format = "delta"
    checkpoint: Path | None = None
    """Directory of Spark's own progress; beside the tables by default."""
    interval_ms: int = INTERVAL_MS
    max_entries: int = MAX_ENTRIES
    cores: str = "2"
    """Number of cores of a local Spark, one per task; `*` for all."""
    until_end: bool = False
    """End when the tables contain everything that the log had at the start."""
    skip_removed: bool = False
    """Skip entries that retention removed before they were read, instead of failing; the tables then lack them."""


def session(cores: str = "2", name: str = "keelmq-lineage") -> "SparkSession":
    """Return the session of a submitted application, or a local one that listens on the loopback interface only."""
    if _LAUNCHED not in os.environ:
        use_java()
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName(name)
    if _LAUNCHED not in os.environ:
        settings = {
            "spark.master": f"local[{cores}]",
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.ui.showConsoleProgress": "false",
        }
        for key, value in settings.items():
            builder = builder.config(key, value)
    made: SparkSession = builder.getOrCreate()
    made.sparkContext.setLogLevel("ERROR")
    return made


def start(spark: "SparkSession", options: JobOptions, reporter: Reporter | None = None) -> "StreamingQuery":
    """Start the query where the tables end. The query fails with the errors of the log, the tables or the transport."""
    import keelmq_spark

    keelmq_spark.register(spark)
    sink = LineageSink(Tables(options.tables, options.format))
    reader = (
        spark.readStream.format("keelmq")
        .option("servers", options.servers)
        .option("view", "events")
        .option("maxOffsetsPerTrigger", str(options.max_entries))
        .option("failOnDataLoss", "false" if options.skip_removed else "true")
    )
    if sink.raft_index:  # even without a checkpoint, events that are in the tables are not read again
        reader = reader.option("startingOffsets", f'{{"index": {sink.raft_index + 1}}}')

    def write(frame: Any, batch_id: int) -> None:
        began_s = time.monotonic()
        batch = frame.toArrow().cast(EVENTS_ARROW)  # times come in the session's zone
        count = sink.write(batch)
        if reporter is not None:
            reporter.add(batch)
        if count:
            took_ms = (time.monotonic() - began_s) * 1000
            behind_s = time.time() - pc.max(batch["ts"]).as_py().timestamp()
            report = "batch %d: %d events, up to index %d, in the tables %.1f s after the last one, written in %.0f ms"
            log.info(report, batch_id, count, sink.raft_index, behind_s, took_ms)

    checkpoint = options.checkpoint or options.tables / "_checkpoint"
    writer: Any = reader.load().writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint.absolute()))
    if options.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options.interval_ms} milliseconds")
    query: StreamingQuery = writer.start()
    return query


def run(options: JobOptions, reporter: Reporter | None, stopping: threading.Event) -> None:
    """Run until the query ends, or `stopping` is set; the batch being written is then completed first.

    Raises the error that ended the query, and the errors of the transport for the last OpenLineage report.
    """
    spark = session(options.cores)
    try:
        query = start(spark, options, reporter)
        while query.isActive and not stopping.wait(POLL_S):
            pass
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure
        if reporter is not None:
            reporter.close()
    finally:
        spark.stop()
