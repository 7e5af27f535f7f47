"""Metrics of a node for Prometheus, in a registry of their own.

What every message passes is counted without a lock (measures.py) and becomes a metric at each scrape, and so do gauges
of the Raft node and of the state.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cluster.measures import Count, Durations
from raft.syncing.kernel_sync import KernelSync
from store.descriptors import SpareDescriptors
from store.log.disk import File, PosixDisk, PosixFile
from store.log.errors import DiskError
from store.log.segment import SEGMENT_SUFFIX

LATENCY_BUCKETS_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATENESS_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0, 3600.0)
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

SAMPLES_PER_STEP: Final = 200
"""Number of samples whose text is generated in one step: about a millisecond."""
HEAD_LINES: Final = 2
"""Lines of a metric's text before its samples: help and type."""

WEBHOOK_OUTCOMES: Final = (
    "commit",
    "rollback",
    "unknown",
    "invalid_answer",
    "error_status",
    "timed_out",
    "unreachable",
    "answer_too_large",
    "not_allowed",
)
"""The first three are the decisions that webhooks answer with."""

GaugeReader = Callable[[], Iterator[Metric | None]]
"""Yields metrics at every scrape. None marks the end of a step: the event loop runs other work then."""


class Metrics:
    """Owns all metrics of one node."""

    def __init__(self) -> None:
        self._gauges: list[GaugeReader] = []
        disable_created_metrics()  # type: ignore[no-untyped-call]  # nobody asks when a counter began
        self.registry = CollectorRegistry()
        self._hot = _HotMetrics()
        self.registry.register(self._hot)
        self.produced_messages = self._hot.count("keelmq_produced_messages", "Messages acknowledged to producers")
        self.produced_bytes = self._hot.count("keelmq_produced_bytes", "Bytes of acknowledged message blocks")
        self.pulled_messages = self._hot.count("keelmq_pulled_messages", "Messages handed to consumers")
        self.pulled_bytes = self._hot.count("keelmq_pulled_bytes", "Bytes of message blocks read for consumers")
        self.prepared = self._hot.count("keelmq_transactions_prepared", "Half transactions stored")
        decided = Counter(
            "keelmq_transactions_decided", "Transactions decided through this node", ["state"], registry=self.registry
        )
        self.decided = {state: decided.labels(state) for state in ("committed", "rolled_back", "discarded")}
        checks = Counter("keelmq_checks", "Checks of half transactions by outcome", ["outcome"], registry=self.registry)
        self.checks = {outcome: checks.labels(outcome) for outcome in ("delivered", "failed")}
        calls = Counter(
            "keelmq_webhook_calls", "Checks POSTed to webhooks by outcome", ["outcome"], registry=self.registry
        )
        self.webhook_calls = {outcome: calls.labels(outcome) for outcome in WEBHOOK_OUTCOMES}
        given_back = Counter(
            "keelmq_messages_given_back",
            "Messages that groups gave back, by outcome",
            ["outcome"],
            registry=self.registry,
        )
        self.given_back = {outcome: given_back.labels(outcome) for outcome in ("scheduled", "dead_lettered")}
        self.popped_messages = self._counter("keelmq_popped_messages", "Messages handed to pop consumers")
        acks = Counter("keelmq_pop_acks", "Acknowledgements of popped messages", ["outcome"], registry=self.registry)
        self.pop_acks = {outcome: acks.labels(outcome) for outcome in ("acked", "handle_expired")}
        self.replayed = self._counter("keelmq_dead_letters_replayed", "Dead letters given to their group once more")
        self.expired_members = self._counter("keelmq_group_members_expired", "Members whose session ended silently")
        self.expired_messages = self._counter(
            "keelmq_messages_expired", "Messages removed through this node because their retention was over"
        )
        self.timers_fired = self._counter("keelmq_timers_fired", "Timers whose messages became visible")
        self.timer_lateness_seconds = Histogram(
            "keelmq_timer_lateness_seconds",
            "How long after its time a delayed batch became visible",
            buckets=LATENESS_BUCKETS_S,
            registry=self.registry,
        )
        self._snapshots_received = self._counter("keelmq_snapshots_received", "Snapshots that this node started with")
        self._snapshot_received_bytes = self._counter("keelmq_snapshot_received_bytes", "Bytes of these snapshots")
        self._snapshot_received_seconds = self._counter(
            "keelmq_snapshot_received_seconds", "How long it took to receive these snapshots"
        )
        self.commit_seconds = self._hot.durations(
            "keelmq_commit_seconds", "From proposing a command to its being applied, durable on a majority"
        )
        self.append_seconds = self._hot.durations(
            "keelmq_append_seconds", "Writing one record into the commit log file"
        )
        self.fsync_seconds = Histogram(
            "keelmq_fsync_seconds", "fdatasync of the commit log", buckets=LATENCY_BUCKETS_S, registry=self.registry
        )

    def count_request(self, method: str, route: str, status: int) -> None:
        key = method, route, status
        requests = self._hot.requests
        requests[key] = requests.get(key, 0) + 1

    def snapshot_received(self, size_bytes: int, took_s: float) -> None:
        self._snapshots_received.inc()
        self._snapshot_received_bytes.inc(size_bytes)
        self._snapshot_received_seconds.inc(took_s)

    def add_gauges(self, reader: GaugeReader) -> None:
        self._gauges.append(reader)

    def text(self) -> bytes:
        """Return counters and histograms in Prometheus' text format."""
        return generate_latest(self.registry)

    async def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        The event loop runs other work after each gauge, and within gauges that have many series.
        """
        parts = [self.text()]
        for reader in self._gauges:
            for gauge in reader():
                if gauge is None:
                    await asyncio.sleep(0)
                    continue
                for part in _texts(gauge):
                    parts.append(part)
                    if len(gauge.samples) > 1:
                        await asyncio.sleep(0)
        return b"".join(parts)

    def _counter(self, name: str, description: str) -> Counter:
        return Counter(name, description, registry=self.registry)


class _HotMetrics(Collector):
    """Makes metrics of the counters of hot paths."""

    def __init__(self) -> None:
        self._counts: list[tuple[str, str, Count]] = []
        self._durations: list[tuple[str, str, Durations]] = []
        self.requests: dict[tuple[str, str, int], int] = {}
        """Number of HTTP requests by method, route and status of the answer."""

    def count(self, name: str, description: str) -> Count:
        self._counts.append((name, description, count := Count()))
        return count

    def durations(self, name: str, description: str) -> Durations:
        self._durations.append((name, description, durations := Durations(LATENCY_BUCKETS_S)))
        return durations

    def collect(self) -> Iterator[Metric]:
        for name, description, count in self._counts:
            yield CounterMetricFamily(name, description, value=count.value)
        for name, description, durations in self._durations:
            histogram = HistogramMetricFamily(name, description)
            durations.add_to(histogram, ())
            yield histogram
        requests = CounterMetricFamily("keelmq_http_requests", "HTTP requests", labels=["method", "route", "status"])
        for (method, route, status), number in self.requests.items():
            requests.add_metric([method, route, str(status)], number)
        yield requests


def _texts(metric: Metric) -> Iterator[bytes]:
    """Yield the text of one metric, in parts of at most SAMPLES_PER_STEP samples. The head is in the first part."""
    samples = metric.samples
    for begin in range(0, max(len(samples), 1), SAMPLES_PER_STEP):
        metric.samples = samples[begin : begin + SAMPLES_PER_STEP]
        text = generate_latest(_Gauge(metric))
        yield text if begin == 0 else text.split(b"\n", HEAD_LINES)[HEAD_LINES]
    metric.samples = samples


class _Gauge(Collector):
    """Collects one gauge, so that its text can be generated alone."""

    def __init__(self, gauge: Metric) -> None:
        self._gauge = gauge

    def collect(self) -> Iterator[Metric]:
        return iter((self._gauge,))


def gauge(name: str, description: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, description, value=value)


class MeasuredDisk(PosixDisk):
    """The real disk. The segments of the commit log measure the time of each write and sync."""

    def __init__(self, metrics: Metrics, spares: SpareDescriptors) -> None:
        super().__init__(spares)
        self._metrics = metrics

    def open(self, path: str, *, create: bool = False) -> PosixFile:
        file = super().open(path, create=create)
        return MeasuredFile.of(file, self._metrics) if path.endswith(SEGMENT_SUFFIX) else file


class MeasuredSync(KernelSync):
    """A KernelSync that measures the syncs of segments, until the loop hears of their end."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics
        self._begun_s = 0.0

    def start(self, file: File) -> None:
        self._begun_s = time.perf_counter()
        super().start(file)

    def finish(self) -> DiskError | None:
        if self.path.endswith(SEGMENT_SUFFIX):  # observed in the next turn: acknowledgements wait for this one
            took_s = time.perf_counter() - self._begun_s
            asyncio.get_running_loop().call_soon(self._metrics.fsync_seconds.observe, took_s)
        return super().finish()


class MeasuredFile(PosixFile):
    """A PosixFile that measures the time of its writes and syncs. Its methods keep the promises of PosixFile."""

    __slots__ = ("_metrics",)
    _metrics: Metrics

    @classmethod
    def of(cls, file: PosixFile, metrics: Metrics) -> "MeasuredFile":
        measured = cls(file.descriptor, file.path, file.borrowed_of)
        measured._metrics = metrics
        return measured

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        begun_s = time.perf_counter()
        super().pwrite(data, position)
        self._metrics.append_seconds.observe(time.perf_counter() - begun_s)

    def fdatasync(self) -> None:
        begun_s = time.perf_counter()
        super().fdatasync()
        self._metrics.fsync_seconds.observe(time.perf_counter() - begun_s)
