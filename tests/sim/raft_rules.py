"""Check a node's Raft against its rules, by its messages and beliefs: a broken rule costs an entry only much later."""

from typing import TYPE_CHECKING, Any, NamedTuple

from raft.library import FOLLOWER, LEADER
from raft.messages import (
    Append,
    AppendReply,
    Arrived,
    Comparison,
    PreVote,
    PreVoteReply,
    Recall,
    RequestVote,
    Vitals,
    VoteReply,
)
from store.log.commit_log import CommitLog

from .checkers import Violation
from .checkers.acknowledgements import Acknowledgements, check_counted
from .checkers.check_quorum import CheckQuorum
from .checkers.durable_log import DurableLog
from .checkers.leader_stickiness import LeaderStickiness
from .checkers.membership import Members, MembershipModel
from .checkers.promises import check_promise
from .network import incarnation
from .raft_safety import Safety
from .world import World

if TYPE_CHECKING:
    from .replica import Replica


class _Answer(NamedTuple):
    """An AppendReply that is being handled."""

    told: int
    peer: int
    term: int
    counted_before: int


class RaftRules:
    def __init__(
        self,
        world: World,
        election_timeout_us: int,
        safety: Safety,
        disks: dict[int, DurableLog],
        membership: MembershipModel,
    ) -> None:
        self._world, self._safety, self._disks = world, safety, disks
        self._membership = membership
        self._acknowledgements = Acknowledgements()
        self._stickiness = LeaderStickiness(election_timeout_us)
        self._check_quorum = CheckQuorum(election_timeout_us)
        self._answer: _Answer | None = None
        self._arrived: tuple[int, int] | None = None  # who is told that data has arrived, and where
        self._election_timeout_us = election_timeout_us
        self._last_step: dict[int, tuple[int, int]] = {}  # node -> by its clock, and its term if it led
        # By node whose new disk has no vote yet: what was committed before, or with the help of the old one's copy.
        self._bound_by: dict[int, set[int]] = {}
        self._was_led = False  # by anybody, ever
        self._term = 0  # the latest in which anybody has stood for election
        self._heard: dict[int, set[int]] = {}  # by each node since it started
        self._told: set[int] = set()  # nodes that were told what their disk, which was put back, lacks
        self._knows_terms: set[int] = set()  # nodes that rightly said so since their disk was replaced

    def on_start(self, node_id: int) -> None:
        self._look_at_vote(node_id)  # the process may have died of something else once it had written that it votes
        self._stickiness.on_start(node_id)
        self._term = max(self._term, self._disks[node_id].hard_state[0])  # it may have died as it stood
        self._last_step.pop(node_id, None)
        self._heard[node_id] = set()
        self._told.discard(node_id)

    def on_wiped(self, node_id: int) -> None:
        self._knows_terms.discard(node_id)
        if not self._was_led:
            return  # a disk that is replaced within the very first election is out of scope (docs/reliability.md)
        held, knows = self._disks[node_id].before_wipe, self._safety.committed.knows
        bound = self._bound_by.setdefault(node_id, set())
        bound.update(index for index, term in held.items() if knows(index, term))

    def on_leader_commit(self, leader: "Replica", first: int, last: int) -> None:
        """Record that the entries `first` to `last` are committed. One of the counted copies may be lost: the leader
        had heard of it, and not yet of the new disk.
        """
        for node_id, bound in self._bound_by.items():
            if leader.raft.replication.acked(node_id) >= last:
                bound.update(range(first, last + 1))

    def on_send(self, replica: "Replica", peer: int, message: Any) -> None:
        node_id = replica.node_id
        check_promise(node_id, peer, message, replica.durable)
        if node_id in self._told:
            self._check_gave_up_its_vote(node_id, message)
        match message:
            case AppendReply():
                self._acknowledgements.on_reply(node_id, message, replica.durable)
                if message.success and message.counts and node_id in self._bound_by and not replica.durable.voter:
                    self._check_knows_terms(replica, message.match_index)
            case PreVoteReply():
                self._stickiness.on_pre_vote_reply(node_id, message, replica.now_us)
            case VoteReply(granted=True):
                self._safety.election.on_vote(node_id, peer, message.term)
            case RequestVote():
                self._check_claim(replica, message)
                self._safety.election.on_vote(node_id, node_id, message.term)
            case PreVote():
                self._check_claim(replica, message)
            case _:
                pass

    @staticmethod
    def _check_gave_up_its_vote(node_id: int, message: Any) -> None:
        """Check a node that was told which acknowledged entries its disk, which was put back, lacks."""
        if isinstance(message, RequestVote | PreVote) or getattr(message, "granted", False):
            raise Violation("votes_though_told", f"node {node_id} knows that it has forgotten, and says {message}")
        if isinstance(message, AppendReply) and message.success and message.counts:
            raise Violation("counts_though_told", f"node {node_id} knows that it has forgotten, and says {message}")

    def _check_claim(self, replica: "Replica", message: PreVote | RequestVote) -> None:
        """Check that a candidate speaks of its own log. Its state may be ahead of the log, because it came as a
        snapshot.
        """
        log = replica.log
        if (message.last_term, message.last_index) > (log.last_term, log.last_index):
            raise Violation("claims_more", f"node {replica.node_id} says {message}, its log ends at {log.last_index}")

    def on_receive(self, replica: "Replica", source: int, message: Any) -> None:
        """Record a message before the node looks at it."""
        if not isinstance(message, Vitals | Comparison):  # those have no term
            self._heard[replica.node_id].add(source)
        if isinstance(message, Recall) and replica.is_put_back and message.incarnation == replica.incarnation:
            acked = message.acked_term, message.acked_index
            if acked > replica.durable.last or message.spoken_term > replica.durable.hard_state[0]:
                self._told.add(replica.node_id)
        if isinstance(message, Append):
            self._stickiness.on_append(replica.node_id, message, replica.now_us)
        elif isinstance(message, AppendReply):
            self._answer = _Answer(replica.node_id, source, message.term, replica.raft.replication.acked(source))
        elif isinstance(message, Arrived):
            self._arrived = replica.node_id, source

    def on_leader(self, replica: "Replica") -> None:
        """Record that the node leads since this step."""
        self._was_led = True
        term, log = replica.raft.state.term, replica.log
        members = self._membership.in_force(replica.term_at)
        self._membership.check_leads(replica.node_id, term, members)
        self._safety.election.check_votes(replica.node_id, term, members.voters)
        self._acknowledgements.on_leader(term, log.last_index, lambda index: self._term_in(log, index))

    def after_step(self, replica: "Replica", members: Members) -> None:
        """Check the node's beliefs; `members` are in force by its log."""
        node_id, handlers = replica.node_id, replica.raft
        state = handlers.state
        answer, self._answer = self._answer, None
        self._check_term(replica)
        if answer is not None and answer.told != node_id:
            answer = None  # who was told died of it
        leader_id = state.leader_id
        if leader_id is not None:
            self._safety.election.check_followed(node_id, state.term, leader_id)
        self._check_stood(replica)
        if state.role == LEADER:
            answered_by = None if answer is None else answer.peer
            if self._arrived is not None and self._arrived[0] == node_id:
                answered_by = self._arrived[1]
            peers = members.voters - {node_id}
            self._check_quorum.on_lead(node_id, state.term, peers, answered_by, self._world.now_us)
        self._arrived = None
        if answer is not None:
            self._check_answer(replica, answer)
        if node_id in self._bound_by:
            self._look_at_vote(node_id)

    def _check_term(self, replica: "Replica") -> None:
        """Check that the node's term comes from an election: a node with the latest term of all stands in it, or heard
        it from a node that did.
        """
        state = replica.raft.state
        term = state.term
        if term <= self._term:
            return
        if state.role == FOLLOWER and state.other_voters:
            raise Violation("term", f"node {replica.node_id} is in term {term}, nobody has stood after {self._term}")
        self._term = term

    def _check_stood(self, replica: "Replica") -> None:
        """Check that a leader that stood still for an election timeout leads no more in the first thing it does."""
        node_id, handlers, now_us = replica.node_id, replica.raft, replica.now_us
        state = handlers.state
        leads = state.role == LEADER and handlers.leads_and_knows_all and state.other_voters
        led_term = state.term if leads else 0
        before_us, led_before = self._last_step.get(node_id, (now_us, 0))
        self._last_step[node_id] = now_us, led_term
        stood_us = now_us - before_us
        if led_term and led_term == led_before and stood_us > self._election_timeout_us:
            raise Violation(
                "led_on", f"node {node_id} stood for {stood_us // 1000} ms and leads term {led_term} as if it had not"
            )

    def _check_answer(self, replica: "Replica", answer: _Answer) -> None:
        leader, handlers = replica.node_id, replica.raft
        counted = handlers.replication.acked(answer.peer)
        if not counted:
            return
        if counted > answer.counted_before and answer.term != handlers.state.term:
            raise Violation(
                "stale_acknowledgement",
                f"leader {leader} of term {handlers.state.term} counts what node {answer.peer} told it in term "
                f"{answer.term}",
            )
        durable = self._disks[answer.peer]
        if durable.hard_state[0] > handlers.state.term:
            return  # in a later term it may have cut what it acknowledged, since that was not committed
        knows_disk = replica.incarnation_of(answer.peer) == incarnation(answer.peer, durable.wipes)
        if (
            knows_disk
            and answer.peer in self._bound_by
            and not durable.voter
            and handlers.replication.counted(answer.peer)
        ):
            self._check_new_disk(leader, answer.peer)
        term = self._term_in(replica.log, counted)
        check_counted(leader, answer.peer, counted, term, durable, knows_disk=knows_disk)

    def _check_knows_terms(self, replica: "Replica", match_index: int) -> None:
        """Check that a node with a new disk counts only once it knows every term whose leader its lost disk may have
        voted for.
        """
        node_id = replica.node_id
        heard = {*self._heard[node_id], node_id}
        silent = self._membership.unheard(heard, replica.term_at, match_index, self._safety.committed.knows)
        if silent:
            raise Violation(
                "counted_too_early",
                f"node {node_id} says that its new disk's copy of {match_index} counts, not having heard {silent}",
            )
        self._knows_terms.add(node_id)

    def _check_new_disk(self, leader: int, node_id: int) -> None:
        if node_id not in self._knows_terms:
            raise Violation(
                "counted_too_early",
                f"leader {leader} counts the copy on node {node_id}'s new disk, which has not said that it may",
            )

    def _term_in(self, log: CommitLog, index: int) -> int:
        """Return the term of the entry in that log. Before the log's base, it is the term of the committed entry."""
        if index >= log.base.index:
            return log.term_at(index)
        term = self._safety.committed.term_of(index)
        if term is None:
            raise Violation("removed_uncommitted", f"entry {index} was removed from a log and was never committed")
        return term

    def _look_at_vote(self, node_id: int) -> None:
        """Check the vote of a node with a new disk. It needs the entries committed with its old disk's copy, and must
        know the terms in which that disk may have voted. A copy that was not counted binds nobody.
        """
        if node_id not in self._bound_by or not self._disks[node_id].voter:
            return
        disk, committed = self._disks[node_id], self._safety.committed
        committed.check_rejoined(node_id, self._bound_by.pop(node_id), disk.term_at)
        heard = {*self._heard[node_id], node_id}
        silent = sorted(self._membership.unheard(heard, disk.term_at, disk.last_index, committed.knows))
        if silent:
            raise Violation(
                "rejoined_too_early",
                f"node {node_id} votes again and has not heard {silent}: its old disk may have voted in their terms",
            )
