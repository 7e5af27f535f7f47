"""OpenLineage reports of the topics that groups read and write: run events with statistics per window, not per message.

The namespace is `keelmq://<cluster>`; a topic is a dataset, a producer or consumer group is a job. A window of a job is
a run. Its id derives from the job and the first Raft index, so a window that is reported again after a restart is the
same run.
"""

import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc

from keelmq_spark.tables.schema import GROUP_TOPICS
from keelmq_spark.views import events

PRODUCER: Final = "https://github.com/keelmq/keelmq/tree/main/spark"
WINDOW_S: Final = 60
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

    def add(self, batch: Any) -> None:
        """Count a batch of events."""
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
        passed = passed.append_column("messages", pc.subtract(passed["offset_end"], passed["offset"]))
        _count(self.inputs, passed, [("messages", "sum")])

    @property
    def duration_s(self) -> float:
        """Duration of the window in seconds, by the time of the events."""
        return (self.end - self.begin).total_seconds() if self.begin is not None and self.end is not None else 0.0

    @property
    def jobs(self) -> list[str]:
        return sorted({*self.inputs, *self.outputs})


def _count(into: dict[str, dict[str, Totals]], rows: Any, sums: list[tuple[str, str]]) -> None:
    for row in rows.group_by(["group", "topic"]).aggregate(sums).to_pylist():
        if row["group"] is None or row["topic"].startswith(GROUP_TOPICS):
            continue
        totals = into.setdefault(row["group"], {}).setdefault(row["topic"], Totals())
        totals.messages += row.get("message_id_count") or row.get("messages_sum") or 0
        totals.bytes += row.get("bytes_sum") or 0


def run_events(window: Window, cluster: str, window_s: int) -> list[Any]:
    """Return a START and a COMPLETE event per job of the window."""
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
            for topic, totals in sorted(window.inputs.get(name, {}).items())
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
            for topic, totals in sorted(window.outputs.get(name, {}).items())
        ]
        told += [
            RunEvent(
                eventType=state, eventTime=at.astimezone(UTC).isoformat(), run=run, job=job, producer=PRODUCER,
                inputs=inputs, outputs=outputs,
            )
            for state, at in ((RunState.START, window.begin), (RunState.COMPLETE, window.end))
        ]  # fmt: skip
    return told


class Reporter:
    """Reports a window when it is over by the time of the events, and the rest on `close`.

    A failing backend delays only the report: the window continues, and is reported after another `window_s`. Statistics
    that were not reported when the process ended are counted again only if their batch is processed again.
    """

    def __init__(self, client: Any, cluster: str, window_s: int = WINDOW_S) -> None:
        self._client = client
        self._cluster = cluster
        self._window_s = window_s
        self._window = Window()
        self._due_s = float(window_s)

    def add(self, batch: Any) -> None:
        """Count a batch that is in the tables."""
        self._window.add(batch)
        if self._window.duration_s >= self._due_s:
            self._flush()

    def _flush(self) -> None:
        try:
            for event in run_events(self._window, self._cluster, self._window_s):
                self._client.emit(event)
        except Exception as exc:  # any configured transport may raise its own errors
            log.warning("OpenLineage is told later: %s", exc)
            self._due_s = self._window.duration_s + self._window_s
            return
        self._window = Window()
        self._due_s = float(self._window_s)

    def close(self) -> None:
        """Report the counted statistics, and close the client."""
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
