"""An epoch: one cluster from empty disks on, a number of cycles, and a comparison of everything at the end."""

import random
import re
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from cluster.process.exit_codes import ExitCode
from store.log.base import read_base
from store.log.disk import PosixDisk
from store.log.errors import LogError
from tests.e2e.cluster_process import wait_for
from tests.powerloss import checkers
from tests.powerloss.cluster import PowerCluster
from tests.powerloss.damage import Flip, LiveTail, flip_bit, tear
from tests.powerloss.file_events import FileEvents
from tests.powerloss.ledger import Ledger
from tests.powerloss.log_on_disk import LOG_DIRECTORY, LogOnDisk, LogReader
from tests.powerloss.plan import EVENT_TIMEOUT_S, NODES, CyclePlan, EpochPlan, draw_cycle
from tests.powerloss.queue_reader import QueueReader
from tests.powerloss.tally import Tally
from tests.powerloss.violation import Violation
from tests.powerloss.writer import QUEUES, TOPICS, Writer

RUN_ON_MAX_S: Final = 0.05
FOR_EVER: Final = -1
_REMOVAL: Final = "nothing needs them any more"
_SNAPSHOT: Final = "received as a snapshot"
_RECOVERY_CASE: Final = re.compile(r"commit log opened: case=(\w+) ")


class Broken(Exception):
    """A violation was found; the epoch cannot go on."""


class Epoch:
    """Runs one epoch of `plan` on `cluster`. `evidence`, if given, is the directory that gets copies of the nodes' data
    at a violation.
    """

    def __init__(
        self,
        cluster: PowerCluster,
        plan: EpochPlan,
        seed: int,
        tally: Tally,
        show: Callable[[str], None],
        evidence: Path | None,
    ) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._tally = tally
        self._show = show
        self._evidence = evidence
        self._kept_ms = plan.kept_ms
        self._ledger = Ledger(plan.kept_ms)
        self._reader = QueueReader(self._ledger)
        self._logs = LogReader()
        servers = [node.url for node in cluster.nodes.values()]
        self._writer = Writer(servers, self._ledger, seed, expiring=plan.kept_ms is not None)
        self._bases: dict[int, int] = {}
        self._terms_seen: dict[int, int] = {}
        self._output_read: dict[int, int] = {}
        self._acknowledged_before = 0
        self._counted = 0

    def run(self, cycles: int) -> None:
        """Run the cycles. Raises Broken at the first violation, which is in the tally then."""
        try:
            self._cluster.make_disks()
            for number in range(cycles):
                if self._kept_ms is not None and number:
                    self._wait_removed()
                self._cycle(draw_cycle(self._random, first=number == 0, retention=self._kept_ms is not None))
            self._show("the epoch's last comparison")
            self._settle()
        finally:
            self._writer.abandon()
            self._cluster.discard()

    # --- one cycle -------------------------------------------------------------------------------------------------

    def _cycle(self, plan: CyclePlan) -> None:
        self._show(f"{plan.moment}, {plan.scope}")
        held_up = self._reach(plan)
        tails = self._cut(plan)
        if held_up is not None:
            self._cluster.nodes[held_up].resume()
        time.sleep(plan.down_s)
        logs = self._look_at_disks(plan.victims)
        flip = self._damage(plan, logs, tails)
        if flip is not None:
            self._expect_refusal(plan.victims[0], flip)
            if plan.wipe:
                self._wipe(plan.victims[0])
            else:
                flip.heal()
                self._tally.heals["a copy of what was damaged"] += 1
        self._heal(plan)
        self._compare_queues()
        self._tally.cycles += 1
        self._tally.moments[plan.moment] += 1

    def _reach(self, plan: CyclePlan) -> int | None:
        """Return at the plan's moment. Returns the node that was stopped to bring the moment about, if it keeps its
        power.
        """
        moment, cluster = plan.when, self._cluster
        if moment.trigger == "first_start":
            cluster.processes.start()
            time.sleep(plan.delay_s)
            return None
        if moment.trigger == "recovery":
            self._cut(plan)
            self._look_at_disks(plan.victims)
        watched = plan.victims[0]
        leader = None
        if moment.trigger == "leader_change":
            leader = cluster.processes.wait_leader().node_id
            watched = next(node_id for node_id in NODES if node_id != leader)
        directory = cluster.nodes[watched].data_dir / moment.directory
        with FileEvents(*([directory] if moment.wanted and directory.is_dir() else [])) as events:
            if moment.trigger == "graceful_stop":
                cluster.ask_to_stop(plan.victims)
            elif moment.trigger == "recovery":
                for node_id in plan.victims:
                    cluster.nodes[node_id].start()
            elif leader is not None:
                cluster.nodes[leader].pause()
            if moment.wanted is not None and not events.wait(moment.wanted, EVENT_TIMEOUT_S):
                self._tally.missed[plan.moment] += 1
        time.sleep(plan.delay_s)
        return leader if leader is not None and leader not in plan.victims else None

    def _cut(self, plan: CyclePlan) -> dict[int, LiveTail | None]:
        method = "frozen" if plan.freeze_first else "running"
        self._tally.methods[f"{method}, journal {'flushed' if plan.flush_journal else 'dropped'}"] += 1
        self._tally.losses[plan.scope] += 1
        for node_id in plan.victims:
            self._tally.nodes_without_power[self._cluster.disks[node_id].filesystem] += 1
        return self._cluster.cut_power(
            plan.victims,
            freeze_first=plan.freeze_first,
            flush_journal=plan.flush_journal,
            drain_s=self._random.uniform(0, RUN_ON_MAX_S),
        )

    def _look_at_disks(self, victims: Sequence[int]) -> dict[int, LogOnDisk]:
        """Mount the victims' disks and check their content against every promise."""
        self._cluster.restore_power(victims)
        found: list[Violation] = []
        logs: dict[int, LogOnDisk] = {}
        for node_id in victims:
            try:
                logs[node_id] = self._logs.read(self._cluster.nodes[node_id].data_dir)
            except LogError as error:
                found.append(Violation("damage", f"node {node_id}: {error}"))
        promises, decisions = len(self._ledger.promises), len(self._ledger.decisions)
        found += checkers.promises_name_a_majority(self._ledger.promises[:promises])
        for node_id, log in logs.items():
            found += checkers.promised_is_on_disk(node_id, log, self._ledger, promises)
            found += checkers.disk_is_sound(node_id, log, self._ledger, self._terms_seen)
        if len(logs) == len(NODES):
            found += checkers.majority_holds(logs, self._ledger, promises, decisions)
        self._judge(found)
        return logs

    def _damage(self, plan: CyclePlan, logs: dict[int, LogOnDisk], tails: dict[int, LiveTail | None]) -> Flip | None:
        for node_id, kind in zip(plan.victims, plan.tears, strict=True):
            data_dir = self._cluster.nodes[node_id].data_dir
            if kind is not None and tear(kind, data_dir, logs[node_id], tails.get(node_id), self._random):
                self._tally.tears[kind] += 1
        if not plan.flip:
            return None
        return flip_bit(self._cluster.nodes[plan.victims[0]].data_dir, logs[plan.victims[0]], self._random)

    def _expect_refusal(self, node_id: int, flip: Flip) -> None:
        """Check that the node notices the flip, names it, and changes nothing."""
        node = self._cluster.nodes[node_id]
        if not flip.refused_with:
            damage = self._logs.read(node.data_dir).damage
            self._tally.flips["keelmqd log verify"] += 1
            if not damage:
                self._judge([Violation("refusal", f"node {node_id}: {flip} was not found by verify")])
            return
        before = flip.path.read_bytes()
        said_before = len(node.output())
        node.start()
        code = node.wait_exit()
        said = node.output()[said_before:]
        self._tally.flips["a refused start"] += 1
        if code != ExitCode.LOG_CORRUPT or flip.refused_with not in said:
            self._judge([Violation("refusal", f"node {node_id} ended with {code} after {flip}:\n{said}")])
        if flip.path.read_bytes() != before:
            self._judge([Violation("refusal", f"node {node_id} changed {flip.path} when it refused to start")])

    def _wipe(self, node_id: int) -> None:
        """Wipe the node as its error message advises. Until it is level again, its acknowledged entries are not on its
        disk.
        """
        data_dir = self._cluster.nodes[node_id].data_dir
        for path in data_dir.iterdir():
            if path.name != "lost+found":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._terms_seen.pop(node_id, None)
        self._cluster.nodes[node_id].start()
        self._wait_level(node_id)
        self._tally.heals["wiping the node"] += 1

    def _heal(self, plan: CyclePlan) -> None:
        """Start all nodes, and wait until they are ready and the cluster takes writes again."""
        begun_s = time.monotonic()
        acknowledged = self._ledger.acknowledged
        processes = self._cluster.processes
        processes.start()
        try:
            processes.wait_ready()
        except (RuntimeError, TimeoutError) as error:
            self._judge([Violation("refusal", str(error))])
        if not self._writer.started:
            self._put_topics(FOR_EVER if self._kept_ms is None else self._kept_ms)
            self._writer.start()
        self._wait(lambda: self._ledger.acknowledged > acknowledged, "a write to be acknowledged")
        self._tally.note_heal(time.monotonic() - begun_s, f"{plan.scope}: {plan.moment}")
        for node in processes.alive():
            status = node.status()
            if status is not None:
                self._terms_seen[node.node_id] = status["term"]
        self._note_recoveries()

    def _compare_queues(self) -> None:
        """Check that every acknowledged message is where its acknowledgement said."""
        promised = list(self._ledger.places)
        waiting = promised[self._acknowledged_before :]
        found: list[Violation] = []

        def all_read() -> bool:
            leader = self._cluster.processes.leader()
            if leader is None:
                return False
            try:
                found.extend(self._reader.read(leader))
            except OSError:
                return False
            return bool(found) or all(self._reader.accounts_for(*each) for each in waiting)

        try:
            wait_for(all_read, "what was acknowledged to be visible")
        except TimeoutError as error:
            found.append(Violation("lost", str(error)))
        self._judge([*found, *checkers.visible_where_promised(self._reader, waiting), *self._complaints()])
        self._acknowledged_before = len(promised)
        self._tally.acknowledged += self._ledger.acknowledged - self._counted
        self._counted = self._ledger.acknowledged

    # --- the end of the epoch --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """End the writer, wait for every decision, cut all power, and read every node from the start."""
        if self._kept_ms is not None:
            self._keep_the_rest()
        self._writer.pause()
        self._wait(self._all_decided, "every transaction to be decided")
        self._writer.stop()
        self._compare_queues()
        self._tally.losses["all"] += 1
        self._cluster.cut_power(NODES, freeze_first=True, flush_journal=False, drain_s=0)
        self._look_at_disks(NODES)
        self._cluster.processes.start()
        self._cluster.processes.wait_ready()
        self._cluster.processes.wait_same_state()
        found = checkers.all_settled(self._reader, self._ledger)
        for node in self._cluster.nodes.values():
            again = QueueReader(self._ledger)
            found += again.read(node)
            if (again.seen, again.starts) != (self._reader.kept(), self._reader.starts):
                found.append(Violation("replicas", f"node {node.node_id} shows other messages than were read before"))
            self._tally.messages_read += len(again.seen)
        self._note_recoveries()
        self._tally.transactions += len(self._ledger.halves)
        self._judge([*found, *self._complaints()])

    def _all_decided(self) -> bool:
        leader = self._cluster.processes.wait_leader()
        reply = leader.request("GET", "/v1/transactions?state=prepared")
        return reply.status == 200 and not reply.json()["transactions"]

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _put_topics(self, retention_ms: int) -> None:
        settings = {"queues": QUEUES, "retention_ms": retention_ms}

        def done() -> bool:
            leader = self._cluster.processes.wait_leader()
            replies = [leader.request("PUT", f"/v1/topics/{topic}", payload=settings) for topic in TOPICS]
            return all(reply.status in (200, 201) for reply in replies)

        self._wait(done, "the topics")

    def _keep_the_rest(self) -> None:
        """Switch expiry off for the rest of the epoch, so that there is something to compare."""
        self._put_topics(FOR_EVER)
        self._ledger.keep_all()
        acknowledged = self._ledger.acknowledged
        self._wait(lambda: self._ledger.acknowledged > acknowledged, "a write that is kept")

    def _wait_removed(self) -> None:
        """Wait until every node has removed segments since the last call."""
        disk, nodes = PosixDisk(), self._cluster.nodes
        begun = dict(self._bases)

        def removed() -> bool:
            for node_id, node in nodes.items():
                self._bases[node_id] = read_base(disk, str(node.data_dir / LOG_DIRECTORY)).base.index
            return all(base > begun.get(node_id, 0) for node_id, base in self._bases.items())

        self._wait(removed, "segments to be removed on every node")

    def _wait_level(self, node_id: int) -> None:
        """Wait until the node has every entry that is committed by now."""
        wanted: int | None = None

        def level() -> bool:
            nonlocal wanted
            leader = self._cluster.processes.leader()
            status = None if leader is None else leader.status()
            if status is None:
                return False
            wanted = status["commit_index"] if wanted is None else wanted
            matched = {node["node_id"]: node["match_index"] for node in status["nodes"]}
            return bool(matched[node_id] >= wanted)

        self._wait(level, f"node {node_id} to be level with the leader")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_for(condition, what)
        except (TimeoutError, RuntimeError) as error:
            self._judge([Violation("answer", f"{error}\n{self._cluster.processes.tails()}")])

    def _complaints(self) -> list[Violation]:
        return [Violation("answer", complaint) for complaint in self._ledger.complaints]

    def _note_recoveries(self) -> None:
        for node in self._cluster.nodes.values():
            output = node.output()
            new = output[self._output_read.get(node.node_id, 0) :]
            self._tally.recoveries.update(_RECOVERY_CASE.findall(new))
            self._tally.removals += new.count(_REMOVAL)
            self._tally.snapshots += new.count(_SNAPSHOT)
            self._output_read[node.node_id] = len(output)

    def _judge(self, found: Sequence[Violation]) -> None:
        if not found:
            return
        self._tally.violations += found
        if self._evidence is not None:
            self._cluster.processes.stop()
            for node in self._cluster.nodes.values():
                shutil.copytree(node.data_dir, self._evidence / node.data_dir.name, dirs_exist_ok=True)
                shutil.copy(node.log_path, self._evidence)
        raise Broken
