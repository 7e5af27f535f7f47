"""Run one epoch: start a fresh cluster and load, inject faults by the seed, heal everything, and judge."""

import asyncio
import random
import secrets
import shutil
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.chaos.broken import DEFECTS
from tests.chaos.cluster import ChaosCluster, ClusterSettings, NodeEnded
from tests.chaos.display import Display
from tests.chaos.history import History
from tests.chaos.isolation import Machine
from tests.chaos.ledger import Book
from tests.chaos.nemeses.fault import FaultKind
from tests.chaos.network import Network
from tests.chaos.observer import Observer
from tests.chaos.reads import QueueReads
from tests.chaos.report import Figures
from tests.chaos.schedule import Scheduler
from tests.chaos.verdict import Verdict
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.consume import Group, Readers
from tests.chaos.workloads.delayed import Delayed
from tests.chaos.workloads.expiring import RETENTION_CHECK_MS, Expiring
from tests.chaos.workloads.operators import Operators
from tests.chaos.workloads.pops import Pops
from tests.chaos.workloads.produce import Batches, Idempotent, Keyed, Singles
from tests.chaos.workloads.raw_http import RawHttp
from tests.chaos.workloads.recorded import RECORDED_GROUP, RecordedGroup
from tests.chaos.workloads.returns import Returns
from tests.chaos.workloads.transactions import Transactions
from tests.chaos.workloads.worker import EXPIRING_TOPIC, TOPICS, Field, Workload, create_topics
from tests.patience import PATIENCE_S

SEGMENT_BYTES: Final = (1 << 16, 1 << 18, 1 << 20)
MIN_FREE_BYTES: Final = (0, 2 << 20)
CHECK_IMMUNITY_MS: Final = 1_000
CHECK_INTERVAL_MS: Final = 1_000
BATCH_MESSAGES: Final = 100
BATCH_WORKERS: Final = 2
LARGE_BATCH_MESSAGES: Final = 9_000
"""Messages of a large batch, of some 110 bytes each: an entry of 1 MB, which takes a slow link a second or more."""
LARGE_BATCH_INTERVAL_S: Final = 5.0
BATCHES_SHARE: Final = 0.8
"""Share of the wanted rate that batches carry; the workers that send one by one have fixed paces."""
MEMBERS: Final = 3
RETURNS_MEMBERS: Final = 2
RECORDED_MEMBERS: Final = 3
POPPERS: Final = 3
OFFSETS_INTERVAL_S: Final = 1.0
GUILT_POLL_S: Final = 0.1
WORKERS_END_TIMEOUT_S: Final = PATIENCE_S
EVIDENCE_BYTES_MAX: Final = 1 << 30


class Plan(msgspec.Struct, frozen=True):
    """The settings of an epoch."""

    seed: int
    minutes: float
    nodes: int
    rate: int
    """Messages per second that the workers aim at."""
    broken: str | None = None
    """Defect that nodes or clients are given (tests/chaos/broken.py), or None; with one, the epoch ends at the first
    violation.
    """


class Epoch:
    """Runs one epoch. `await epoch.execute()` returns the figures; violations and evidence stay in the object and the
    directory.

    `network` belongs to the whole run and is None without namespaces; every fault in it is healed on return.
    """

    def __init__(
        self,
        plan: Plan,
        kinds: Sequence[FaultKind],
        machine: Machine,
        network: Network | None,
        directory: Path,
        display: Display,
    ) -> None:
        self.violations = Violations()
        self.plan = plan
        self._kinds = kinds
        self._machine = machine
        self._network = network
        self._directory = directory
        self._display = display
        self._rng = random.Random(f"settings {plan.seed}")
        self._history = History(directory)
        self._book = Book([*TOPICS, EXPIRING_TOPIC])

    async def execute(self) -> Figures:
        cluster = ChaosCluster(
            self._settings(),
            self._directory,
            self._machine,
            self._network,
            self.violations,
            self._history,
            self._display.event,
        )
        async with cluster:
            try:
                return await self._with_cluster(cluster)
            finally:
                self._history.close()
                if self.violations:
                    self._keep_evidence(cluster)

    async def _with_cluster(self, cluster: ChaosCluster) -> Figures:
        observer = Observer(cluster)
        reads = QueueReads(self._book, self.violations)
        run_id = f"c{self.plan.seed}-{secrets.token_hex(4)}"
        field = Field(cluster.urls, run_id, self._book, reads, self._history, self.violations, self.plan.seed)
        scheduler = Scheduler(cluster, self._book, self._kinds, self.plan.seed, self._display.event)
        group, returns = Group(field, MEMBERS), Returns(field, RETURNS_MEMBERS)
        pops = Pops(field, POPPERS)
        recorded = RecordedGroup(field, RECORDED_MEMBERS, self._directory, self._broken_clients())
        expiring = Expiring(field, cluster.nodes, cluster.clocks)
        transactional = [Transactions(field, 0.1), Transactions(field, 1.0, abandoned=True)]
        operators = Operators(field, transactional[1].database, 0.5)
        verdict = Verdict(field, cluster, observer, [each.database for each in transactional])
        self._show(observer, scheduler, group)
        self._display.event("step", f"starting {self.plan.nodes} nodes")
        cluster.start()
        await cluster.wait_ready()
        await create_topics(cluster.urls)
        await returns.prepare()
        await pops.prepare()
        await recorded.prepare()
        await expiring.prepare()
        background = [
            asyncio.create_task(observer.run()),
            asyncio.create_task(self._poll_offsets(verdict, group, cluster)),
        ]
        consuming = asyncio.Event()
        groups = (group, returns, pops, recorded)
        consumers = asyncio.create_task(_together(*(each.run(consuming) for each in groups)))
        begun_s = time.monotonic()
        try:
            await self._trouble(field, scheduler, [*transactional, operators, expiring], consumers)
            ended_s, disk_bytes = time.monotonic(), cluster.disk_bytes()
            if self.plan.broken is not None:
                await verdict.judge_records_so_far(recorded)
            if not self._found_guilty():
                recorded.calm()
                await self._settle(cluster, verdict, group, transactional, operators)
                consuming.set()
                await self._end([consumers], "consumers")
                await expiring.removed()
                last_index = await verdict.come_to_rest()
        finally:
            await _cancel([*background, consumers])
        if not self._found_guilty():
            await verdict.judge_queues(lambda text: self._display.event("step", text))
            await verdict.judge_returns(returns.processed)
            await verdict.judge_audit(operators.steps)
            verdict.judge_pops(pops)
            await verdict.judge_recorded(recorded, lambda text: self._display.event("step", text))
            await expiring.judge()
            await verdict.judge_logs(last_index, lambda text: self._display.event("step", text))
        return Figures.of(
            scheduler,
            self._book,
            observer,
            group.progress,
            verdict.transactions,
            dead_letters=verdict.dead_letters,
            expired=expiring.checker.gone,
            recorded=verdict.offsets,
            load_s=ended_s - begun_s,
            judge_s=time.monotonic() - ended_s,
            disk_bytes=disk_bytes,
        )

    def _found_guilty(self) -> bool:
        """Return whether the defect that was put in is found: nothing more can be learned then."""
        return self.plan.broken is not None and bool(self.violations)

    async def _trouble(
        self, field: Field, scheduler: Scheduler, transactional: Sequence[Workload], consumers: asyncio.Task[None]
    ) -> None:
        """Run load and faults until the time is over, then end the load; all faults are healed on return."""
        stop = asyncio.Event()
        batch_interval_s = BATCH_MESSAGES * BATCH_WORKERS / (self.plan.rate * BATCHES_SHARE)
        workloads: list[Workload] = [
            *(Batches(field, BATCH_MESSAGES, batch_interval_s) for _ in range(BATCH_WORKERS)),
            Batches(field, LARGE_BATCH_MESSAGES, LARGE_BATCH_INTERVAL_S, compress=False),
            Singles(field, 0.1),
            Keyed(field, 0.1),
            Idempotent(field, 0.05),
            RawHttp(field, 0.2),
            Delayed(field, 0.05),
            Readers(field, 0.1),
            *transactional,
        ]
        self._display.event("step", "load and faults")
        working = [asyncio.create_task(each.run(stop)) for each in workloads]
        playing = asyncio.create_task(scheduler.run(self.plan.minutes * 60))
        watching = asyncio.create_task(self._wait_for_guilt())
        try:
            done, _ = await asyncio.wait((playing, watching, consumers, *working), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a worker ends only when it is told to, or by a bug of its own
            stop.set()
            self._display.event("step", "the load ends")
            await self._end(working, "producers")
        finally:
            await _cancel([playing, watching, *working])

    async def _end(self, tasks: Sequence[asyncio.Task[None]], who: str) -> None:
        """Wait for workers that were told to end. A worker that does not end hangs in the SDK, which is a violation."""
        _, late = await asyncio.wait(tasks, timeout=WORKERS_END_TIMEOUT_S)
        if late:
            text = f"{len(late)} of the {who} hang, {WORKERS_END_TIMEOUT_S:.0f} s after they were told to end"
            self.violations.add(Kind.CONTRACT, text)
        for task in set(tasks) - late:
            task.result()

    async def _wait_for_guilt(self) -> None:
        while not self._found_guilty():
            await asyncio.sleep(GUILT_POLL_S)

    async def _settle(
        self,
        cluster: ChaosCluster,
        verdict: Verdict,
        group: Group,
        transactional: list[Transactions],
        operators: Operators,
    ) -> None:
        cluster.start()
        try:
            await cluster.wait_ready()
        except (TimeoutError, NodeEnded) as error:
            self.violations.add(Kind.NO_PROGRESS, str(error))
        await operators.finish()
        self._display.event("step", "the checks finish what dead producers left behind")
        answering = [asyncio.create_task(each.answer_checks()) for each in transactional]
        try:
            await verdict.resolve()
        finally:
            await _cancel(answering)
        self._display.event("step", "what was delayed becomes due, and the groups drain every queue")
        await verdict.timers_fired()
        await verdict.drain(group.progress)
        await verdict.drain_returns()
        await verdict.drain_pops()
        await verdict.drain_returns(RECORDED_GROUP)

    async def _poll_offsets(self, verdict: Verdict, group: Group, cluster: ChaosCluster) -> None:
        rng = random.Random(f"offsets {self.plan.seed}")
        while True:
            await verdict.report_commits(group.progress, rng.choice(cluster.ids()))
            await asyncio.sleep(OFFSETS_INTERVAL_S)

    def _settings(self) -> ClusterSettings:
        """Return the configuration of the nodes: the seed decides settings on which the broker's promises must not
        depend.
        """
        options = {
            "segment-bytes": self._rng.choice(SEGMENT_BYTES),
            "min-free-bytes": self._rng.choice(MIN_FREE_BYTES),
            "check-immunity-ms": CHECK_IMMUNITY_MS,
            "check-interval-ms": CHECK_INTERVAL_MS,
            "retention-check-ms": RETENTION_CHECK_MS,
        }
        flags = tuple(part for name, value in options.items() for part in (f"--{name}", str(value)))
        skewed = any(kind.family == "clock" for kind in self._kinds)
        self._history.write("settings", plan=msgspec.to_builtins(self.plan), options=options)
        in_nodes = self._broken_clients() is None
        return ClusterSettings(self.plan.nodes, skewed, flags, self.plan.broken if in_nodes else None)

    def _broken_clients(self) -> str | None:
        """Return the defect of this run if it is one of clients, else None."""
        broken = self.plan.broken
        return broken if broken is not None and DEFECTS[broken].in_client else None

    def _show(self, observer: Observer, scheduler: Scheduler, group: Group) -> None:
        display, progress = self._display, group.progress
        display.observer, display.scheduler, display.book = observer, scheduler, self._book
        display.violations = self.violations
        display.more = lambda: f"{progress.processed:,} consumed, {progress.redelivered:,} of them again"

    def _keep_evidence(self, cluster: ChaosCluster) -> None:
        """Copy the nodes' data, which may be in memory, to a directory that outlives the run."""
        for node in cluster.nodes.values():
            node.kill()
            size = sum(file.stat().st_size for file in node.data_dir.rglob("*") if file.is_file())
            if node.data_dir.is_dir() and size <= EVIDENCE_BYTES_MAX:
                target = self._directory / "evidence" / node.data_dir.name
                shutil.copytree(node.data_dir, target, dirs_exist_ok=True)


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines; ends when all have ended, or the first has failed."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel background tasks, and raise the error of a task that failed: it is an error of this program."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
