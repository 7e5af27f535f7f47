"""The Raft handlers of one node, composed of parts: who is called when, and in which order.

PySyncObj, behind its translator (raft/library.py), runs the step and the election; the parts do the rest. Row numbers
in comments are those of docs/safe-pysyncobj.md: what the stock library does there, and why it loses acknowledged
entries. No I/O of its own besides the log, no clock besides `library.now`, no randomness besides the library's, so the
simulation drives exactly this code.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from raft.config import RaftConfig
from raft.copies.new_disk import NewDisk
from raft.copies.own_copy import OwnCopy
from raft.copies.replicas import Replicas
from raft.election.election import Election
from raft.election.leadership import Leadership
from raft.election.stalls import Stalls
from raft.election.unsynced import Unsynced
from raft.election.vacancy import Vacancy
from raft.entries.applier import Applier, Apply
from raft.entries.follower import Follower
from raft.entries.log_writer import LogWriter
from raft.entries.proposing import Proposing
from raft.errors import ProtocolError
from raft.health.clock import SYSTEM_CLOCK
from raft.health.clock_agreement import ClockAgreement
from raft.health.disk_health import DiskHealth
from raft.health.presence import Presence
from raft.health.vital_signs import VitalSigns
from raft.journal import Journal
from raft.library import LEADER, ROLE_NAMES, Guard, PeerTransport, PinnedSyncObj, library_configuration, now
from raft.membership import Membership
from raft.messages import (
    MAX_FRAME_BYTES,
    Append,
    AppendReply,
    Arrived,
    Comparison,
    PreVote,
    PreVoteReply,
    Recall,
    Receipt,
    RequestVote,
    SnapshotMessage,
    TimeoutNow,
    Vitals,
    VoteReply,
)
from raft.peers.peer_status import PeerStatus
from raft.replication.replication import Replication
from raft.sender import Sender
from raft.snapshots.snapshots import Snapshots
from raft.state import RaftState
from store.log.errors import DiskFull
from store.log.record_chain import Link
from store.snapshots.install import SnapshotStore

log = logging.getLogger(__name__)

_OF_THE_LOG: Final = Append, AppendReply
TICKS_PER_HEARTBEAT: Final = 2
"""Number of looks, between two heartbeats, for what goes by time alone; messages and syncs are worked on as they come.
"""
TIMER_SLACK_S: Final = 0.001
"""A timer may fire a moment early, and a heartbeat must not wait a whole tick for that moment."""
CHORES_SHARE: Final = 1 / 8
"""Minimum time between two rounds of chores, as a share of the heartbeat interval."""


class SafeRaft:
    """One node. The owner drives it: `step()` on a timer and when it is wanted, `advance()` when there is something to
    commit or apply, `on_synced()` after each finished sync.

    Every SafetyViolation, LogFailed or exception of `apply` that comes out of a method means that this node must not go
    on. Loop-only.
    """

    def __init__(
        self,
        config: RaftConfig,
        journal: Journal,
        transport: PeerTransport,
        apply: Apply,
        applied_index: int,
        membership: Membership,
        snapshot_store: SnapshotStore | None = None,
        *,
        on_installed: Callable[[], None] = lambda: None,
        clocks: ClockAgreement | None = None,
        guard: Guard = lambda handler: handler,
    ) -> None:
        """`membership` is that of the journal's log (`membership.recovered`); `apply` is described at Applier.

        `on_installed()`: a snapshot was decided for. The node has to start again; nothing may leave it any more.
        Without `clocks` the node goes by the system's clock. `guard` wraps what the transport calls.
        """
        self.wants_step = False
        """True when something has happened that the next step should look at before its time."""
        self.on_membership: Callable[[], None] = lambda: None
        """Called when another configuration is in force, or known to be committed."""
        self.state = state = RaftState(
            config, journal, membership, _make_library(config, journal, transport, membership, guard)
        )
        self.sender = sender = Sender(state, transport)
        self.presence = Presence(config.election_timeout_ms)
        self.clocks = clocks or ClockAgreement.of(config, SYSTEM_CLOCK, membership)
        self.unsynced = Unsynced(state.log, config.election_timeout_ms)
        self.disks = DiskHealth.of(config, membership)
        self.disks.unsynced_since = self.unsynced.since
        self.replicas = Replicas(config.node_id, state.log, membership, config.election_timeout_ms, sender.send)
        self.own_copy = OwnCopy(state, self.replicas, self._resign)
        self.new_disk = NewDisk(state, sender, self.own_copy)
        self.vital_signs = VitalSigns(state, sender, self.own_copy, self.replicas, self.disks, self.clocks)
        self.snapshots = Snapshots(state, sender, transport, snapshot_store, on_installed, self._differs)
        self.replication = Replication(state, sender, transport, self.snapshots)
        self.leadership = Leadership(
            state, sender, self.replication, self.vital_signs, self.disks, self.clocks, self.presence
        )
        self.vacancy = Vacancy(
            state, self.presence, self.replicas, self.vital_signs, self.own_copy, lambda: self.election.hindrance()
        )
        self.election = Election(
            state, sender, self.own_copy, self.leadership, self.unsynced, self.vacancy, lambda: self.on_higher_term()
        )
        self.stalls = Stalls(state, self.election)
        self.log_writer = LogWriter(state, sender, self.on_configuration)
        self.follower = Follower(
            state, sender, self.election, self.log_writer, self.own_copy, self.new_disk, self.disks
        )
        self.proposing = Proposing(state, self.log_writer, self.replication, self.stalls)
        self.applier = Applier(state, apply, self.proposing)
        self.snapshots.on_leader, self.snapshots.on_ended = self.election.follow, self.replication.probe_again
        self._lanes = transport
        self._incarnations: dict[int, str] = {}
        self._chores_due_s = float("-inf")
        state.library.last_applied = applied_index  # row 15: the library would start at 1
        state.library.handlers = self

    @property
    def leads_and_knows_all(self) -> bool:
        """True when this node leads, did not stand still until a moment ago, and has applied every entry that was
        committed before it led.
        """
        state = self.state
        if state.role != LEADER or state.last_applied < self.replication.leads_from:
            return False
        return not (self.stalls.has_stood and state.other_voters)

    @property
    def lacks_vote(self) -> bool:
        """True when this node is a voter whose disk is new to the cluster, and so neither votes nor counts yet."""
        state = self.state
        is_blank = state.has_blank_log and (state.leader_id is not None or self.vacancy.is_first_election)
        return state.is_voter and not self.own_copy.votes and not is_blank

    def peers(self, is_connected: Callable[[int], bool]) -> dict[int, PeerStatus]:
        """Return how this node sees each of its peers."""
        return {
            peer: PeerStatus(
                is_connected(peer) and self.presence.is_present(peer),
                self.replication.acked(peer),
                self.snapshots.sending(peer),
            )
            for peer in self.state.peer_ids
        }

    @property
    def may_commit(self) -> bool:
        """True when `advance` would commit or apply something."""
        return self.applier.has_unapplied or (self.state.role == LEADER and self.replication.may_commit)

    # --- driven by the owner ---------------------------------------------------------------------------------------

    def step(self) -> None:
        """Do what is due: elections, heartbeats, commits, apply. Raises DiskFull when it must be tried again."""
        self.wants_step = False
        self.state.library.doTick(0)

    def pause_s(self) -> float:
        """Return the time from a step to the next one, in seconds: until a heartbeat or an election is due, at most a
        tick. One that is overdue waits for something else, and is looked at once a tick.
        """
        tick_s = self.state.config.heartbeat_ms / TICKS_PER_HEARTBEAT / 1000
        due_in_s = self.state.library.due_s - now()
        return min(tick_s, due_in_s + TIMER_SLACK_S) if due_in_s > 0 else tick_s

    def advance(self) -> None:
        """Send, commit and apply what acknowledgements and syncs have made possible since the last step; what goes by
        time waits for the next one. Raises DiskFull when it must be tried again.
        """
        self.stalls.notice()
        if self.own_copy.has_begun_anew():
            return
        self.own_copy.stop_differing()
        if self.state.role == LEADER:
            self.replication.advance()
        self.applier.apply_committed()
        self._settle()

    def on_synced(self) -> None:
        """Send the promises that waited for the log's synced_index, which has moved, and commit what is durable now."""
        state = self.state
        self.sender.gate.release(state.log.synced_index)
        if state.role == LEADER:
            self.replication.on_synced()
        else:
            self.follower.commit_synced()

    def data_arrives(self, peer: int) -> int:
        """Note that ARRIVED_BYTES more of a message of that peer have come; return the term to answer in."""
        return self.follower.data_arrives(peer)

    # --- the step, called by the library ---------------------------------------------------------------------------

    def on_tick(self) -> None:
        state, replication = self.state, self.replication
        self.stalls.notice()
        if self.own_copy.has_begun_anew():
            return
        if now() >= self._chores_due_s:  # also while the vote of a replica that differs cannot be given up
            self._chores_due_s = now() + CHORES_SHARE * state.config.heartbeat_ms / 1000
            self._do_chores()
        self.own_copy.stop_differing()
        self.new_disk.tick()
        if state.role == LEADER:
            replication.advance()
            replication.count_all()
        self.election.tick()
        self._settle()

    def _settle(self) -> None:
        """Note what this node, as leader, has committed, and the configuration that is committed."""
        state = self.state
        if state.role == LEADER:
            state.knowledge.told_committed(state.commit_term, state.commit_index)
        if state.membership.settle(state.commit_index):
            self.on_membership()

    def _do_chores(self) -> None:
        """Do what goes by time alone. It need not happen with every message, of which there are thousands a second."""
        state = self.state
        if state.role == LEADER and state.other_voters and self.unsynced.is_overdue():
            log.error("stepping down as leader: the disk has not synced for too long, so this node can commit nothing")
            state.library.step_down()
        self.replicas.look()
        self.vital_signs.tell_if_due()
        if state.role == LEADER:
            self.snapshots.tick()
        else:
            self.snapshots.look()

    @property
    def commit_limit(self) -> int:
        return self.replication.commit_limit

    def send_heartbeats(self) -> None:
        self.replication.send_heartbeats()

    def apply_committed(self) -> None:
        self.applier.apply_committed()

    def ask_for_vote(self, peer: int, term: int, last_index: int, last_term: int) -> None:
        self.election.ask_for_vote(peer, term, last_index, last_term)

    def ask_to_stand(self, peer: int, term: int) -> None:
        self.sender.send(peer, TimeoutNow(term))

    # --- messages --------------------------------------------------------------------------------------------------

    def on_message(self, peer: int, message: Any) -> None:
        """Take a decoded message of a connected peer. Raises ProtocolError when the peer is at fault."""
        self.stalls.notice()
        self.presence.heard(peer)
        if isinstance(message, _OF_THE_LOG):
            self._on_raft_message(peer, message)
        else:
            self.wants_step = True
            if isinstance(message, Vitals):
                self.vital_signs.hear(peer, message)
            elif isinstance(message, Comparison):
                self.replicas.on_message(peer, message)
            else:
                self._on_raft_message(peer, message)
        if self.replicas.difference is not None:  # the step gives the vote up, durably
            self.wants_step = True

    def _on_raft_message(self, peer: int, message: Any) -> None:
        term = message.message.term if isinstance(message, Append) else message.term
        own_term = self.state.term
        is_of_its_term = not isinstance(message, PreVote) or term <= own_term
        if is_of_its_term:
            self.election.hear(term)
        self._dispatch(peer, message, own_term)
        if is_of_its_term:  # nothing impossible: a forgery would have the peer's disk found to have forgotten it, or a
            # new disk here count before it knows the peer's term
            self.new_disk.heard(peer)
            self.state.knowledge.heard(peer, term)

    def _dispatch(self, peer: int, message: Any, own_term: int) -> None:
        match message:
            case Append():
                self.follower.on_append(peer, message)
            case AppendReply():
                self.replication.on_append_reply(peer, message)
            case RequestVote():
                self.election.on_request_vote(peer, message)
            case VoteReply():
                self.election.on_vote_reply(peer, message)
            case PreVote():
                self.election.on_pre_vote(peer, message)
            case PreVoteReply():
                self.election.on_pre_vote_reply(peer, message)
            case TimeoutNow():
                self.election.on_timeout_now(peer, message)
            case Recall():
                self.own_copy.on_recall(peer, message, own_term)
            case _ if isinstance(message, SnapshotMessage):
                self.snapshots.on_message(peer, message)
            case _ if isinstance(message, Receipt):
                self._on_receipt(peer, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a Raft message")

    def _on_receipt(self, peer: int, message: Receipt) -> None:
        if self.state.role == LEADER and message.term == self.state.term:
            self.state.library.heard_from(peer)
        if not isinstance(message, Arrived):
            self.snapshots.on_answer(peer, message)

    # --- connections -----------------------------------------------------------------------------------------------

    def on_peer_connected(self, peer: int, incarnation: str) -> None:
        self.wants_step = True
        state = self.state
        forgetful = self._incarnations.setdefault(peer, incarnation) != incarnation
        self._incarnations[peer] = incarnation
        state.knowledge.met(peer, incarnation)
        self.replicas.met(peer, incarnation)
        self.sender.send(peer, self.vital_signs.of(peer))  # before any vote: who elects knows the electors' clocks
        self.replication.on_peer_connected(peer, forgetful=forgetful)
        recall = state.knowledge.recall(peer, state.term)
        if recall is not None:  # by both lanes: before the vote, and before what might make up for what it forgot
            self.sender.send(peer, recall)
            self._lanes.send_behind(peer, recall)
        self.replication.send_heartbeat_to(peer)

    def on_peer_disconnected(self, peer: int) -> None:
        self.wants_step = True
        self.replicas.parted(peer)
        self.replication.on_peer_disconnected(peer)

    # --- transitions -----------------------------------------------------------------------------------------------

    def on_higher_term(self) -> None:
        """Take back promises to the old leader; its commits, as far as they were known, still hold."""
        self.sender.gate.discard()
        self.snapshots.stop_receiving("there is a later term")

    def on_role_changed(self, previous: int, role: int) -> None:
        self.wants_step = True
        state = self.state
        self.election.count(role)
        log.info("%s -> %s in term %d", ROLE_NAMES[previous], ROLE_NAMES[role], state.term)
        if previous == LEADER:
            state.library.postpone_election()  # row 14: the library would keep a deadline from before it led
        if role == LEADER:
            if state.log.chain.last is None:  # of an earlier build: one begins here, and the others take it over
                state.log.chain.begin(Link(state.log.last_index, state.log.last_term, 0))
            self.election.lead()
            self.snapshots.stop_receiving("this node leads")
            self.replication.begin()
        if previous == LEADER:
            self.snapshots.lose_leadership()
            self.replication.end()
            self.follower.take_over_commits()
            self.proposing.lose()

    def on_no_room_to_lead(self, error: DiskFull) -> None:
        """Step down: a leader that cannot append its no-op cannot commit, and another node may try."""
        log.warning(
            "stepping down as leader of term %d, whose first entry cannot be written: %s", self.state.term, error
        )
        self.state.library.step_down()

    def on_configuration(self) -> None:
        """Tell the parts and the owner that another configuration is in force."""
        self.state.library.set_other_voters(self.state.other_voters)
        self.replication.on_configuration()
        self.on_membership()

    def _differs(self) -> bool:
        return self.own_copy.differs

    def _resign(self) -> None:
        self.leadership.ask_successor()
        self.state.library.step_down()


def _make_library(
    config: RaftConfig, journal: Journal, transport: PeerTransport, membership: Membership, guard: Guard
) -> PinnedSyncObj:
    settings = library_configuration(
        election_timeout_ms=config.election_timeout_ms,
        heartbeat_ms=config.heartbeat_ms,
        max_message_bytes=MAX_FRAME_BYTES,
    )
    others = sorted(membership.current.voters - {config.node_id})
    return PinnedSyncObj(config.node_id, others, settings, transport, journal, guard)
