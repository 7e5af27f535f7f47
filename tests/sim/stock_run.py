"""One seed of the stock cluster: a randomised configuration, a load, links that break, nodes that crash."""

from random import Random
from typing import Any

from .checkers import Violation
from .checkers.acknowledged_kept import check_acknowledged_kept
from .library import simulated_library
from .network import LinkProfile
from .outcome import Outcome
from .stock import StockCluster, StockReplica
from .world import MICROSECONDS_PER_SECOND, OutOfSteps, World, print_event

LOAD_US = 60 * MICROSECONDS_PER_SECOND
HEAL_US = 60 * MICROSECONDS_PER_SECOND
STEPS_MAX = 60_000  # without flow control the library can drown in its own repeated batches


def run_stock(seed: int, *, verbose: bool = False) -> Outcome:
    """Run one seed to its first violation or to its end."""
    world = World(seed, steps_max=STEPS_MAX)
    if verbose:
        world.listeners.append(print_event)
    outcome = Outcome(seed)
    with simulated_library(world):
        run = _StockRun(world, outcome)
        try:
            run.load()
            run.settle()
        except Violation as violation:
            outcome.violation, outcome.detail = violation.invariant, violation.detail
        except OutOfSteps as limit:
            outcome.detail = str(limit)
    outcome.nodes = len(run.cluster.replicas)
    outcome.steps, outcome.trace = world.steps, world.trace_hash
    outcome.acknowledged = len(run.cluster.acknowledged)
    outcome.terms = run.cluster.safety.election.terms
    outcome.met["fault: reset"] = run.cluster.network.counts["reset"]
    return outcome


class _StockRun:
    def __init__(self, world: World, outcome: Outcome) -> None:
        self._world, self._outcome = world, outcome
        self._random = world.random_of("faults")
        self._load_random = world.random_of("load")
        outcome.met.update({"fault: crash": 0, "fault: leader_crash": 0, "fault: isolate": 0})
        conf, profile = _configuration(self._random)
        self.cluster = StockCluster(world, self._random.choice((3, 3, 5)), conf, profile)
        self.cluster.on_acknowledged = self._maybe_kill_after_ack
        self._written = 0
        self._faults_on = True

    def load(self) -> None:
        self.cluster.start()
        self._schedule_write()
        self._schedule_fault()
        self._world.run(LOAD_US)

    def settle(self) -> None:
        """Stop writes and faults, bring every node back, and look for the acknowledged entries."""
        self._faults_on = False
        self.cluster.network.heal()
        for replica in self.cluster.replicas.values():
            if not replica.up:
                replica.start()
        self._world.run(HEAL_US, until=lambda: self.cluster.converged)
        leader = self.cluster.leader
        if leader is None:
            raise Violation("progress", "no leader after everything healed")
        check_acknowledged_kept(self.cluster.acknowledged, [entry[0][1:] for entry in leader.journal.entries])

    def _schedule_write(self) -> None:
        def write() -> None:
            if not self._faults_on:
                return
            leader = self.cluster.leader
            if leader is not None:
                for _ in range(self._load_random.choice((1, 2, 4, 8))):
                    self._written += 1
                    self.cluster.propose(leader, b"m%07d" % self._written)
            self._schedule_write()

        self._world.after(self._load_random.randint(2_000, 60_000), write)

    def _schedule_fault(self) -> None:
        def fault() -> None:
            if self._faults_on:
                self._random.choice((self._reset_link, self._reset_link, self._crash_any, self._isolate))()
                self._schedule_fault()

        self._world.after(self._random.randint(50_000, 1_500_000), fault)

    def _reset_link(self) -> None:
        one, other = self._random.sample(self.cluster.network.node_ids, 2)
        self.cluster.network.reset(one, other)

    def _crash_any(self) -> None:
        self._crash(self.cluster.replicas[self._random.choice(self.cluster.network.node_ids)], "crash")

    def _isolate(self) -> None:
        """Cut all connections of one node for a while."""
        node_id = self._random.choice(self.cluster.network.node_ids)
        peers = [peer for peer in self.cluster.network.node_ids if peer != node_id]
        for peer in peers:
            self.cluster.network.block(node_id, peer)
        self._outcome.met["fault: isolate"] += 1

        def rejoin() -> None:
            for peer in peers:
                self.cluster.network.unblock(node_id, peer)

        self._world.after(self._random.randint(100_000, 3_000_000), rejoin)

    def _maybe_kill_after_ack(self, replica: StockReplica, payload: bytes) -> None:
        """Kill the leader right after it promised something, which is the worst moment to lose it."""
        if self._faults_on and self._random.random() < 0.01:
            self._world.after(self._random.randint(0, 2_000), lambda: self._crash(replica, "leader_crash"))

    def _crash(self, replica: StockReplica, kind: str) -> None:
        up = sum(other.up for other in self.cluster.replicas.values())
        if not self._faults_on or not replica.up or up <= len(self.cluster.replicas) // 2 + 1:
            return
        self._outcome.met[f"fault: {kind}"] += 1
        self._world.trace("crash", replica.node_id)
        replica.crash()

        def restart() -> None:
            if not replica.up:
                self._world.trace("start", replica.node_id)
                replica.start()

        self._world.after(self._random.randint(100_000, 4_000_000), restart)


def _configuration(random: Random) -> tuple[dict[str, Any], LinkProfile]:
    """Draw a configuration with mostly small batches: large ones hide the truncation."""
    conf = {
        "appendEntriesUseBatch": random.random() < 0.3,
        "appendEntriesBatchSizeBytes": random.choice((12, 20, 40, 100)),  # an entry has 9 bytes: never chunked
        "appendEntriesPeriod": random.choice((0.05, 0.1)),
        "raftMinTimeout": 0.4,
        "raftMaxTimeout": random.choice((0.8, 1.4)),
        "logCompactionMinEntries": 10**9,
        "logCompactionMinTime": 10**9,
    }
    profile = LinkProfile(
        delay_us_min=random.choice((100, 500)),
        delay_us_max=random.choice((2_000, 10_000, 30_000)),
        slow_probability=random.choice((0.0, 0.01)),
    )
    return conf, profile
