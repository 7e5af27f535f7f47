"""The Raft handlers: PySyncObj with its message, replication and apply paths replaced.

Row numbers in comments are those of docs/safe-pysyncobj.md: what the stock library does there, and
why it loses acknowledged entries. No I/O of its own besides the log, no clock besides `library.now`, no randomness
besides the library's, so the simulation drives exactly this code.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from pysyncobj.transport import Transport as LibraryTransport

from raft.chain_check import chain_append
from raft.config import RaftConfig
from raft.election import FIRST_WAIT_SHARE
from raft.errors import MembershipRefused, NoLeader, NotLeader, ProtocolError, SafetyViolation, UnknownOutcome
from raft.follower import FollowerHandlers
from raft.journal import Journal
from raft.lanes import Lanes
from raft.library import FOLLOWER, LEADER, now
from raft.membership import Configuration, Membership, encode_configuration, is_next
from raft.messages import Append, AppendReply, Arrived, Receipt, SnapshotMessage, TimeoutNow, make_append
from raft.progress import Progress
from raft.retention import needed_from
from raft.snapshots import Snapshots
from store.log.errors import LogError, LogFailed
from store.log.record import KIND_CONFIG, KIND_ENTRY, Entry
from store.log.record_chain import Link
from store.snapshots.install import SnapshotStore

log = logging.getLogger(__name__)

APPEND_BYTES = 4 * 1024 * 1024
"""Entries in one append_entries message; a larger entry travels alone, always whole (row 2: never in chunks)."""
APPLY_BYTES = 1024 * 1024
"""Entries read at a time to be applied; a larger entry is read alone."""
APPLY_BUDGET_MS = 4
"""After this long the next entry is left to the next turn of the loop: votes, heartbeats and clients come in between,
however much there is to apply. One entry is applied whole (docs/architecture.md says what one can cost)."""

Apply = Callable[[Sequence[Entry], Callable[[], bool]], list[Any]]
OnOutcome = Callable[[Entry | None, Any], None]


class SafeSyncObj(FollowerHandlers):
    """One node. The owner drives it: `doTick()` on a timer and after events, `on_synced()` after each finished sync.

    `apply(entries, may_go_on)` applies the first entry, and the next ones while `may_go_on()` says so after each; it
    must return one result per entry that it applied, and raise only when the node must stop. Every SafetyViolation,
    LogFailed or exception of `apply` that comes out of a method means that this node must not go on.
    """

    def __init__(
        self,
        config: RaftConfig,
        journal: Journal,
        transport: LibraryTransport,
        apply: Apply,
        applied_index: int,
        membership: Membership,
        snapshot_store: SnapshotStore | None = None,
        on_installed: Callable[[], None] = lambda: None,
    ) -> None:
        """`membership` is that of the journal's log (`membership.recovered`). `on_installed()`: a snapshot was decided
        for. The node has to start again; nothing may leave it any more.
        """
        self.on_membership: Callable[[], None] = lambda: None
        """Called when another configuration is in force, or known to be committed."""
        self._progress: dict[int, Progress] = {}
        self.snapshots = Snapshots(self, snapshot_store, on_installed)
        self._answered: dict[int, bool] = {}  # peers that answered since the last step; True: wants an append anyway
        self._waiting: dict[int, tuple[int, OnOutcome]] = {}  # index -> (term, who wants to know)
        self._leads_from = 0  # index of the no-op of the own leadership
        self._incarnations: dict[int, str] = {}
        self._apply = apply
        self._to_apply: Sequence[Entry] = ()  # committed entries that were read and not applied yet
        # Leader: when, and where its log ended; the later one first.
        self._rounds = (float("-inf"), 0), (float("-inf"), 0)
        super().__init__(config, journal, transport, membership)
        self._lanes: Lanes = transport
        # Pre-votes are refused while a leader is alive, so asking early disturbs nothing; and after a power cut of all
        # nodes nobody has anything to wait for.
        self.election_deadline = now() + FIRST_WAIT_SHARE * (self.election_deadline - now())
        self.last_applied = applied_index  # row 15: the library would start at 1

    @property
    def has_unapplied(self) -> bool:
        """Whether another tick would apply more."""
        return self.last_applied < self.commit_index

    @property
    def leads_and_knows_all(self) -> bool:
        """Leads, did not stand until a moment ago, and has applied everything that was committed before it led."""
        stood = self.has_stood and self.other_voters
        return bool(self.role == LEADER and self.last_applied >= self._leads_from and not stood)

    # --- proposing ---------------------------------------------------------------------------------------------

    def propose(self, payload: bytes, on_outcome: OnOutcome) -> int:
        """Appends an entry and sends it; returns its index. Leader only (row 16): raises NotLeader or NoLeader.

        `on_outcome(entry, result)` is called once: after apply, or with (None, UnknownOutcome) when leadership is
        lost first. The entry is not durable on return; the caller asks for a sync.
        """
        return self._propose(KIND_ENTRY, payload, on_outcome)

    def propose_configuration(self, configuration: Configuration, on_outcome: OnOutcome) -> int:
        """As `propose`, a configuration that differs from the present one by one voter at most. In force at once.

        MembershipRefused `change_in_progress` while the present one is not committed, or nothing of this leadership is:
        else two leaders could each change the same configuration, and count majorities that share nobody.
        """
        if self.role == LEADER and self.membership.index > self.commit_index:
            raise MembershipRefused("change_in_progress", "the last change of the cluster's nodes is not committed yet")
        if self.role == LEADER and self.commit_index < self._leads_from:
            raise MembershipRefused("change_in_progress", "the leader is new and has committed nothing yet")
        if not is_next(self.configuration, configuration):
            raise SafetyViolation(f"more than one voter changes from {self.configuration} to {configuration}")
        if self.config.node_id not in configuration.voters:
            raise MembershipRefused("change_in_progress", "a leader hands over before it is removed")
        index = self._propose(KIND_CONFIG, encode_configuration(configuration), on_outcome)
        self.send_appends(heartbeat=True)  # to who is new
        return index

    def _propose(self, kind: int, payload: bytes, on_outcome: OnOutcome) -> int:
        self.notice_stall()
        if self.role != LEADER:
            raise NoLeader if self.leader_id is None else NotLeader(self.leader_id)
        index = self.log.last_index + 1
        self._append(Entry(payload, index, self.term, kind, -1))
        self._waiting[index] = (self.term, on_outcome)
        self.send_appends(heartbeat=False)
        return index

    def durable_on(self, index: int) -> tuple[int, ...]:
        """Leader: the voters known to have the entry fsynced and whose copies count, this one included."""
        voters = self.configuration.voters
        nodes = [peer for peer, progress in self._progress.items() if progress.counted >= index and peer in voters]
        if self.log.synced_index >= index:
            nodes.append(self.config.node_id)
        return tuple(sorted(nodes))

    def match_index(self, peer: int) -> int:
        """Leader: how far that peer's fsynced log is known to equal ours; 0 on other nodes."""
        progress = self._progress.get(peer)
        return progress.acked if progress and self.role == LEADER else 0

    @property
    def commit_limit(self) -> int:
        """Row 8 and docs/membership.md: as leader, what a majority of the voters in force holds durably."""
        if self.role != LEADER:
            return self.log.last_index
        held = {peer: progress.counted for peer, progress in self._progress.items()}
        limit = self.configuration.held_by_majority({**held, self.config.node_id: self.log.synced_index})
        return limit if limit >= self._leads_from else 0

    def is_caught_up(self, peer: int) -> bool:
        """Leader: whether the peer, which has answered lately, has all that the log held an election timeout ago, and
        its disk has all that it ever acknowledged.
        """
        progress = self._progress.get(peer)
        held_then = max(self._leads_from, self._rounds[1][1])
        return progress is not None and peer in self.answering_voters() and progress.acked >= held_then

    def answering_voters(self) -> set[int]:
        """Leader: this node, and the others that have answered lately and would vote if this one fell silent."""
        timeout_s = 2 * self.config.election_timeout_ms / 1000
        answering = {
            peer
            for peer, progress in self._progress.items()
            if progress.votes and self.connected(peer) and self.answered_within(peer, timeout_s)
        }
        return answering | {self.config.node_id}

    @property
    def has_unannounced_commit(self) -> bool:
        """Leader: whether a follower has not been told of the last commit that concerns what it has."""
        return any(
            progress.announced_commit < min(self.commit_index, progress.acked) and self.connected(peer)
            for peer, progress in self._progress.items()
        )

    def needed_from(self) -> int:
        """The lowest index that has to stay in this log for other nodes, or for these handlers, which go by the entry
        that they know to be committed last, also where an installed state is ahead of it.
        """
        acked = {peer: progress.acked for peer, progress in self._progress.items()} if self.role == LEADER else {}
        needed = needed_from(self.log, acked, self.snapshots.pinned_from(), self.config.retain_behind_bytes)
        return min(needed, self.commit_index + 1)

    def successors(self) -> list[int]:
        """Leader: the other voters that answer and have caught up, the fittest first."""
        able = [peer for peer in self.other_voters if self.is_caught_up(peer)]
        return sorted(able, key=lambda peer: (self.leadership.fitness(peer), -self._progress[peer].acked, -peer))

    def ask_successor(self) -> None:
        """Leader: tells the fittest of the voters that have caught up to stand, or the most complete of those that are
        connected; as soon as it has all of the log. Whether this node's own disk has it does not matter.
        """
        connected = [peer for peer in self.other_voters if self.connected(peer) and peer in self._progress]
        connected.sort(key=lambda peer: (-self._progress[peer].acked, -peer))
        for peer in (self.successors() or connected)[:1]:
            if self._progress[peer].acked >= self.log.last_index:
                self.send(peer, TimeoutNow(self.term))

    # --- leader: replication -----------------------------------------------------------------------------------

    def send_appends(self, *, heartbeat: bool) -> None:
        if heartbeat:
            self.schedule_heartbeat()
            if now() - self._rounds[0][0] >= self.config.election_timeout_ms / 1000:
                self._rounds = (now(), self.log.last_index), self._rounds[0]
        for peer, progress in self._progress.items():
            if self.connected(peer):
                if heartbeat:
                    progress.on_heartbeat()
                self._send_appends_to(peer, progress, heartbeat)

    def _send_appends_to(self, peer: int, progress: Progress, heartbeat: bool) -> None:
        if self.snapshots.is_due(peer):
            if heartbeat:  # nothing of the log: what everybody has is before its first entry
                self.send(peer, self._append_after(0))
            return
        if progress.next_index <= self.log.base.index:
            progress.restart(self.log.base.index + 1)
        if progress.take_restarted():
            self._lanes.drop_waiting(peer)
        while progress.next_index <= self.log.last_index and progress.may_send() and not self._lanes.is_full(peer):
            entries = self.log.entries(progress.next_index, APPEND_BYTES)
            progress.announced_commit = self.commit_index
            self.send(peer, self._append_after(progress.next_index - 1, entries))
            progress.sent(entries[-1].index, sum(len(entry.payload) for entry in entries))
        if heartbeat:
            self._send_heartbeat(peer, progress)

    def _send_heartbeat(self, peer: int, progress: Progress) -> None:
        """It overtakes entries that are on their way, so it says nothing of them: it names the last entry that is known
        to be there. Another one follows behind them, when nothing else will: should they be lost, it is refused.
        """
        if not progress.is_in_flight:
            known = progress.next_index - 1
        else:
            known = progress.acked if progress.acked >= self.log.base.index else 0
            if not self._lanes.data_waits(peer):
                self._lanes.send_behind(peer, self._append_after(progress.next_index - 1))
        progress.announced_commit = max(progress.announced_commit, min(self.commit_index, known))
        self.send(peer, self._append_after(known))

    def _append_after(self, prev_index: int, entries: Sequence[Entry] = ()) -> Append:
        prev_term = self.log.term_at(prev_index) if prev_index else 0
        append = make_append(self.term, prev_index, prev_term, self.commit_index, entries, self._commit_term)
        if prev_index or entries:
            chain_append(self.log, append)
        return append

    @property
    def _commit_term(self) -> int:
        return self.log.term_at(self.commit_index) if self.commit_index else 0

    def probe_again(self, peer: int) -> None:
        """Find out anew where this peer's log meets ours."""
        progress = self._progress[peer]
        progress.restart()
        if self.connected(peer):
            self._send_appends_to(peer, progress, heartbeat=True)

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        if self.role != LEADER or reply.term != self.term:
            return  # row 4: an answer to an earlier leadership
        if max(reply.match_index, reply.rejected_prev, reply.hint) > self.log.last_index + 1 - reply.success:
            raise ProtocolError(f"node {peer} answers about entries that were never sent")
        self.heard_from(peer)
        progress = self._progress.get(peer)
        if progress is None:
            return  # it was removed
        progress.votes = reply.votes
        if self.snapshots.is_due(peer):
            return  # a heartbeat's, or late
        if not reply.success:
            if progress.on_reject(reply.rejected_prev, reply.hint):
                if progress.next_index <= self.log.base.index == reply.rejected_prev:
                    self.snapshots.want(peer)
                self._answered[peer] = True
            return
        progress.on_ack(reply.match_index, counts=reply.counts, heartbeat=reply.heartbeat)
        if progress.counted >= self._leads_from:
            self.knowledge.acknowledged(peer, self.term, progress.counted)
        self.snapshots.on_acked(peer, progress.acked)
        self._count_acknowledged(peer)
        self._answered.setdefault(peer, False)

    def data_waits(self, peer: int) -> bool:
        return self._lanes.data_waits(peer)

    def _go_on_sending(self) -> None:
        """Once per step, however many answers came in: one that was away for a while answers hundreds at once."""
        answered, self._answered = self._answered, {}
        for peer, heartbeat in answered.items():
            progress = self._progress.get(peer)
            if progress is not None and self.connected(peer):
                self._send_appends_to(peer, progress, heartbeat)

    def _count_acknowledged(self, peer: int) -> None:
        """Row 8: a peer's copy counts only as far as the leader's own copy is durable, since the library always
        counts that one. What ends before the own no-op commits nothing (row 17).
        """
        counted = min(self._progress[peer].counted, self.log.synced_index)
        self.set_match(peer, counted if counted >= self._leads_from else 0)

    def _commit_own_term(self) -> None:
        """Row 17: the own no-op, once this node and a majority hold it durably, and with it everything before."""
        if self.commit_index < self._leads_from <= min(self.commit_limit, self.log.synced_index):
            self.commit_index = self._leads_from

    # --- snapshots ---------------------------------------------------------------------------------------------

    def on_snapshot_message(self, peer: int, message: SnapshotMessage) -> None:
        self.snapshots.on_message(peer, message)

    def on_receipt(self, peer: int, message: Receipt) -> None:
        if self.role == LEADER and message.term == self.term:
            self.heard_from(peer)
        if not isinstance(message, Arrived):
            self.snapshots.on_answer(peer, message)

    # --- configurations ----------------------------------------------------------------------------------------

    def on_configuration(self) -> None:
        self.set_other_voters(self.other_voters)
        if self.role == LEADER:
            known = self._progress
            for peer in known.keys() - self.peer_ids:
                self.snapshots.remove(peer)
            self._progress = {peer: known.get(peer) or Progress(self.log.last_index + 1) for peer in self.peer_ids}
            for peer in self._progress:
                self._count_acknowledged(peer)
        self.on_membership()

    # --- durability, commit, apply -----------------------------------------------------------------------------

    def on_synced(self) -> None:
        """The log's synced_index has moved: promises that waited for it leave, and more may be committed."""
        self.gate.release(self.log.synced_index)
        if self.role == LEADER:
            for peer in self._progress:
                self._count_acknowledged(peer)
        else:
            self.commit_index = self._known_committed

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        self.notice_stall()
        if self.role == LEADER and self.other_voters and self.unsynced.is_overdue():
            log.error("stepping down: the disk has not synced for too long, so nothing can be committed here")
            self.become(FOLLOWER)
            self.set_leader(None)
        if self._forgotten:
            self.begin_anew()
            return
        self.replicas.look()
        self.stop_differing()
        self._vote_again()
        if self.role == LEADER:
            self._commit_own_term()
            self._go_on_sending()
        super()._onTick(timeToWait)
        if self.role == LEADER:
            self.knowledge.told_committed(self._commit_term, self.commit_index)
            self.snapshots.tick()
        if self.membership.settle(self.commit_index):
            self.on_membership()

    def apply_committed(self) -> None:
        """Row 10: an exception of `apply` comes out of the tick and stops the node; refusals are results."""
        if self.last_applied >= self.commit_index:
            return
        entries = self._to_apply
        if not entries or entries[0].index != self.last_applied + 1:
            entries = self.log.entries(self.last_applied + 1, APPLY_BYTES, last=self.commit_index)
        ends_at = now() + APPLY_BUDGET_MS / 1000
        try:
            results = self._apply(entries, lambda: now() < ends_at)
        except LogError as error:  # also DiskFull, which elsewhere says that nothing was changed
            raise LogFailed(f"entry {entries[0].index} or later cannot be applied here: {error}") from error
        entries, self._to_apply = entries[: len(results)], entries[len(results) :]
        self.last_applied = entries[-1].index
        for entry, result in zip(entries, results, strict=True):
            term, on_outcome = self._waiting.pop(entry.index, (0, None))
            if on_outcome is not None:
                if term == entry.term:
                    on_outcome(entry, result)
                else:
                    on_outcome(None, UnknownOutcome("another leader's entry took this place; retry with the same id"))

    # --- transitions -------------------------------------------------------------------------------------------

    def on_role_changed(self, previous: int, role: int) -> None:
        super().on_role_changed(previous, role)
        if role == LEADER:
            if self.log.chain.last is None:  # of an earlier build: one begins here, and the others take it over
                self.log.chain.begin(Link(self.log.last_index, self.log.last_term, 0))
            self.snapshots.stop_receiving("this node leads")
            self._leads_from = self.log.last_index + 1
            self._rounds = (float("-inf"), 0), (float("-inf"), 0)
            self._progress = {peer: Progress(self._leads_from) for peer in self.peer_ids}
        if previous == LEADER:
            self.snapshots.lose_leadership()
            for peer in self._progress:
                self._lanes.drop_waiting(peer)
            self._progress, self._answered = {}, {}
            self._known_committed = max(self._known_committed, self.commit_index)
            waiting, self._waiting = self._waiting, {}
            for _, on_outcome in waiting.values():
                on_outcome(None, UnknownOutcome("leadership was lost before the entry was committed"))

    def on_peer_connected(self, peer: int, incarnation: str) -> None:
        forgetful = self._incarnations.setdefault(peer, incarnation) != incarnation
        self._incarnations[peer] = incarnation
        self.knowledge.met(peer, incarnation)
        self.replicas.met(peer, incarnation)
        self.send(peer, self.vital_signs.of(peer))  # before any vote: who elects knows the clocks of the electors
        if self.role == LEADER and peer in self._progress:
            if forgetful:
                log.warning("node %d comes back with a new disk: what it acknowledged no longer counts", peer)
                self.snapshots.forget(peer, "it comes back with a new disk")
            # An acknowledgement is good for its connection: behind a new one may be a disk that was put back.
            known, self._progress[peer] = self._progress[peer], Progress(self.log.last_index + 1)
            if not forgetful and known.acked:
                self._progress[peer].next_index = known.acked + 1
            self._count_acknowledged(peer)
        recall = self.knowledge.recall(peer, self.term)
        if recall is not None:  # by both lanes: before the vote, and before what might make up for what it forgot
            self.send(peer, recall)
            self._lanes.send_behind(peer, recall)
        if self.role == LEADER and peer in self._progress:
            self._send_appends_to(peer, self._progress[peer], heartbeat=True)

    def on_peer_disconnected(self, peer: int) -> None:
        self.replicas.parted(peer)
        if self.role == LEADER and peer in self._progress:
            self.snapshots.forget(peer, "it is no longer connected")
            self._progress[peer].restart()

    def on_higher_term(self) -> None:
        """What was known of the old leader's commits still holds; what it was promised does not."""
        self.gate.discard()
        self.snapshots.stop_receiving("there is a later term")
