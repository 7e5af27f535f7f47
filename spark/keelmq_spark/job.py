"""The lineage job: a streaming query over the view `events` that updates the tables.

Spark reads the log in parallel; each micro-batch goes through the fold into the tables. Only the tables say how far the
job is: each start has a checkpoint of its own, because Spark wants one, and begins where the tables end. So there is no
second record of progress that could belong to another log, or be ahead of the tables.
"""

import hashlib
import json
import logging
import os
import shutil
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.java import use_java
from keelmq_spark.log_reader import LogReader
from keelmq_spark.openlineage import Reporter
from keelmq_spark.options import SourceOptions
from keelmq_spark.source import index_of, open_log
from keelmq_spark.tables.commits import Format
from keelmq_spark.tables.storage import Place, storage_of
from keelmq_spark.tables.tables import Tables
from keelmq_spark.views.events import EVENTS_ARROW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

INTERVAL_MS: Final = 1_000
MAX_ENTRIES: Final = 5_000
"""Maximum Raft entries of a micro-batch; all its events are in the driver's memory at a time."""
POLL_S: Final = 0.2
READER_NAME: Final = "keelmq-lineage"
"""Name of the job among the readers of the log."""
PRUNE_EVERY_S: Final = 3_600.0
_LAUNCHED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable set by spark-submit: the settings of the session are then those of the submission."""

log = logging.getLogger("keelmq.lineage")


@dataclass(frozen=True)
class JobOptions:
    servers: str
    tables: Place
    format: Format = "delta"
    checkpoint: Path | None = None
    """Directory on this machine in which each start makes a checkpoint; by default it is beside the tables, or a
    temporary one for tables in an object store."""
    interval_ms: int = INTERVAL_MS
    max_entries: int = MAX_ENTRIES
    cores: str = "2"
    """Number of cores of a local Spark, one per task; `*` for all."""
    until_end: bool = False
    """End when the tables contain everything that the log had at the start."""
    skip_removed: bool = False
    """Skip entries that retention removed before they were read, instead of failing; the tables then lack them."""
    keep_days: float | None = None
    """Remove what is older from the tables, at the start and every PRUNE_EVERY_S seconds; None keeps everything."""


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


class Checkpoint:
    """The checkpoint of one start. Spark writes into it what a batch will read before the batch begins."""

    def __init__(self, parent: Path, tables: str) -> None:
        """Make an empty one in `parent`, and remove those of earlier starts with the same tables, which other jobs that
        use the directory do not have.
        """
        prefix = f"start-{hashlib.sha256(tables.encode()).hexdigest()[:16]}-"
        for earlier in parent.glob(f"{prefix}*"):
            shutil.rmtree(earlier, ignore_errors=True)
        self._path = parent.absolute() / f"{prefix}{uuid.uuid4().hex}"
        self._path.mkdir(parents=True)

    @property
    def uri(self) -> str:
        return self._path.as_uri()

    def end_of(self, batch_id: int) -> int:
        """Return the index before which the batch ends."""
        lines = (self._path / "offsets" / str(batch_id)).read_text().splitlines()
        return index_of(json.loads(lines[-1]))


def start(spark: "SparkSession", options: JobOptions, reporter: Reporter | None = None) -> "StreamingQuery":
    """Start the query where the tables end. The query fails with the errors of the log, the tables or the transport.

    Raises OtherLog when the tables have the lineage of another cluster. The caller holds the tables' lock."""
    import keelmq_spark

    keelmq_spark.register(spark)
    settings = {"servers": options.servers, "view": "events", "failondataloss": str(not options.skip_removed).lower()}
    with open_log(SourceOptions.parse(settings)) as source:
        first_index = source.first_index()
        cluster_uid = source.cluster_uid or _uid_at(source, first_index)
    if reporter is not None:
        reporter.read_from(cluster_uid)
    sink = LineageSink(Tables(options.tables, options.format), cluster_uid)
    begin = sink.next_index or first_index
    starting = {"cluster": cluster_uid, "index": begin} if cluster_uid else {"index": begin}
    storage = sink.tables.storage
    checkpoint = Checkpoint(options.checkpoint or storage.checkpoints(), storage.name)
    reader = (
        spark.readStream.format("keelmq")
        .options(**settings)
        .option("maxOffsetsPerTrigger", str(options.max_entries))
        .option("readerName", READER_NAME)
        .option("startingOffsets", json.dumps(starting))
    )

    prune_at_s = time.monotonic()

    def write(frame: Any, batch_id: int) -> None:
        nonlocal begin, prune_at_s
        began_s = time.monotonic()
        end = checkpoint.end_of(batch_id)
        batch = frame.toArrow().cast(EVENTS_ARROW)  # times come in the session's zone
        count = sink.write(batch, begin, end)
        begin = end
        if options.keep_days is not None and time.monotonic() >= prune_at_s:
            sink.prune(datetime.now(UTC) - timedelta(days=options.keep_days))
            prune_at_s = time.monotonic() + PRUNE_EVERY_S
        if reporter is not None:
            reporter.add(batch, sink.edges)
        if count:
            took_ms = (time.monotonic() - began_s) * 1000
            behind_s = time.time() - pc.max(batch["ts"]).as_py().timestamp()
            report = "batch %d: %d events, before index %d, in the tables %.1f s after the last one, written in %.0f ms"
            log.info(report, batch_id, count, end, behind_s, took_ms)

    writer: Any = reader.load().writeStream.foreachBatch(write).option("checkpointLocation", checkpoint.uri)
    if options.until_end:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{options.interval_ms} milliseconds")
    query: StreamingQuery = writer.start()
    return query


def _uid_at(source: LogReader, index: int) -> str:
    """Return the unique id of the cluster, which a page of its existing log names."""
    source.end_index(index)
    return source.cluster_uid


def run(options: JobOptions, reporter: Reporter | None, stopping: threading.Event) -> None:
    """Run until the query ends, or `stopping` is set; the batch being written is then completed first.

    Raises TablesInUse at once when another job holds the lock of the tables, TablesError when they cannot have this
    format or be reached, the error that ended the query, and the errors of the transport for the last OpenLineage
    report.
    """
    storage = storage_of(options.tables)
    Tables(options.tables, options.format)  # raises before anything is made
    with storage.lock():
        _run(options, reporter, stopping)


def _run(options: JobOptions, reporter: Reporter | None, stopping: threading.Event) -> None:
    spark = session(options.cores)
    try:
        query = start(spark, options, reporter)
        while query.isActive and not stopping.wait(POLL_S):
            if reporter is not None:
                reporter.tick()
        query.stop()
        failure = query.exception()
        if failure is not None:
            raise failure
        if reporter is not None:
            reporter.close()
    finally:
        spark.stop()
