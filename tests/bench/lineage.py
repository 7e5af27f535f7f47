"""Run `python -m tests.bench.lineage`: measures how fast Spark takes the events of a log into Parquet files.

A cluster of three nodes is filled with messages, half of them plain, half with keys and the properties that the SDK
sets. Then Spark reads the log, with the process and all its children bound to `--cores`; the brokers have the rest of
the machine. Processor time is measured too: it shows the rate of a machine on which nothing else runs. The last line
is `RESULT {json}`; a missed goal is reported and is no error.
"""

import argparse
import asyncio
import os
import platform
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import keelmq
import keelmq_spark
from deploy.reporting.report import Report
from keelmq_spark.java import use_java
from keelmq_spark.job import JobOptions
from keelmq_spark.job import start as start_job
from keelmq_spark.queries.graph import Graph
from tests.bench import load
from tests.bench.cluster import BenchCluster
from tests.bench.figures import Figure, Figures
from tests.bench.tuple_source import TupleDataSource

ROOT: Final = Path(__file__).parents[2]
TOPIC: Final = "bench-lineage"
QUEUES: Final = 8
BATCH_MESSAGES: Final = 100
BODY_BYTES: Final = 100
SENDERS: Final = 16
WARM_UP_PARTS: Final = 5
"""The warm-up reads one of this number of parts of the log."""
RATE_GOAL: Final = 150_000.0
LAG_GOAL_S: Final = 3.0
LAG_RATE: Final = 5_000
LAG_BATCH: Final = 50
DRIVER_MEMORY: Final = "1g"
TIMEOUT_S: Final = 600
MIB: Final = 1 << 20


def batch(number: int) -> Sequence[keelmq.Message | bytes]:
    if number % 2:
        return [os.urandom(BODY_BYTES) for _ in range(BATCH_MESSAGES)]
    properties = {
        "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        "causation_id": f"{secrets.token_hex(12)}-{number:x}-0",
        "producer_group": "bench",
    }
    return [
        keelmq.Message(body=os.urandom(BODY_BYTES), keys=[f"order-{number}-{n}"], properties=properties)
        for n in range(BATCH_MESSAGES)
    ]


async def fill(urls: Sequence[str], messages: int) -> None:
    connection = keelmq.Connection(urls)
    await keelmq.Admin(connection).put_topic(TOPIC, queues=QUEUES)
    connection.close()
    numbers = iter(range(messages // BATCH_MESSAGES))
    async with keelmq.Producer(urls) as producer, asyncio.TaskGroup() as tasks:

        async def send() -> None:
            for number in numbers:
                await producer.send_batch(TOPIC, batch(number))

        for _ in range(SENDERS):
            tasks.create_task(send())


async def trickle(urls: Sequence[str], seconds: float) -> None:
    """Send LAG_RATE messages a second."""
    loop = asyncio.get_running_loop()
    make_batch = load.batches_of(LAG_BATCH, BODY_BYTES)
    async with keelmq.Producer(urls) as producer, asyncio.TaskGroup() as tasks:
        begin_s = loop.time()
        for number in range(int(seconds * LAG_RATE / LAG_BATCH)):
            await asyncio.sleep(begin_s + number * LAG_BATCH / LAG_RATE - loop.time())
            tasks.create_task(producer.send_batch(TOPIC, make_batch()))


def start_spark(cores: int) -> SparkSession:
    use_java()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    builder: SparkSession.Builder = SparkSession.builder.master(f"local[{cores}]").appName("keelmq-bench")
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "10000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    keelmq_spark.register(spark)
    spark.dataSource.register(TupleDataSource)
    return spark


class Query:
    """Starts queries from the log into Parquet files."""

    def __init__(self, spark: SparkSession, urls: Sequence[str], directory: Path, **options: str) -> None:
        self._spark = spark
        self._directory = directory
        self._options = {"servers": ",".join(urls), "view": "events", **options}

    def start(
        self, name: str, source: str = "keelmq", sink: str = "parquet", every: str | None = None
    ) -> StreamingQuery:
        frame = self._spark.readStream.format(source).options(**self._options).load()
        writer = frame.writeStream.format(sink).option("checkpointLocation", str(self._directory / name / "checkpoint"))
        if sink == "parquet":
            writer = writer.option("path", str(self._directory / name / "rows"))
        return (writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)).start()

    def run(self, name: str, source: str = "keelmq", sink: str = "parquet") -> tuple[int, float]:
        """Run a query; return its rows, and the seconds from its start until everything is written."""
        begun_s = time.perf_counter()
        query = self.start(name, source, sink)
        if not query.awaitTermination(TIMEOUT_S):
            raise TimeoutError(f"{name} took more than {TIMEOUT_S} s")
        return sum(progress.numInputRows for progress in query.recentProgress), time.perf_counter() - begun_s


def throughput(spark: SparkSession, urls: Sequence[str], directory: Path, figures: Figures) -> None:
    everything = Query(spark, urls, directory)
    entries = _end_index(urls)
    part = f'{{"index": {entries - entries // WARM_UP_PARTS}}}'
    for source in ("keelmq", "keelmq-tuples"):
        figures.step(f"warming up: {source}")
        Query(spark, urls, directory, startingOffsets=part).run(f"warm-{source}", source)
    rates: dict[str, float] = {}
    cpu_s: dict[str, float] = {}
    for key, source, sink, what in (
        ("parquet", "keelmq", "parquet", "log to Parquet, one warm query"),
        ("no_sink", "keelmq", "noop", "… without writing"),
        ("tuples", "keelmq-tuples", "parquet", "log to Parquet, a source that yields tuples"),
    ):
        figures.step(f"measuring: {what}")
        before_s = _cpu_s(_jvm_pid(spark))
        rows, seconds = everything.run(key, source, sink)
        rates[key] = rows / seconds
        cpu_s[key] = (_cpu_s(_jvm_pid(spark)) - before_s) / rows * 1_000_000
        goal = RATE_GOAL if key == "parquet" else None
        figures.add(Figure(key, f"{what}: {rows:,} events", rates[key], "events/s", goal, ">="))
        figures.add(Figure(f"{key}_cpu", "… processor time of Spark per million events", cpu_s[key], "s"))
    figures.add(
        Figure("over_tuples", "Arrow over tuples, events/s", rates["parquet"] / rates["tuples"], "x"),
        Figure("tuples_cpu_over", "tuples over Arrow, processor time", cpu_s["tuples"] / cpu_s["parquet"], "x"),
    )


def into_tables(spark: SparkSession, urls: Sequence[str], directory: Path, figures: Figures) -> None:
    """Have the lineage job take the log into its three tables, twice: the second one is warm."""
    for name in ("cold", "warm"):
        figures.step(f"measuring: the lineage job, {name}")
        tables = directory / f"tables-{name}"
        options = JobOptions(servers=",".join(urls), tables=tables, until_end=True)
        before_s, begun_s = _cpu_s(os.getpid()), time.perf_counter()
        query = start_job(spark, options)
        if not query.awaitTermination(TIMEOUT_S):
            raise TimeoutError(f"the lineage job took more than {TIMEOUT_S} s")
        seconds, spent_s = time.perf_counter() - begun_s, _cpu_s(os.getpid()) - before_s
        with Graph(tables) as graph:
            (found,) = graph.rows("SELECT count(*) AS n FROM events")
        what = f"log to three lineage tables, {name}: {found['n']:,} events"
        goal = RATE_GOAL if name == "warm" else None
        figures.add(
            Figure(f"tables_{name}", what, found["n"] / seconds, "events/s", goal, ">="),
            Figure(f"tables_{name}_cpu", "… processor time per million events", spent_s / found["n"] * 1_000_000, "s"),
        )


def _end_index(urls: Sequence[str]) -> int:
    from keelmq_spark.log_reader import LogReader

    with LogReader(urls, timeout_ms=60_000, fetch_max_bytes=MIB) as log:
        return log.end_index(1)


def lag(spark: SparkSession, urls: Sequence[str], directory: Path, seconds: float) -> tuple[float, float]:
    """Return p50 and p99 of the seconds from storing a message to writing the file that has it."""
    query = Query(spark, urls, directory, startingOffsets="latest").start("lag", every="500 milliseconds")
    try:
        _wait_for_batch(query)
        asyncio.run(trickle(urls, seconds))
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(str(directory / "lag" / "rows")).where("type = 'PUBLISH'")
    lags = rows.selectExpr("cast(_metadata.file_modification_time as double) - cast(ts as double) as lag_s").collect()
    sorted_s = sorted(row.lag_s for row in lags)
    return sorted_s[len(sorted_s) // 2], sorted_s[len(sorted_s) * 99 // 100]


def _wait_for_batch(query: StreamingQuery) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while query.lastProgress is None and query.isActive and time.monotonic() < deadline_s:
        time.sleep(0.1)


def _jvm_pid(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway
    return int(gateway.proc.pid)


def _cpu_s(root: int) -> float:
    """Return the processor time of the process and all its descendants so far, including those that have ended."""
    found: dict[int, tuple[int, int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        found[int(stat.parent.name)] = int(fields[1]), sum(map(int, fields[11:15]))
    ticks = 0
    for pid in found:
        ancestor = pid
        while ancestor != root and ancestor in found:
            ancestor = found[ancestor][0]
        ticks += found[pid][1] if ancestor == root else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    """Return the peak of the process's resident memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lineage", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000, help="messages in the log (default 2,000,000)")
    parser.add_argument("--cores", type=int, default=2, help="cores that Spark and its workers may use (default 2)")
    parser.add_argument("--lag-seconds", type=float, default=15.0, help="seconds, 0 skips the lag (default 15)")
    settings = parser.parse_args()
    report = Report()
    figures = Figures(report)
    directory = Path(tempfile.mkdtemp(prefix="keelmq-bench-"))
    cluster = BenchCluster(directory / "nodes")
    try:
        with report.live():
            cluster.start()
            figures.step(f"filling the log with {settings.messages:,} messages of {BODY_BYTES} bytes")
            asyncio.run(fill(cluster.urls, settings.messages))
            figures.step("starting Spark")
            spark = start_spark(settings.cores)
            throughput(spark, cluster.urls, directory, figures)
            into_tables(spark, cluster.urls, directory, figures)
            if settings.lag_seconds:
                figures.step(f"{LAG_RATE:,} messages a second, a batch twice a second")
                p50_s, p99_s = lag(spark, cluster.urls, directory, settings.lag_seconds)
                figures.add(
                    Figure("lag_p50", "stored to written, p50", p50_s, "s"),
                    Figure("lag_p99", "stored to written, p99", p99_s, "s", LAG_GOAL_S),
                )
            what = f"the JVM: driver and executor, heap {DRIVER_MEMORY}, peak"
            figures.add(Figure("memory", what, _peak_mib(_jvm_pid(spark)), "MiB"))
            spark.stop()
    finally:
        cluster.close()
        shutil.rmtree(directory)
    figures.conclude(cores=settings.cores, cpus=os.cpu_count(), python=platform.python_version())
    return 0


if __name__ == "__main__":
    sys.exit(main())
