"""Run `python -m tests.bench.lineage_tables`: measures how fast events become the three tables, as these grow.

The events are generated: a third of the messages in transactions, with keys, traces and causes, and groups that commit
what they processed. They go through the fold into tables without brokers and without Spark. With `--directory` the
tables stay, and a run goes on where the last one ended, so that a month (`--events 100_000_000`) may be made in parts.
Then a group that is far behind commits, two groups do so in many queues, and stories of messages are told. The last
line is `RESULT {json}`; a missed goal is reported and is no error.
"""

import argparse
import hashlib
import os
import platform
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from deploy.reporting.report import Report
from keelmq_spark.folding.sink import LineageSink
from keelmq_spark.queries import answers
from keelmq_spark.queries.graph import Graph
from keelmq_spark.tables.tables import Tables
from keelmq_spark.views import event_types
from keelmq_spark.views.events import EVENTS_ARROW
from tests.bench.figures import Figure, Figures

START_US: Final = 1_790_000_000_000_000
ENTRY_US: Final = 5_000
"""Time between two entries, in microseconds."""
MESSAGES: Final = 20
"""Messages of an entry, which is what a producer sends at a time, or a transaction."""
QUEUES: Final = 8
GROUPS: Final = ("billing", "shipping")
WIDE_QUEUES: Final = 32
WIDE_BEGINS: Final = (0, 500_000)
"""Offsets from which on the groups that are behind together commit; nothing is published between their messages."""
WIDE_ACKS: Final = 50
"""Commits of each of these groups in each queue."""
COMMITTED: Final = 100
"""Messages that a group passes with a commit."""
RATE_GOAL: Final = 75_000.0
"""Events per second of processor time: 150,000 per second on two cores."""
ACK_MESSAGES: Final = 10
ACKS_GOAL: Final = 1_000.0
LOOK_UP_GOAL_S: Final = 0.5
BYTES_GOAL: Final = 25.0
GROWTH_GOAL: Final = 1.25
MIB: Final = 1 << 20


class Generator:
    """Generates entries of a log from their indexes alone: the same index has the same events in every run.

    A cycle of entries is: messages for one queue, twice; a transaction of as many; and commits of each group once the
    queue has COMMITTED more messages."""

    CYCLE: Final = 4

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def entries(self, begin: int, end: int) -> Any:
        """Return the events of the entries begin <= index < end."""
        self.rows = []
        for index in range(begin, end):
            turn, kind = divmod(index - 1, self.CYCLE)
            queue, lap = turn % QUEUES, turn // QUEUES
            offset = lap * MESSAGES * 3 + kind * MESSAGES if kind < 2 else lap * MESSAGES * 3 + 2 * MESSAGES
            if kind < 2:
                self._publish(index, queue, offset, None)
            elif kind == 2:
                self._half(index)
            else:
                self._commit(index, queue, offset)
        return self.table()

    def table(self) -> Any:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(EVENTS_ARROW)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, EVENTS_ARROW, strict=True)]
        return pa.table(arrays, schema=EVENTS_ARROW)

    def _row(self, index: int, type: str, **fields: Any) -> None:
        number = 0
        if self.rows and self.rows[-1][_RAFT_INDEX] == index:
            number = int(self.rows[-1][0].rpartition(":")[2]) + 1
        known = {
            "event_id": f"0:{index}:{number}", "ts": START_US + index * ENTRY_US, "type": type,
            "raft_term": 1, "raft_index": index,
        }  # fmt: skip
        values = known | fields
        self.rows.append(tuple(values.get(name) for name in EVENTS_ARROW.names))

    def _messages(self, index: int) -> list[dict[str, Any]]:
        """Return what the messages have that are sent with the entry, or in its transaction."""
        made = hashlib.sha256(str(index).encode()).hexdigest()
        cause = hashlib.sha256(str(max(1, index - 400)).encode()).hexdigest()
        return [
            {
                "message_id": f"{made[:24]}-{number}",
                "topic": "orders",
                "group": "web",
                "trace_id": f"{number // 4:02x}{made[26:56]}",
                "key": f"order-{index * MESSAGES + number}",
                "causation_id": f"orders/{cause[:24]}-{number}" if number % 4 else None,
                "bytes": 100 + number,
            }
            for number in range(MESSAGES)
        ]

    def _publish(self, index: int, queue: int, offset: int, transaction_id: str | None, of: int | None = None) -> None:
        for number, message in enumerate(self._messages(of or index)):
            place = {"queue": queue, "offset": offset + number, "transaction_id": transaction_id}
            self._row(index, event_types.PUBLISH, **message, **place)

    def _half(self, index: int) -> None:
        for message in self._messages(index):
            self._row(index, event_types.HALF, **message, transaction_id=f"t-{index}", queue=0)

    def _commit(self, index: int, queue: int, offset: int) -> None:
        """Commit the transaction of the entry before, and the offsets of the groups."""
        transaction_id = f"t-{index - 1}"
        self._row(index, event_types.COMMIT, transaction_id=transaction_id, group="web")
        self._publish(index, queue, offset, transaction_id, index - 1)
        end = offset + MESSAGES
        passed, before = end // COMMITTED * COMMITTED, (end - 3 * MESSAGES) // COMMITTED * COMMITTED
        if passed > max(0, before):
            place = {"topic": "orders", "queue": queue, "offset": max(0, before), "offset_end": passed}
            for group in GROUPS:
                self._row(index, event_types.ACK, group=group, **place)


_RAFT_INDEX: Final = EVENTS_ARROW.names.index("raft_index")
EVENTS_OF_CYCLE: Final = 2 * MESSAGES + MESSAGES + 1 + MESSAGES
"""Events of a cycle of entries, without commits of groups."""


class Batch:
    """Events of a micro-batch, and the time that it took to write them."""

    def __init__(self, events: int, cpu_s: float, wall_s: float) -> None:
        self.events, self.cpu_s, self.wall_s = events, cpu_s, wall_s


def rss_mib() -> float:
    """Return the memory of this process now."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def written(sink: LineageSink, batch: Any, begin: int, end: int) -> Batch:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    events = sink.write(batch, begin, end)
    return Batch(events, time.process_time() - cpu_s, time.perf_counter() - wall_s)


def grow(directory: Path, events: int, batch_events: int, report: Report, figures: Figures) -> None:
    """Fold generated events into the tables until this run has added `events`."""
    sink = LineageSink(Tables(directory))
    index = max(sink.next_index, 1)
    step = max(1, batch_events // EVENTS_OF_CYCLE) * Generator.CYCLE
    generator = Generator()
    made: list[Batch] = []
    memory: list[float] = []
    done = 0
    figures.step(f"{events:,} events from entry {index:,} on, {batch_events:,} to a batch")

    def state() -> str:
        last = made[-max(1, len(made) // 10) :]
        return f"{done:,} events; {_rate(last):,.0f} events per second of processor time; {rss_mib():.0f} MiB"

    with report.live(state, share=lambda: done / events):
        while done < events:
            made.append(written(sink, generator.entries(index, index + step), index, index + step))
            memory.append(rss_mib())
            index += step
            done += made[-1].events
    tables = Tables(directory)
    figures.step("compacting")
    with report.live():
        tables.recover()
        cpu_s = time.process_time()
        tables.compact()
        compacting_s = time.process_time() - cpu_s
    size = sum(os.path.getsize(file) for table in tables.all.values() for file in table.files())
    with Graph(directory) as graph:
        (found,) = graph.rows("SELECT count(*) AS n FROM events")
    tenth = max(1, len(made) // 10)
    early, late = made[tenth : 2 * tenth] or made, made[-tenth:]
    figures.add(
        Figure(
            "rate", f"{done:,} events into three tables, of processor time", _rate(made), "events/s", RATE_GOAL, ">="
        ),
        Figure("wall_rate", "… of wall time", done / sum(batch.wall_s for batch in made), "events/s"),
        Figure(
            "batch_growth",
            "processor time of a batch, end over begin",
            _batch_s(late) / _batch_s(early),
            "x",
            GROWTH_GOAL,
        ),
        Figure("memory_growth", "memory, end over a third", memory[-1] / memory[len(memory) // 3], "x", GROWTH_GOAL),
        Figure("memory", "memory, peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB"),
        Figure("compacting", "the last compaction, processor time", compacting_s, "s"),
        Figure("bytes", f"a compacted event, of {found['n']:,}", size / found["n"], "bytes", BYTES_GOAL),
    )


def _rate(batches: Sequence[Batch]) -> float:
    return sum(batch.events for batch in batches) / max(1e-9, sum(batch.cpu_s for batch in batches))


def _batch_s(batches: Sequence[Batch]) -> float:
    """Return the processor time of a typical batch; those that compact are not."""
    return statistics.median(batch.cpu_s for batch in batches)


def fall_behind(directory: Path, acks: int, figures: Figures) -> None:
    """Have a group that has read nothing commit the first messages, in a job that has just begun."""
    sink = LineageSink(Tables(directory))
    with Graph(directory) as graph:
        (found,) = graph.rows(
            "SELECT count(*) AS n FROM events WHERE type = 'PUBLISH' AND topic = 'orders' AND queue = 0"
        )
    begin, name = sink.next_index, f"late-{sink.next_index}"
    acks = min(acks, found["n"] // ACK_MESSAGES)
    figures.step(f"{acks:,} commits of a group that is {found['n']:,} messages behind in a queue")
    generator, made, done = Generator(), [], 0
    while done < acks:
        count = min(1_000, acks - done)
        generator.rows = []
        for number in range(done, done + count):
            place = {"offset": number * ACK_MESSAGES, "offset_end": (number + 1) * ACK_MESSAGES}
            generator._row(begin + number, event_types.ACK, topic="orders", queue=0, group=name, **place)
        made.append(written(sink, generator.table(), begin + done, begin + done + count))
        done += count
    wall_s = sum(batch.wall_s for batch in made)
    figures.add(
        Figure(
            "acks",
            f"{done:,} commits of a group {found['n']:,} messages behind",
            done / wall_s,
            "commits/s",
            ACKS_GOAL,
            ">=",
        ),
        Figure("acks_cpu", "… of processor time", _rate(made), "commits/s"),
    )


def fall_behind_together(directory: Path, figures: Figures) -> None:
    """Have two groups commit in turn at different places of many queues, in a job that has just begun."""
    topic = _publish_wide(directory)
    sink, generator = LineageSink(Tables(directory)), Generator()
    begin = index = sink.next_index
    for number in range(WIDE_ACKS):
        for queue in range(WIDE_QUEUES):
            for first in WIDE_BEGINS:
                offset = first + number * ACK_MESSAGES
                place = {"topic": topic, "queue": queue, "offset": offset, "offset_end": offset + ACK_MESSAGES}
                generator._row(index, event_types.ACK, group=f"{topic}-{first}", **place)
                index += 1
    figures.step(f"{index - begin:,} commits of two groups in {WIDE_QUEUES} queues")
    made = written(sink, generator.table(), begin, index)
    figures.add(
        Figure(
            "wide_acks",
            f"{made.events:,} commits of {len(WIDE_BEGINS)} groups behind in {WIDE_QUEUES} queues",
            made.events / made.wall_s,
            "commits/s",
        ),
        Figure("wide_acks_cpu", "… of processor time", _rate([made]), "commits/s"),
    )


def _publish_wide(directory: Path) -> str:
    """Publish what the groups commit, in a topic of this run, and return its name."""
    sink, generator = LineageSink(Tables(directory)), Generator()
    begin = index = sink.next_index
    topic = f"wide-{begin}"
    for queue in range(WIDE_QUEUES):
        for first in WIDE_BEGINS:
            for number in range(WIDE_ACKS * ACK_MESSAGES):
                message = {"message_id": f"{topic}-{queue}-{first + number}", "topic": topic, "queue": queue}
                generator._row(index, event_types.PUBLISH, **message, offset=first + number, bytes=100)
            index += 1
    sink.write(generator.table(), begin, index)
    return topic


def look_up(directory: Path, count: int, figures: Figures) -> None:
    """Tell the stories of messages from all over the tables."""
    figures.step(f"stories of {count} messages")
    with Graph(directory) as graph:
        (found,) = graph.rows("SELECT max(raft_index) AS last FROM events WHERE type = 'PUBLISH' AND topic = 'orders'")
        walls, cpus = [], []
        for number in range(count):
            index = 1 + (found["last"] - 1) * number // count // Generator.CYCLE * Generator.CYCLE
            message = Generator()._messages(index)[number % MESSAGES]
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            story = answers.story(graph, f"message:orders/{message['message_id']}")
            walls.append(time.perf_counter() - wall_s)
            cpus.append(time.process_time() - cpu_s)
            if story["node"]["state"] != "published":
                raise ValueError(f"the tables tell another story of {message['message_id']}: {story['node']}")
    figures.add(
        Figure("look_up", "the story of a message, median", statistics.median(walls), "s", LOOK_UP_GOAL_S),
        Figure("look_up_max", "… the longest", max(walls), "s"),
        Figure("look_up_cpu", "… of processor time, median", statistics.median(cpus), "s"),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.lineage_tables", description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000, help="events to add (default 2,000,000; 0 for none)")
    parser.add_argument("--batch-events", type=int, default=20_000, help="events of a micro-batch (default 20,000)")
    parser.add_argument("--acks", type=int, default=16_000, help="commits of a group that is behind (default 16,000)")
    parser.add_argument("--stories", type=int, default=20, help="messages that are looked up (default 20)")
    parser.add_argument("--directory", type=Path, help="keep the tables here, and go on with those that are here")
    settings = parser.parse_args()
    report = Report()
    figures = Figures(report)
    directory = settings.directory or Path(tempfile.mkdtemp(prefix="keelmq-bench-"))
    try:
        if settings.events:
            grow(directory, settings.events, settings.batch_events, report, figures)
        with report.live():
            if settings.stories:
                look_up(directory, settings.stories, figures)
            if settings.acks:
                fall_behind(directory, settings.acks, figures)
                fall_behind_together(directory, figures)
    finally:
        if settings.directory is None:
            shutil.rmtree(directory)
    figures.conclude(cpus=os.cpu_count(), python=platform.python_version())
    return 0


if __name__ == "__main__":
    sys.exit(main())
