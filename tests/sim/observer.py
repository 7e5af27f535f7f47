"""The observer looks at every node after every step and at every message that leaves, and feeds the checkers."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster.core.long_poll import AppliedWaiters
from raft.health.clock_agreement import READING_INTERVALS
from raft.library import LEADER, ROLE_NAMES
from raft.messages import AppendReply, PreVoteReply, SnapshotBegin, SnapshotReject, TimeoutNow, VoteReply
from raft.proposals import Applied
from store.commands.entry import Result
from store.commands.messages import Produced
from store.errors import Refused
from store.index.index import Index
from store.log.commit_log import CommitLog
from store.log.dump import verify_log
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry
from store.steps import Steps

from .checkers import Violation
from .checkers.corruption import check_corruption, corruption_case
from .checkers.durable_log import DurableLog
from .checkers.equal_replicas import check_equal, watch_appends
from .checkers.fit_leader import FitLeader
from .checkers.history import History
from .checkers.majority_durable import check_on_majority, check_receipt
from .checkers.membership import Members, MembershipModel
from .checkers.state_hash import StateHash
from .checkers.stored_rows import WritesByCommand
from .checkers.true_time import TrueTime
from .log_cuts import Archive
from .log_members import LogMembers
from .pausing_machine import PausingMachine
from .raft_rules import RaftRules
from .raft_safety import Safety
from .world import World

if TYPE_CHECKING:
    from .replica import Replica
    from .settings import Settings

REPLACED_PROBABILITY = 0.7
_FAILURE = re.compile(r"(\w+) \S+: (write-back failed|Input/output error)")
_READS = ("pread", "read_bytes")
MAX_INDEX = 1 << 63
HELD_US_MAX = 20_000
"""A step applies entries for the budget of raft/entries/applier.py, and a little more: milliseconds in these runs."""
FIRST_WORD_US_MAX = 3_000_000
"""Maximum age, at its arrival, of the first report of a node's clock after it connected: no node measures its delay."""
LOG_DIRECTORY = "/data/log"


class ObservedMachine(PausingMachine):
    """The real state machine. The checkers see each applied entry and its effects."""

    def __init__(
        self, observer: "Observer", replica: "Replica", index: Index, waiters: AppliedWaiters, settings: "Settings"
    ) -> None:
        super().__init__(replica, index, waiters, settings)
        self._observer = observer
        self._cost_us = settings.apply_cost_us
        self._writes = WritesByCommand(self, index)

    def _apply_entry(self, entry: Entry) -> Steps[list[Result | Refused]]:
        observer = self._observer
        with observer.finding():
            observer.safety.machine.on_apply(self._replica.node_id, entry.index, entry.term, entry.payload)
        results = yield from super()._apply_entry(entry)
        observer.archive.keep(entry)
        with observer.finding():
            observer.state_hash.on_applied(self._replica.node_id, entry.index, self.state_hash)
            observer.history.on_applied(self, entry, results, self._writes)
        observer.on_results(entry.index, results)
        if self._cost_us:
            self._replica.take(self._cost_us)
        return results


class _Finding:
    """A reusable context; `contextmanager` would make a new one each time."""

    def __init__(self, observer: "Observer") -> None:
        self._observer = observer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Violation) and self._observer.found is None:
            self._observer.found = error


class Observer:
    """The observer of all nodes. It keeps a violation found while a node's own code runs: the node would take the
    exception for a failure of its own.
    """

    def __init__(self, world: World, election_timeout_us: int, founders: Iterable[int], max_clock_skew_ms: int) -> None:
        self._world = world
        counts_for_us = READING_INTERVALS * election_timeout_us + FIRST_WORD_US_MAX
        self.true_time = TrueTime(lambda: world.now_us, max_clock_skew_ms, counts_for_us)
        self.membership = MembershipModel(founders)
        self.safety = Safety()
        self._log_members = LogMembers(self.membership, self.safety.committed)
        self.members_of = self._log_members.of
        self.state_hash = StateHash()
        self.history = History()
        self.archive = Archive()
        self.disks: dict[int, DurableLog] = {}
        self.replicas: dict[int, Replica] = {}
        self._fit_leader = FitLeader()
        self.found: Violation | None = None
        self._rules = RaftRules(world, election_timeout_us, self.safety, self.disks, self.membership)
        self._finding = _Finding(self)
        self.met: Counter[str] = Counter()
        self._operator = world.random_of("operator")
        self._in_service: set[int] = set()  # have recovered, and not gone down since
        self._must_recover: dict[int, int] = {}  # node -> what was synced when it went down, and must be there again
        self._cut_before: dict[int, int] = {}  # node -> from where it is cutting its log
        self._results_seen = 0  # up to that index
        self._led: dict[int, int] = {}  # node -> the last term it was seen to lead
        self._commit_seen: dict[int, int] = {}

    def finding(self) -> "_Finding":
        """Return a context that notes a violation raised inside it before the violation goes on."""
        return self._finding

    # --- what replicas report ----------------------------------------------------------------------------------

    def make_machine(
        self, replica: "Replica", index: Index, waiters: AppliedWaiters, settings: "Settings"
    ) -> ObservedMachine:
        return ObservedMachine(self, replica, index, waiters, settings)

    def is_recovering(self, node_id: int) -> bool:
        """Return whether the node is down, or has not finished its recovery."""
        return node_id not in self._in_service

    def on_start(self, replica: "Replica") -> None:
        """Check a log that a node has recovered: it never promised what it lost, and the rest must fit other nodes'
        logs.
        """
        node_id, log = replica.node_id, replica.log
        self.disks[node_id] = replica.durable
        self._in_service.add(node_id)
        self._commit_seen[node_id] = replica.raft.state.commit_index
        self.met[f"recovery: {log.recovery.case.value}"] += 1
        self._rules.on_start(node_id)
        self._watch(node_id, log, replica)
        self.safety.committed.check_base(node_id, log.base.index, log.base.term)
        if replica.machine.applied_index:
            self.state_hash.on_applied(node_id, replica.machine.applied_index, replica.machine.state_hash)
        replica.disk.on_segment = partial(self.note, "log: rollover")
        if replica.durable.last_index != log.synced_index:
            raise Violation(
                "recovery",
                f"node {node_id} calls {log.synced_index} entries synced after recovery, "
                f"its disk has {replica.durable.last_index}",
            )
        if replica.disk.is_anything_at(log.end_position):
            raise Violation("recovery", f"node {node_id} leaves something behind the end of its log")
        must_recover = self._must_recover.pop(node_id, 0)
        if log.synced_index < must_recover:
            raise Violation(
                "recovery", f"node {node_id} has {log.synced_index} entries after recovery, {must_recover} were synced"
            )

    def on_decided(self, replica: "Replica") -> None:
        """Record that a node will start with a snapshot: from here on that is durable, whatever happens."""
        self.note("snapshot: received")
        self._world.trace("snapshot", replica.node_id, "received")

    def on_no_room(self, replica: "Replica", reason: str) -> None:
        """Record that a full disk does not take the beginning of a new log."""
        self.note("stop: no room to install")
        self._world.trace("stopped", replica.node_id, reason)

    def on_installed(self, replica: "Replica", base_index: int) -> None:
        """Record that a node starts with a snapshot; its log begins anew behind the base."""
        self.note("snapshot: installed")
        self._world.trace("snapshot", replica.node_id, "installed", base_index)
        self._must_recover[replica.node_id] = base_index

    def on_down(self, replica: "Replica") -> None:
        """Record that a node has died, in service or in recovery."""
        node_id = replica.node_id
        if node_id not in self._in_service:
            return  # a recovery promises nothing; and what a cut has removed may still look synced to us
        self._in_service.discard(node_id)
        self._must_recover[node_id] = min(replica.durable.last_index, self._cut_before.pop(node_id, MAX_INDEX) - 1)

    def on_wiped(self, replica: "Replica") -> None:
        self._world.trace("wiped", replica.node_id)
        self._led.pop(replica.node_id, None)
        self._rules.on_wiped(replica.node_id)
        self._must_recover.pop(replica.node_id, None)

    def on_put_back(self, replica: "Replica") -> None:
        """Record that the disk of a node that is down was put back to an earlier state."""
        self._world.trace("put back", replica.node_id)
        self._must_recover.pop(replica.node_id, None)

    def on_forgotten(self, replica: "Replica") -> None:
        """Record that the node knows of its older disk: from here on it is bound as a node with a new disk."""
        self.note("disk: found out that it was put back")
        self._world.trace("forgotten", replica.node_id)
        self._rules.on_wiped(replica.node_id)

    def on_send(self, replica: "Replica", peer: int, message: Any) -> None:
        self._world.trace("send", replica.node_id, peer, type(message).__name__)
        with self.finding():
            self._rules.on_send(replica, peer, message)
        self._note_message(replica, peer, message)

    def _note_message(self, replica: "Replica", peer: int, message: Any) -> None:
        match message:
            case PreVoteReply(granted=False):
                self.note("election: pre-vote refused")
            case VoteReply(granted=True):
                self._world.trace("votes", replica.node_id, peer, message.term)
            case VoteReply(granted=False):
                self.note("election: vote refused")
            case TimeoutNow():
                self.note("election: leadership transfer")
                self._world.trace("hands over", replica.node_id, peer)
            case AppendReply(success=False):
                self.note("log: append refused")
            case SnapshotBegin():
                self.note("snapshot: begun")
            case SnapshotReject():
                self.note("snapshot: refused")

    def on_receive(self, replica: "Replica", source: int, message: Any) -> None:
        self._rules.on_receive(replica, source, message)

    def on_acknowledged(self, replica: "Replica", applied: Applied, what: str) -> None:
        """Check a promise when its answer leaves the node."""
        self._world.trace("acknowledged", replica.node_id, applied.index, applied.term, what)
        with self.finding():
            now = self.members_of(replica)
            members = self.membership.committed_by(applied.index, now)
            check_on_majority(applied.index, applied.term, self.disks, "acknowledged", members)
            voters = len(members.voters) if members == now else 0
            check_receipt(applied.index, applied.term, applied.durable_on, self.disks, voters)

    def on_results(self, index: int, results: Sequence[Result | Refused]) -> None:
        """Feed the results of the first node that has applied the entry."""
        if index <= self._results_seen:
            return
        self._results_seen = index
        for result in results:
            if isinstance(result, Refused):
                self.note(f"refused: {result.code}")
                continue
            self.note(f"applied: {type(result).__name__}")
            if isinstance(result, Produced) and any(placed.duplicate for placed in result.results):
                self.note("applied: duplicate recognised")

    def note(self, key: str) -> None:
        self.met[key] += 1

    def after_step(self, replica: "Replica") -> None:
        if self.found is not None or replica.node_id not in self._commit_seen:
            return
        node_id, handlers = replica.node_id, replica.raft
        leads = handlers.state.role == LEADER
        if leads and self._led.get(node_id) != handlers.state.term:
            self._on_leader(replica, handlers.state.term)
        members = self.members_of(replica)
        self._rules.after_step(replica, members)
        if leads:
            self._fit_leader.on_lead(
                node_id,
                handlers.state.term,
                should_hand_over=self._should_hand_over(replica),
                now_us=self._world.now_us,
            )
        check_equal(replica)
        self._log_members.check_agrees(node_id, handlers.state.configuration, members)
        if handlers.state.commit_index > self._commit_seen[node_id]:
            self._on_commit(replica, handlers.state.commit_index)
        self.safety.committed.check_applied(node_id, replica.machine.applied_index, replica.machine.applied_term)

    def _should_hand_over(self, leader: "Replica") -> bool:
        """Return whether the leader's disk is full and another voter is up, has room and has caught up."""
        raft = leader.raft
        return leader.disk.is_full and any(
            self.replicas[peer].alive and not self.replicas[peer].disk.is_full and raft.replication.is_caught_up(peer)
            for peer in raft.state.other_voters
        )

    def _on_leader(self, replica: "Replica", term: int) -> None:
        node_id, log = replica.node_id, replica.log
        self._led[node_id] = term
        self._world.trace("leader", node_id, term)
        self.safety.election.on_leader(node_id, term)
        self.history.sessions.on_leader(node_id, term, replica.loop.time())
        self.safety.committed.on_leader(node_id, term, lambda index: self._term_at(log, index))
        self._rules.on_leader(replica)

    def on_fatal(self, replica: "Replica", reason: str) -> None:
        """Judge a node that stops itself: after a failed sync or read, or because of a damaged disk, it may; otherwise
        it is a violation.
        """
        node_id, disk = replica.node_id, replica.disk
        self._world.trace("stopped", node_id, reason)
        case = corruption_case(reason)
        if case is not None:
            self._on_corruption(replica, case, reason)
        elif disk.failures_seen and (failure := _FAILURE.search(reason)):
            disk.failures_seen = 0
            self.note("stop: failed read" if failure[1] in _READS else "stop: failed sync")
        elif self.found is None:
            self.found = Violation("node_stopped", f"node {node_id}: {reason}")

    def _on_corruption(self, replica: "Replica", case: str, reason: str) -> None:
        """Act as an operator who replaces the disk, or first tries whether the node comes up again."""
        try:
            check_corruption(replica.node_id, reason, replica.disk.standing_damages)
        except Violation as violation:
            self.found = self.found or violation
            return
        self.note(f"recovery: {case}")
        if self._operator.random() < REPLACED_PROBABILITY:
            replica.wipe()

    def on_strike(self, operation: str, kind: str, moment: str) -> None:
        """Record that a node dies right before that operation on a file of that kind."""
        self.note(f"crash: {operation} {kind}{' in recovery' if moment == 'recovery' else ''}")

    def on_held(self, replica: "Replica", held_us: int) -> None:
        """Record a violation if one step of a node took longer than HELD_US_MAX: messages to it waited, and nobody
        heard of it.
        """
        if held_us > HELD_US_MAX:
            self.found = self.found or Violation(
                "loop_held", f"node {replica.node_id} did nothing but apply entries for {held_us // 1000} ms"
            )

    def find_damage(self, replica: "Replica") -> None:
        """Look for damage as an operator with a suspect disk does: `keelmqd log verify` must find the damage to the
        log.
        """
        damages = [damage for damage in replica.disk.standing_damages if damage.must_be_noticed]
        if not replica.throws_its_log_away and any(damage.path.startswith(LOG_DIRECTORY) for damage in damages):
            findings = verify_log(replica.disk, LOG_DIRECTORY).findings
            if not any(not finding.harmless for finding in findings):
                raise Violation("corruption", f"node {replica.node_id}: verifying the log finds nothing of {damages}")

    def _term_at(self, log: CommitLog, index: int) -> int | None:
        """Return the term of an entry; None behind the end. Entries before the base are committed, and in the state."""
        if index < log.base.index:
            return self.safety.committed.term_of(index)
        return log.term_at(index) if index <= log.last_index else None

    def _on_role_changed(self, replica: "Replica", previous: int, role: int) -> None:
        self._world.trace("role", replica.node_id, ROLE_NAMES[role], replica.raft.state.term)
        self.note(f"role: {ROLE_NAMES[previous]} to {ROLE_NAMES[role]}")
        if previous == LEADER:
            if replica.raft.state.term != self._led.get(replica.node_id):
                self.note("step-down: higher term")
            else:
                self.note(f"step-down: {'slow disk' if replica.raft.unsynced.is_overdue() else 'no quorum'}")

    def _on_commit(self, replica: "Replica", commit_index: int) -> None:
        node_id, handlers = replica.node_id, replica.raft
        self._world.trace("commit", node_id, commit_index)
        first = self._commit_seen[node_id] + 1
        for index in range(first, commit_index + 1):
            self.safety.committed.on_commit(node_id, index, replica.log.term_at(index), handlers.state.term)
        self._commit_seen[node_id] = commit_index
        term = replica.log.term_at(commit_index)
        now = self.members_of(replica)
        if handlers.state.role == LEADER:
            self.membership.on_leader_commit(first, commit_index, now)
        if handlers.state.role == LEADER and len(now.voters) > 1:  # alone, everything that is durable is committed
            self.safety.committed.on_leader_commit(node_id, handlers.state.term, commit_index, term)
            self._rules.on_leader_commit(replica, first, commit_index)
        if replica.durable.term_at(commit_index) != term:
            raise Violation(
                "nothing_unsynced_promised", f"node {node_id} counts {commit_index} committed, not yet on its own disk"
            )
        members = self.membership.committed_by(commit_index, now)
        check_on_majority(commit_index, term, self.disks, f"node {node_id} commits", members)

    def _on_configuration(self, replica: "Replica", before: Members, index: int, term: int, payload: bytes) -> None:
        members = self.membership.on_append(index, term, payload)
        if replica.raft.state.role == LEADER:
            self._world.trace("members", replica.node_id, sorted(members.voters), sorted(members.learners))
            committed = self.safety.committed
            # Its own count may be of this step, at whose end `_on_commit` checks it.
            led = committed.knows_any_of(term) or replica.term_at(replica.raft.state.commit_index) == term
            for node_id in sorted(members.voters - before.voters):
                if not self.disks[node_id].voter and not self.disks[node_id].wipes:
                    raise Violation("membership", f"node {node_id} gets a vote and has never caught up")
            self.membership.check_proposal(replica.node_id, before, members, committed.knows, led)
            self.note("nodes: configuration" if members.override == before.override else "nodes: override")

    def _watch(self, node_id: int, log: CommitLog, replica: "Replica") -> None:
        """Let every append to the log and every cut of it go past the checkers."""
        append, truncate_from, matching = log.append, log.truncate_from, self.safety.matching
        handlers = replica.raft
        change_role = handlers.on_role_changed

        def watched_append(index: int, term: int, kind: int, payload: bytes) -> int:
            previous_term, before = log.last_term, self.members_of(replica)
            position = append(index, term, kind, payload)
            self._world.trace("append", node_id, index, term)
            with self.finding():
                matching.on_append(node_id, index, term, previous_term, payload)
                if kind == KIND_ENTRY and handlers.state.role == LEADER and handlers.state.term == term:
                    self.true_time.on_stamped(node_id, index, payload, replica.true_ms)
                if kind == KIND_CONFIG:
                    self._on_configuration(replica, before, index, term, payload)
            return position

        def watched_truncate(index: int) -> None:
            self._world.trace("truncate", node_id, index)
            self.note("log: truncation")
            if self.members_of(replica).index >= index:
                self.note("nodes: configuration taken back")
            with self.finding():
                self.safety.committed.on_truncate(node_id, replica.raft.state.commit_index, index)
            self._cut_before[node_id] = index
            truncate_from(index)
            del self._cut_before[node_id]
            with self.finding():
                if replica.durable.last_index >= index:
                    raise Violation("cut_not_durable", f"node {node_id} has cut {index}: a power loss brings it back")

        def watched_role(previous: int, role: int) -> None:
            change_role(previous, role)
            self._on_role_changed(replica, previous, role)

        stop_receiving = handlers.snapshots.stop_receiving

        def watched_stop(reason: str) -> None:
            if handlers.snapshots.receiving is not None:
                self.note("snapshot: given up for a later term")
            stop_receiving(reason)

        handlers.snapshots.stop_receiving = watched_stop  # type: ignore[method-assign]
        log.append, log.truncate_from = watched_append, watched_truncate  # type: ignore[method-assign]
        handlers.on_role_changed = watched_role  # type: ignore[method-assign]
        watch_appends(replica, self.finding)
