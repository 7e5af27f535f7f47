"""Terms and votes: who may lead, and how a node stands for it.

The library runs the election once it is due; this module decides when it is due (pre-vote), grants votes, and counts
them.
"""

import logging
from typing import Any

from pysyncobj.transport import Transport as LibraryTransport

from raft.clock import SYSTEM_CLOCK
from raft.clock_agreement import ClockAgreement
from raft.config import RaftConfig
from raft.disk_health import DiskHealth
from raft.distrust import Distrust, check_term
from raft.errors import ProtocolError
from raft.gate import DurabilityGate
from raft.journal import Journal
from raft.knowledge import Knowledge
from raft.leadership import Leadership
from raft.library import CANDIDATE, FOLLOWER, LEADER, ROLE_NAMES, library_configuration, now
from raft.membership import Configuration, Membership
from raft.messages import (
    MAX_FRAME_BYTES,
    Append,
    AppendReply,
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
from raft.own_copy import OwnCopy
from raft.peer_link import PeerLink
from raft.presence import Presence
from raft.rejoin import Rejoin
from raft.replicas import Replicas
from raft.unsynced import Unsynced
from raft.vital_signs import VitalSigns
from store.log.errors import DiskFull

log = logging.getLogger(__name__)

FIRST_WAIT_SHARE = 0.3
"""A node that has just started, or stood, waits for a leader for this share of an election timeout."""


class ElectionHandlers(OwnCopy):
    """Invariants: at most one vote per term, durable before it is said (row 5); a term is adopted durably before
    anything is answered in it (row 4); no term is raised by a node that a majority would not elect (pre-vote, row
    14)."""

    def __init__(
        self, config: RaftConfig, journal: Journal, transport: LibraryTransport, membership: Membership
    ) -> None:
        self.config = config
        self.journal = journal
        self.log = journal.log
        self.membership = membership
        self.gate = DurabilityGate(transport.send)
        self._transport_send = transport.send
        self._votes: tuple[int, set[int]] = (0, set())  # the term they were given in, and by whom
        self._pre_votes: set[int] | None = None  # None: no pre-vote under way
        self._standing = False
        self._retired = False
        self.knowledge = Knowledge(journal.watermarks)
        self._distrust = Distrust()
        self.waits_for: tuple[int, int] | None = None
        """Term and index of a committed entry for want of which this node does not stand; None otherwise."""
        self._rejoin = Rejoin(config.election_timeout_ms)
        self._leader_contact = float("-inf")
        self._awake_at = now()
        self._running_since = now()
        self.clocks = ClockAgreement.of(config, SYSTEM_CLOCK, membership)
        """Replaced by the owner when the node's time does not come from the system."""
        self.unsynced = Unsynced(self.log, config.election_timeout_ms)
        self.disks = DiskHealth.of(config, membership)
        self.disks.unsynced_since = self.unsynced.since
        self.presence = Presence(config.election_timeout_ms)
        self.vital_signs = VitalSigns(self)
        self.leadership = Leadership(self)
        self.replicas = Replicas(config.node_id, self.log, membership, config.election_timeout_ms, self.send)
        conf = library_configuration(
            election_timeout_ms=config.election_timeout_ms,
            heartbeat_ms=config.heartbeat_ms,
            max_message_bytes=MAX_FRAME_BYTES,
        )
        super().__init__(
            config.node_id, self.other_voters, conf, PeerLink(self.send_library_message, transport), journal
        )

    def send(self, peer: int, message: Any) -> None:
        """For what depends on no durable state: appends, refusals, heartbeat answers."""
        self._transport_send(peer, message)

    def send_promise(self, peer: int, message: Any) -> None:
        """For votes and vote requests: they speak of the whole log, so they wait until it is synced."""
        self.gate.submit(peer, message, self.log.last_index, self.log.synced_index)

    def send_library_message(self, peer: int, message: dict[str, Any]) -> None:
        """The library's own election and leadership transfer."""
        if message["type"] == "request_vote":
            request = RequestVote(
                message["term"], message["last_log_index"], message["last_log_term"], self.has_blank_log
            )
            self.send_promise(peer, request)
        elif message["type"] == "timeout_now":
            self.send(peer, TimeoutNow(message["term"]))
        else:
            raise ProtocolError(f"the library wants to send {message['type']!r}")

    # --- who is there ------------------------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """In force here: the last one in the log, committed or not."""
        return self.membership.current

    @property
    def peer_ids(self) -> list[int]:
        """The other nodes, learners included."""
        return [member.node_id for member in self.configuration.members if member.node_id != self.config.node_id]

    @property
    def other_voters(self) -> list[int]:
        return sorted(self.configuration.voters - {self.config.node_id})

    @property
    def is_voter(self) -> bool:
        """Whether the configuration in force gives this node a vote of its own. It grants votes without: who asks goes
        by its own configuration, which may be a later one.
        """
        return self.config.node_id in self.configuration.voters

    @property
    def majority(self) -> int:
        return self.configuration.majority

    # --- who may vote: a node whose disk was wiped has forgotten what it acknowledged ------------------------------

    @property
    def has_blank_log(self) -> bool:
        """Nothing but the genesis record: a new cluster, or a new disk in an old one. A log with a base is neither."""
        return self.log.last_index == 1 and self.log.base.index == 0

    def _may_vote(self, *, first_election: bool) -> bool:
        """In the first election every log is blank; afterwards only nodes vote that have caught up once.

        A majority that acknowledged an entry and a majority that elects share a node that remembers; a wiped node would
        break that. It gets the log from a leader that the others elected, and votes when `raft/rejoin.py` says so.
        """
        return self.has_blank_log and self.is_voter if first_election else self.votes

    # --- a loop that stood -------------------------------------------------------------------------------------

    @property
    def has_stood(self) -> bool:
        """Whether this node did nothing for an election timeout, up to now: the others may have another leader."""
        return now() - self._awake_at > self.config.election_timeout_ms / 1000

    def notice_stall(self) -> None:
        """Called before anything else is done. After a stall of an election timeout a leader steps down: answers that
        piled up in its sockets look as if its followers had just spoken. Who does not lead hears first what came in
        meanwhile: that no heartbeat was seen is no leader's fault.
        """
        before, has_stood = self._awake_at, self.has_stood
        self._awake_at = now()
        if not has_stood or not self.other_voters:
            return
        self._pre_votes, self._standing = None, False
        self.election_deadline = max(self.election_deadline, now() + FIRST_WAIT_SHARE * self.conf.raftMinTimeout)
        if self.role == LEADER:
            log.warning("stepping down: this node did nothing for %d ms", 1000 * (self._awake_at - before))
            self.become(FOLLOWER)
            self.set_leader(None)

    # --- incoming ----------------------------------------------------------------------------------------------

    def handle_message(self, peer: int, message: Any) -> None:
        self.notice_stall()
        self.presence.heard(peer)
        if isinstance(message, Vitals):
            self.vital_signs.hear(peer, message)
        elif isinstance(message, Comparison):
            self.replicas.on_message(peer, message)
        else:
            self._handle_raft_message(peer, message)

    def _handle_raft_message(self, peer: int, message: Any) -> None:
        term = message.message.term if isinstance(message, Append) else message.term
        own_term = self.term
        is_of_its_term = not isinstance(message, PreVote) or term <= own_term
        if is_of_its_term:
            self._hear(peer, term)
        self._dispatch(peer, message, own_term)
        if is_of_its_term:  # nothing impossible: a forgery would have the peer's disk found to have forgotten it
            self.knowledge.heard(peer, term)

    def _dispatch(self, peer: int, message: Any, own_term: int) -> None:
        match message:
            case Append():
                self.on_append(peer, message)
            case AppendReply():
                self.on_append_reply(peer, message)
            case RequestVote():
                self._on_request_vote(peer, message)
            case VoteReply():
                self._on_vote_reply(peer, message)
            case PreVote():
                self._on_pre_vote(peer, message)
            case PreVoteReply():
                self._on_pre_vote_reply(peer, message)
            case TimeoutNow():
                self._on_timeout_now(peer, message)
            case Recall():
                self.on_recall(peer, message, own_term)
            case _ if isinstance(message, SnapshotMessage):
                self.on_snapshot_message(peer, message)
            case _ if isinstance(message, Receipt):
                self.on_receipt(peer, message)
            case _:
                raise ProtocolError(f"{type(message).__name__} is not a Raft message")

    def _hear(self, peer: int, term: int) -> None:
        """Anything but a pre-vote of a later term, which is a question: nothing is adopted from it."""
        check_term(self.term, term)
        if term > self.term:
            self._adopt_term(term)
        self._rejoin.heard(peer)

    def _adopt_term(self, term: int) -> None:
        self.set_term(term, None)
        self.on_higher_term()
        self._pre_votes = None
        self._standing = False
        self.end_transfer()
        self.become(FOLLOWER)
        self.set_leader(None)

    def follow(self, leader: int) -> None:
        """The leader of our term has spoken."""
        self.become(FOLLOWER)
        self._pre_votes = None
        self._standing = self.transfer_in_progress
        self.waits_for = None
        if self.leader_id != leader:
            log.info("node %d leads term %d", leader, self.term)
            self.set_leader(leader)
        self._leader_contact = now()
        if not self.transfer_in_progress:
            self.postpone_election()

    # --- votes -------------------------------------------------------------------------------------------------

    def _at_least_as_complete(self, last_index: int, last_term: int) -> bool:
        """Raft paper 5.4.1: whose last entry has the later term, or the same term and an index at least as high."""
        return (last_term, last_index) >= (self.log.last_term, self.log.last_index)

    def _on_request_vote(self, peer: int, request: RequestVote) -> None:
        granted = (
            request.term == self.term
            and self.role != LEADER
            and self.voted_for in (None, peer)
            and self._may_vote(first_election=request.first_election)
            and self._at_least_as_complete(request.last_index, request.last_term)
            and self.knowledge.is_complete(request.last_term, request.last_index)
        )
        if granted:
            self.journal.become_voter()
            self.set_term(self.term, peer)
            self.postpone_election()
        self.send_promise(peer, VoteReply(self.term, granted))

    def _on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        if self.role != CANDIDATE or reply.term != self.term or not reply.granted:
            return
        if self._votes[0] != self.term:
            self._votes = (self.term, {self.config.node_id})
        self._votes[1].add(peer)
        if self.configuration.has_majority(self._votes[1]):
            self.become_leader()

    # --- standing for election ---------------------------------------------------------------------------------

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        self.vital_signs.tell_if_due()
        election_allowed = False
        is_due = self.role != LEADER and self.election_deadline < now()
        if is_due and not self.connected_to_anyone:
            self.set_leader(None)  # whoever led cannot be heard; the election waits for somebody to ask
        elif is_due:
            standing, self._standing = self._standing, False
            if standing and self.is_voter:
                self.journal.become_voter()
                election_allowed = True
            else:
                self._ask_for_pre_votes()
        self.tick(election_allowed=election_allowed)

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        try:
            super()._SyncObj__onBecomeLeader()
        except DiskFull as error:  # a leader that cannot append its no-op cannot commit: let another try
            log.warning("not leading term %d: %s", self.term, error)
            self.become(FOLLOWER)
            self.set_leader(None)

    def _ask_for_pre_votes(self) -> None:
        self.postpone_election()
        self.set_leader(None)
        if not self.is_voter:
            return
        self.leadership.note_asked(self._pre_votes)
        first_election = self.has_blank_log
        if self.unsynced.is_overdue():
            log.warning("not standing for election: the disk has not synced for too long")
            return
        if self._retired:
            return
        if self.leadership.lets_others_stand_first(max(self._leader_contact, self._running_since)):
            log.warning("not standing for election yet, others are fitter: %s", self.leadership.own_fitness)
            return
        if not self._may_vote(first_election=first_election):
            log.warning("this disk is new to the cluster: waiting for a leader to bring it up to date")
            return
        if not self._may_lead():
            return
        self._pre_votes = {self.config.node_id}
        if not self.other_voters:
            self._stand()
            return
        request = PreVote(self.term, self.log.last_index, self.log.last_term, first_election)
        for peer in self.other_voters:
            if self.connected(peer):
                self.send_promise(peer, request)

    def _may_lead(self) -> bool:
        """Not while this log lacks an entry that is known to be committed: those that elect it might lack it as well,
        because a disk was put back.
        """
        if self.knowledge.is_complete(self.log.last_term, self.log.last_index):
            return True
        if self.waits_for != self.knowledge.committed:
            self.waits_for = self.knowledge.committed
            log.warning(
                "not standing for election: the entry of term and index %s is committed, and this log ends at %s; "
                "waiting for a node that has it",
                self.waits_for,
                (self.log.last_term, self.log.last_index),
            )
        return False

    def _on_pre_vote(self, peer: int, request: PreVote) -> None:
        leader_is_alive = self.role == LEADER or now() - self._leader_contact < self.conf.raftMinTimeout
        granted = (
            request.term >= self.term
            and not leader_is_alive
            and self._may_vote(first_election=request.first_election)
            and self._at_least_as_complete(request.last_index, request.last_term)
            and self.knowledge.is_complete(request.last_term, request.last_index)
        )
        self.send(peer, PreVoteReply(self.term, request.term, granted))

    def _on_pre_vote_reply(self, peer: int, reply: PreVoteReply) -> None:
        if self._pre_votes is None or not reply.granted or reply.asked_term != self.term or self.role == LEADER:
            return
        self._pre_votes.add(peer)
        # With every node's word that its log is blank, nothing can have been acknowledged yet.
        voters = self.configuration.voters
        if self._pre_votes >= voters if self.has_blank_log else self.configuration.has_majority(self._pre_votes):
            self._stand()

    def retire(self) -> None:
        """This node is about to leave: it does not stand any more, also not when a leader that leaves asks it to."""
        self._retired = True

    def _on_timeout_now(self, peer: int, message: TimeoutNow) -> None:
        if self._retired:
            return
        if message.term == self.term and peer == self.leader_id and self.votes and self._may_lead():
            self.begin_transfer()
            self._stand()

    def _stand(self) -> None:
        """Makes the election due; the library's next tick raises the term, durably, and asks for votes."""
        self._pre_votes = None
        self._standing = True
        self.election_deadline = 0.0

    # --- transitions -------------------------------------------------------------------------------------------

    def on_role_changed(self, previous: int, role: int) -> None:
        log.info("%s -> %s in term %d", ROLE_NAMES[previous], ROLE_NAMES[role], self.term)
        if previous == LEADER:
            self.postpone_election()  # row 14: the library would keep a deadline from before it led

    def successors(self) -> list[int]:
        raise NotImplementedError

    def answering_voters(self) -> set[int]:
        raise NotImplementedError

    def on_higher_term(self) -> None:
        raise NotImplementedError

    def on_append(self, peer: int, append: Append) -> None:
        raise NotImplementedError

    def on_append_reply(self, peer: int, reply: AppendReply) -> None:
        raise NotImplementedError

    def on_snapshot_message(self, peer: int, message: SnapshotMessage) -> None:
        raise NotImplementedError

    def on_receipt(self, peer: int, message: Receipt) -> None:
        raise NotImplementedError
