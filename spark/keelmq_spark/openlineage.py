"""OpenLineage reports of the topics that groups read and write: run events with statistics per window, not per message.

The namespace is `keelmq://<cluster>`; a topic is a dataset, a producer or consumer group is a job. A window of a job is
a run. Its id derives from the job and the first Raft index, so a window that is reported again after a restart is the
same run. A run names all topics that its job is known to use, since backends take its last run for all there is.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from keelmq_spark.tables.schema import CONSUMED_BY, CONSUMER_GROUP, GROUP_TOPICS, MESSAGE
from keelmq_spark.views import event_types as events

PRODUCER: Final = "https://github.com/keelmq/keelmq/tree/main/spark"
WINDOW_S: Final = 60
UNNAMED: Final = "default"
_RUNS: Final = uuid.UUID("6a2a5d8e-9a55-4c37-9a5e-0f6f1d2c7b10")

log = logging.getLogger("keelmq.lineage")


class Totals:
    """Counts messages and bytes that a job read from a topic or wrote to it."""

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0


class Window:
    """Statistics of all jobs between two Raft indexes."""

    def __init__(self) -> None:
        self.first_index = 0
        self.begin: datetime | None = None
        self.end: datetime | None = None
        self.inputs: dict[str, dict[str, Totals]] = {}
        self.outputs: dict[str, dict[str, Totals]] = {}

    def add(self, batch: Any, edges: Any) -> None:
        """Count a batch of events, and the edges that it adds to the tables."""
        if not batch.num_rows:
            return
        first, last = (at.as_py() for at in (pc.min(batch["ts"]), pc.max(batch["ts"])))
        if self.begin is None or self.end is None:
            self.begin, self.end = first, last
            self.first_index = pc.min(batch["raft_index"]).as_py()
        self.end = max(self.end, last)
        published = batch.filter(pc.equal(batch["type"], events.PUBLISH))
        _count(self.outputs, published, [("message_id", "count"), ("bytes", "sum")])
        passed = batch.filter(pc.equal(batch["type"], events.ACK))
        _count(self.inputs, passed, [])  # a group that selected nothing has read the topic, too
        _count(self.inputs, _consumptions(edges), [("message", "count")])

    @property
    def duration_s(self) -> float:
        """Duration of the window in seconds, by the time of the events."""
        return (self.end - self.begin).total_seconds() if self.begin is not None and self.end is not None else 0.0

    @property
    def jobs(self) -> list[str]:
        return sorted({*self.inputs, *self.outputs})


def _consumptions(edges: Any) -> Any:
    """Return `group`, `topic` and `message` of each message that a group processed. What an offset passed is more: what
    the group did not select, and what it gave back.
    """
    consumed = edges.filter(pc.equal(edges["kind"], CONSUMED_BY))
    ends = [
        pc.struct_field(pc.extract_regex(consumed[end], f"^{kind}:(?P<name>{name})"), "name")
        for end, kind, name in (("dst", CONSUMER_GROUP, ".*"), ("src", MESSAGE, "[^/]*"))
    ]
    return pa.table([*ends, consumed["src"]], names=["group", "topic", "message"])


def _count(into: dict[str, dict[str, Totals]], rows: Any, sums: list[tuple[str, str]]) -> None:
    for row in rows.group_by(["group", "topic"]).aggregate(sums).to_pylist():
        if row["group"] is None or row["topic"].startswith(GROUP_TOPICS):
            continue
        totals = into.setdefault(row["group"], {}).setdefault(row["topic"], Totals())
        totals.messages += row.get("message_id_count") or row.get("message_count") or 0
        totals.bytes += row.get("bytes_sum") or 0


class Known:
    """Topics that jobs read and wrote so far, by job."""

    def __init__(self) -> None:
        self.inputs: dict[str, set[str]] = {}
        self.outputs: dict[str, set[str]] = {}

    def add(self, window: Window) -> None:
        for known, seen in ((self.inputs, window.inputs), (self.outputs, window.outputs)):
            for name, topics in seen.items():
                known.setdefault(name, set()).update(topics)


def run_events(window: Window, known: Known, cluster: str, window_s: int) -> list[Any]:
    """Return a START and a COMPLETE event per job of the window, with the topics of the window and the known ones."""
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
    from openlineage.client.generated.job_type_job import EmissionPattern, JobTypeJobFacet
    from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

    namespace = f"keelmq://{cluster}"
    assert window.begin is not None
    assert window.end is not None
    told = []
    for name in window.jobs:
        pattern = EmissionPattern("PERIODIC", "COMPLETE_SNAPSHOT", window_s)
        facet = JobTypeJobFacet("STREAMING", "KEELMQ", "GROUP", pattern, producer=PRODUCER)
        job = Job(namespace, name, {"jobType": facet})
        run = Run(str(uuid.uuid5(_RUNS, f"{namespace}/{name}/{window.first_index}")))
        inputs = [
            InputDataset(
                namespace,
                topic,
                inputFacets={
                    "inputStatistics": InputStatisticsInputDatasetFacet(rowCount=totals.messages, producer=PRODUCER)
                },
            )
            for topic, totals in _totals(window.inputs.get(name, {}), known.inputs.get(name, ()))
        ]
        outputs = [
            OutputDataset(
                namespace,
                topic,
                outputFacets={
                    "outputStatistics": OutputStatisticsOutputDatasetFacet(
                        rowCount=totals.messages, size=totals.bytes, producer=PRODUCER
                    )
                },
            )
            for topic, totals in _totals(window.outputs.get(name, {}), known.outputs.get(name, ()))
        ]
        told += [
            RunEvent(
                eventType=state, eventTime=at.astimezone(UTC).isoformat(), run=run, job=job, producer=PRODUCER,
                inputs=inputs, outputs=outputs,
            )
            for state, at in ((RunState.START, window.begin), (RunState.COMPLETE, window.end))
        ]  # fmt: skip
    return told


def _totals(counted: Mapping[str, Totals], known: Iterable[str]) -> Iterable[tuple[str, Totals]]:
    """Return the totals by topic, sorted; those of known topics that were not used are 0."""
    return [(topic, counted.get(topic) or Totals()) for topic in sorted({*counted, *known})]


class Reporter:
    """Reports a window when it is over by the time of the events or by the clock, and the rest on `close`. Any thread
    may call it.

    A failing backend delays only the report: the window continues, and is reported after another `window_s`. Statistics
    that were not reported when the process ended are counted again only if their batch is processed again.
    """

    def __init__(
        self, client: Any, cluster: str = "", window_s: int = WINDOW_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Report to `client`. Without a name of the cluster, `read_from` has to say which one it is."""
        self._client = client
        self._clock = clock
        self._lock = threading.Lock()
        self._known = Known()
        self._begun_s = 0.0
        """When the first event of the window came, by the clock."""
        self._cluster = cluster
        self._window_s = window_s
        self._window = Window()
        self._due_s = float(window_s)

    def read_from(self, cluster_uid: str) -> None:
        """Name the cluster by its unique id, unless it has a name; nodes of 0.2.0 do not tell one."""
        self._cluster = self._cluster or cluster_uid or UNNAMED

    def add(self, batch: Any, edges: Any) -> None:
        """Count a batch that is in the tables with these edges."""
        with self._lock:
            if self._window.begin is None:
                self._begun_s = self._clock()
            self._window.add(batch, edges)
            if self._window.duration_s >= self._due_s:
                self._flush()

    def tick(self) -> None:
        """Report the window if its time is over, although no event came that says so."""
        with self._lock:
            if self._window.begin is not None and self._clock() - self._begun_s >= self._window_s:
                self._flush()

    def _flush(self) -> None:
        self._known.add(self._window)
        try:
            for event in run_events(self._window, self._known, self._cluster, self._window_s):
                self._client.emit(event)
        except Exception as exc:  # any configured transport may raise its own errors
            log.warning("OpenLineage is told later: %s", exc)
            self._due_s = self._window.duration_s + self._window_s
            self._begun_s = self._clock()
            return
        self._window = Window()
        self._due_s = float(self._window_s)

    def close(self) -> None:
        """Report the counted statistics, and close the client."""
        with self._lock:
            if self._window.begin is not None:
                self._flush()
        self._client.close()


def client_of(target: str) -> Any:
    """Return an OpenLineage client for `target`.

    `target` is a URL (HTTP transport), a file (one JSON object per line), or `env` (OpenLineage's own environment
    variables and configuration file). Raises ValueError for anything else."""
    from openlineage.client import OpenLineageClient

    if target == "env":
        return OpenLineageClient()
    if target.startswith(("http://", "https://")):
        config: Mapping[str, Any] = {"transport": {"type": "http", "url": target}}
    elif "://" in target:
        raise ValueError(f"--openlineage {target}: an http(s) URL, a file, or env")
    else:
        Path(target).absolute().parent.mkdir(parents=True, exist_ok=True)
        config = {"transport": {"type": "file", "log_file_path": str(Path(target).absolute()), "append": True}}
    return OpenLineageClient(config=dict(config))
