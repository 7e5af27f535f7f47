"""One seed of the real cluster: broker nodes, a load, faults, then healing and the final account."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import aiohttp.web_app

from raft.peers.lanes import DATA

from .account import check_account
from .checkers import Violation
from .clients import Clients
from .faults import Faults
from .index_files import IndexFiles, MemoryFiles, RocksFiles
from .library import simulated_library
from .logged_errors import logged_errors_are_violations
from .network import Network
from .node_changes import NodeChanges
from .observer import Observer
from .outcome import Outcome
from .plan import NO_EDITS, Edits, Plan, draw_plan
from .replica import Replica
from .threads import simulated_threads
from .variant import SAFE, Variant
from .wire import ClientNetwork
from .workload import Workload
from .world import MICROSECONDS_PER_SECOND, Listener, OutOfSteps, World

HEAL_US = 20 * MICROSECONDS_PER_SECOND
THIN_FACTOR = 3
STEPS_MAX = 300_000
RELEASE_SECONDS = 30
SENT_AGAIN_MAX = 1.2
"""Times what has to be sent: nothing is, but what is read first on another leader's word."""
CLOCK_KINDS = ("wall_clock_jump", "wall_clock_strobe", "clock_jump")


def run_safe(
    seed: int, variant: Variant = SAFE, *, edits: Edits = NO_EDITS, listeners: Sequence[Listener] = ()
) -> Outcome:
    """Run one seed, less what the edits take out of its plan, to its first violation or to its end."""
    world = World(seed, steps_max=STEPS_MAX)
    world.listeners.extend(listeners)
    plan = draw_plan(world, edits)
    outcome = Outcome(seed)
    index_files: IndexFiles = RocksFiles() if plan.rocksdb else MemoryFiles()
    with (
        logged_errors_are_violations(),
        simulated_library(world),
        simulated_threads(),
        plan.windows.installed(),
        index_files.installed(),
        plan.settings.services.installed(),
        plan.purges.installed() if plan.purges is not None else nullcontext(),
        variant.installed(),
    ):
        run = _Run(world, plan, index_files)
        try:
            run.load()
            run.settle()
        except Violation as violation:
            outcome.violation, outcome.detail = violation.invariant, violation.detail
            world.trace("violation", violation.invariant, violation.detail)
        except OutOfSteps as limit:
            outcome.violation, outcome.detail = "progress", str(limit)
        finally:
            run.dispose()
    run.report(outcome)
    return outcome


class _Run:
    def __init__(self, world: World, plan: Plan, index_files: IndexFiles) -> None:
        self._world, self._plan = world, plan
        self.network = Network(world, range(1, plan.settings.node_count + plan.settings.spare_count + 1), plan.links)
        founders = range(1, plan.settings.node_count + 1)
        settings = plan.settings
        self.observer = Observer(world, settings.election_timeout_ms * 1000, founders, settings.max_clock_skew_ms)
        wire = ClientNetwork(world, plan.links)
        wire.finding = self.observer.finding
        self.wire = wire
        self.replicas = {
            node_id: Replica(world, self.network, wire, node_id, plan.settings, self.observer, index_files)
            for node_id in self.network.node_ids
        }
        self.observer.replicas = self.replicas
        self.observer.disks.update((replica.node_id, replica.durable) for replica in self.replicas.values())
        self.faults = Faults(world, self.network, self.replicas, self.observer)
        clients, history = Clients(world, wire, self.network.node_ids), self.observer.history
        history.founding_level.is_new = plan.purges is None or plan.purges.raised_at_us is None
        history.transactions.check_max = plan.settings.services.check_max
        history.transactions.retention_ms = plan.settings.services.transaction_retention_ms
        history.retention.own_ms = plan.settings.services.own_retention_ms
        if plan.settings.services.pace is not None:
            history.releases.replayed_kept_ms = plan.settings.services.pace.replayed_kept_ms
        services = plan.settings.services
        self.workload = Workload(
            world, clients, history, services, plan.pause_us, plan.purges, takes_back=plan.takes_back
        )
        self.workload.batches.clocks_are_true = lambda: not any(self.faults.counts[kind] for kind in CLOCK_KINDS)
        self.workload.actions_max = plan.actions_max
        # Where logs are cut right behind what is applied, a large batch that is sent again cannot be answered from its
        # entry (docs/decisions.md, 40), and a client that is less patient than the link would send it for ever.
        self.workload.batches.large = plan.links.is_thin and plan.settings.cuts is None
        self.node_changes = NodeChanges(world, clients, self.replicas, self.observer)

    def load(self) -> None:
        """Start every node, and after a quiet second let faults and load begin."""
        for replica in self.replicas.values():
            replica.start()
        self.wire.start_troubles()
        self.workload.start()
        if self._plan.settings.spare_count:
            self.node_changes.start()
        self.faults.schedule(self._plan.faults)
        self._run(self._plan.load_us)
        if self._plan.links.is_thin and not self._plan.faults and not self._plan.settings.spare_count:
            self._check_thin_links()

    def _check_thin_links(self) -> None:
        """Check that thin links alone cause no election, since no node was away, and that nothing is sent twice."""
        leaders = self.observer.safety.election.terms
        if leaders != 1:
            raise Violation(
                "leader_stays", f"{leaders} leaders were elected, and no fault happened: entries were large"
            )
        if self.observer.met["snapshot: begun"]:
            return  # the log was cut before the link had carried it, and a snapshot came besides
        lengths = [replica.log.end_position for replica in self.replicas.values()]
        carried, needed = self.network.bytes_by_lane[DATA], max(lengths) * (len(lengths) - 1)
        if carried > SENT_AGAIN_MAX * needed:
            raise Violation("sent_once", f"{carried} bytes were sent, the log has to bring {needed} to its replicas")

    def settle(self) -> None:
        """Heal, see that the cluster moves again, wait until all nodes agree, and hold them to account."""
        self.node_changes.stop()
        self.faults.stop_and_heal()
        # Two voters on links that stand for longer than an election timeout, twice a second, never keep a leader.
        self.network.limit_slowness(self._plan.settings.election_timeout_ms * 1_000 // 2)
        self.workload.end_load()
        # Large entries that wait on a thin link take more than a second each, and all of them come first.
        heal_us = HEAL_US * (THIN_FACTOR if self._plan.links.is_thin else 1)
        if not self._run(heal_us, lambda: self.workload.wrote_for_certain):
            raise Violation("progress", f"no write succeeds within {heal_us // MICROSECONDS_PER_SECOND} s of healing")
        if not self._run(heal_us, self.workload.settled):
            raise Violation("progress", f"after healing {self.workload.unsettled}")
        self.workload.stop()
        self._see_it_released()
        if not self._converge():
            raise Violation("progress", "the nodes do not converge after healing")
        for replica in self._members():
            check_account(replica, self.workload.ledger, self.observer.history)
        self.workload.purgers.check_account()
        self.workload.delayers.check_account()

    def _see_it_released(self) -> None:
        """Wait until the rows that nobody needs are gone, which must happen in a healed cluster: they would hold the
        log for ever.
        """
        range_bytes = self._plan.settings.services.log_range_bytes
        for _ in range(RELEASE_SECONDS):
            leaders = [replica for replica in self.replicas.values() if replica.is_leader]
            unreleased: str | None = "nobody leads"
            if leaders:
                leader = max(leaders, key=lambda replica: replica.raft.state.term)
                history = self.observer.history
                unreleased = history.releases.unreleased(leader.machine, leader.index, range_bytes)
                unreleased = unreleased or history.retention.unremoved(leader.machine, leader.index, leader.true_ms)
            if unreleased is None:
                return
            self._run(MICROSECONDS_PER_SECOND)
        raise Violation("log_floor", f"{RELEASE_SECONDS} s after everything was done {unreleased}")

    def _run(self, duration_us: int, until: Callable[[], bool] | None = None) -> bool:
        return self._world.run(duration_us, until=until)

    def _converge(self) -> bool:
        """Return whether all nodes reach the same state. A learner may be far behind, because nobody waits for its
        copies and small windows are slow. It has time for as long as it makes progress.
        """
        lowest = -1
        while not self._run(HEAL_US, self._converged):
            before, lowest = lowest, min((replica.machine.applied_index for replica in self._members()), default=0)
            if lowest <= before:
                return False
        return True

    def _converged(self) -> bool:
        if not all(replica.alive for replica in self.replicas.values()):
            return False
        replicas = self._members()
        ends = {replica.log.last_index for replica in replicas} | {
            replica.machine.applied_index for replica in replicas
        }
        return len(ends) == 1 and all(replica.machine.next_due_ms() is None for replica in replicas)

    def _members(self) -> list[Replica]:
        """Return the nodes that must have everything in the end: the members of the cluster; none if nobody leads
        it.
        """
        leaders = [replica for replica in self.replicas.values() if replica.is_leader]
        if not leaders:
            return []
        members = self.observer.members_of(max(leaders, key=lambda replica: replica.raft.state.term))
        return [self.replicas[node_id] for node_id in sorted(members.voters | members.learners)]

    def dispose(self) -> None:
        for replica in self.replicas.values():
            replica.dispose()
        aiohttp.web_app._cached_build_middleware.cache_clear()  # it would keep every application for ever

    def report(self, outcome: Outcome) -> None:
        outcome.nodes = len(self.replicas)
        outcome.now_us, outcome.steps, outcome.trace = self._world.now_us, self._world.steps, self._world.trace_hash
        ledger = self.workload.ledger
        outcome.acknowledged, outcome.duplicates = ledger.acknowledged, ledger.duplicates
        outcome.refused, outcome.unknown = ledger.refused, ledger.unknown
        outcome.terms = self.observer.safety.election.terms
        outcome.faults = tuple(sorted(self.faults.fired))
        outcome.met = {
            **self.observer.met,
            **{f"fault: {kind}": count for kind, count in self.faults.counts.items()},
            **{f"client: {kind}": count for kind, count in self.wire.counts.items()},
            **{f"message: {kind}": self.network.counts[kind] for kind in ("lost", "duplicated", "reordered", "slow")},
            f"nodes: {self._plan.settings.node_count}": 1,
            **({} if self._plan.purges is None else {"purges: seed": 1}),
        }
