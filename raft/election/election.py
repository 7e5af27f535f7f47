"""Terms and votes: who may lead, and how a node stands for it.

The library runs the election once it is due; this module decides when it is due (pre-vote), grants votes, and counts
them. Rows are those of the table in docs/safe-pysyncobj.md.
"""

import logging
from collections import deque
from collections.abc import Callable

from raft.copies.own_copy import OwnCopy
from raft.distrust import check_term
from raft.election.leadership import Leadership
from raft.election.unsynced import Unsynced
from raft.election.vacancy import Vacancy
from raft.errors import ProtocolError
from raft.library import CANDIDATE, FOLLOWER, LEADER, now
from raft.messages import PreVote, PreVoteReply, RequestVote, TimeoutNow, VoteReply
from raft.sender import Sender
from raft.state import RaftState

log = logging.getLogger(__name__)

FIRST_WAIT_SHARE = 0.3
"""A node that has just started, or stood, waits for a leader for this share of an election timeout."""
RECENT_S = 900.0
"""Changes of leader within this time are frequent or rare."""
RECENT_MAX = 1_000
NEW_DISK = "its disk is new, and waits for a leader to bring it up to date"


class Election:
    """Invariants: at most one vote per term, durable before it is said (row 5); a term is adopted durably before
    anything is answered in it (row 4); no term is raised by a node that a majority would not elect (pre-vote, row 14).

    Loop-only.
    """

    def __init__(
        self,
        state: RaftState,
        sender: Sender,
        own_copy: OwnCopy,
        leadership: Leadership,
        unsynced: Unsynced,
        vacancy: Vacancy,
        on_higher_term: Callable[[], None],
    ) -> None:
        """`on_higher_term()` is called when the node has gone on to a later term, before it follows anybody in it."""
        self._state, self._library = state, state.library
        self._sender = sender
        self._own_copy = own_copy
        self._leadership = leadership
        self._unsynced = unsynced
        self._vacancy = vacancy
        self._on_higher_term = on_higher_term
        self._votes: tuple[int, set[int]] = (0, set())  # the term they were given in, and by whom
        self._pre_votes: set[int] | None = None  # None: no pre-vote under way
        self._standing = False
        self._retired = False
        self.waits_for: tuple[int, int] | None = None
        """Term and index of a committed entry for want of which this node does not stand; None otherwise."""
        self.stood = self.won = 0
        """Elections for which this node has stood, and elections that it has won, since its start."""
        self._won_at_s: deque[float] = deque(maxlen=RECENT_MAX)
        self._last_leader = 0, 0
        """The last term in which this process heard of a leader or led, and that leader. A term has no other."""
        self.on_leader: Callable[[], object] = lambda: None
        """Called when this node begins to follow another leader."""
        self._leader_contact = float("-inf")
        self._running_since = now()
        # Pre-votes are refused while a leader is alive, so asking early disturbs nothing; and after a power cut of all
        # nodes nobody has anything to wait for.
        library = self._library
        library.election_deadline = now() + FIRST_WAIT_SHARE * (library.election_deadline - now())

    # --- who may vote: a node whose disk was wiped has forgotten what it acknowledged ------------------------------

    def _may_vote(self, *, first_election: bool) -> bool:
        """Return whether this node may vote: in the first election every log is blank; afterwards only nodes vote that
        have caught up once.

        A majority that acknowledged an entry and a majority that elects share a node that remembers; a wiped node would
        break that. It gets the log from a leader that the others elected, and votes when raft/copies/new_disk.py says
        so.
        """
        state = self._state
        return state.has_blank_log and state.is_voter if first_election else self._own_copy.votes

    def count(self, role: int) -> None:
        """Note that this node has taken that role."""
        self.stood += role == CANDIDATE
        if role == LEADER:
            self.won += 1
            self._won_at_s.append(now())

    def won_recently(self) -> int:
        """Return how many elections this node has won in the last quarter of an hour, RECENT_MAX at most."""
        since_s = now() - RECENT_S
        return sum(won_at_s >= since_s for won_at_s in self._won_at_s)

    # --- terms and leaders -----------------------------------------------------------------------------------------

    def hear(self, term: int) -> None:
        """Adopt the term of a message, if it is a later one.

        Not to be called for a pre-vote of a later term, which is a question: nothing is adopted from it.
        """
        check_term(self._state.term, term)
        if term > self._state.term:
            self._adopt_term(term)

    def _adopt_term(self, term: int) -> None:
        library = self._library
        library.set_term(term, None)
        self._on_higher_term()
        self._pre_votes = None
        self._standing = False
        library.end_transfer()
        library.step_down()

    def lead(self) -> None:
        """Note that this node leads the present term."""
        self._last_leader = self._state.term, self._state.node_id
        self._vacancy.end()

    def follow(self, leader: int) -> None:
        """Follow `leader`, which has spoken as the leader of the present term. Raises ProtocolError when another node,
        or this one, leads that term, or led it until it fell silent or stepped down.
        """
        library, own = self._library, self._state.node_id
        term, known = (library.term, own) if self._state.role == LEADER else self._last_leader
        if term == library.term and known != leader:
            told = "for which this node was elected" if known == own else f"which node {known} leads"
            raise ProtocolError(f"node {leader} claims to lead term {term}, {told}")
        self._last_leader = library.term, leader
        library.become(FOLLOWER)
        self._pre_votes = None
        self._standing = library.transfer_in_progress
        self.waits_for = None
        self._vacancy.end()
        if library.leader_id != leader:
            log.info("node %d leads term %d", leader, library.term)
            library.set_leader(leader)
            self.on_leader()
        self._leader_contact = now()
        if not library.transfer_in_progress:
            library.postpone_election()

    def hear_from_leader(self) -> None:
        """Put the election off: the leader lives, though no whole message of it has come."""
        self._leader_contact = now()
        self._library.postpone_election()

    def hear_first(self) -> None:
        """Do not stand before the messages that came in while this node stood still are heard."""
        library = self._library
        self._pre_votes, self._standing = None, False
        library.election_deadline = max(
            library.election_deadline, now() + FIRST_WAIT_SHARE * library.conf.raftMinTimeout
        )

    # --- votes -------------------------------------------------------------------------------------------------

    def _at_least_as_complete(self, last_index: int, last_term: int) -> bool:
        """Return whether a candidate's log is as complete as this one, by its last entry (Raft paper 5.4.1): that has a
        later term, or the same term and an index at least as high.
        """
        log = self._state.log
        return (last_term, last_index) >= (log.last_term, log.last_index)

    def on_request_vote(self, peer: int, request: RequestVote) -> None:
        state, library = self._state, self._library
        granted = (
            request.term == state.term
            and state.role != LEADER
            and library.voted_for in (None, peer)
            and self._may_vote(first_election=request.first_election)
            and self._at_least_as_complete(request.last_index, request.last_term)
            and state.knowledge.is_complete(request.last_term, request.last_index)
        )
        if granted:
            state.journal.become_voter()
            library.set_term(state.term, peer)
            library.postpone_election()
        self._sender.send_promise(peer, VoteReply(state.term, granted))

    def on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        state = self._state
        if state.role != CANDIDATE or reply.term != state.term or not reply.granted:
            return
        if self._votes[0] != state.term:
            self._votes = (state.term, {state.node_id})
        self._votes[1].add(peer)
        if state.configuration.has_majority(self._votes[1]):
            self._library.become_leader()

    # --- standing for election ---------------------------------------------------------------------------------

    def tick(self) -> None:
        """Run the library's step, in which this node stands if its election is due and a majority has said that it
        would elect it.
        """
        state, library, election_allowed = self._state, self._library, False
        is_due = state.role != LEADER and library.election_deadline < now()
        if is_due and not library.connected_to_anyone:
            library.set_leader(None)  # whoever led cannot be heard; the election waits for somebody to ask
        elif is_due:
            standing, self._standing = self._standing, False
            if standing and self._may_stand():
                state.journal.become_voter()
                election_allowed = True
            else:
                if standing:
                    library.end_transfer()
                self._ask_for_pre_votes()
        library.tick(election_allowed=election_allowed)

    def _ask_for_pre_votes(self) -> None:
        state = self._state
        self._library.postpone_election()
        self._library.set_leader(None)
        if not state.is_voter:
            return
        first_election = state.has_blank_log
        lacks_entry = self._may_vote(first_election=first_election) and not self._may_lead()
        self.waits_for = state.knowledge.committed if lacks_entry else None
        self._vacancy.note_asked(self._pre_votes)
        self._pre_votes = None
        if self._retired or self.hindrance():
            return
        self._pre_votes = {state.node_id}
        if not state.other_voters:
            self._stand()
            return
        request = PreVote(state.term, state.log.last_index, state.log.last_term, first_election)
        for peer in state.other_voters:
            if state.connected(peer):
                self._sender.send_promise(peer, request)

    def hindrance(self) -> str:
        """Return in words why this voter would not stand for election now; empty if nothing holds it back."""
        state, leadership = self._state, self._leadership
        if self._unsynced.is_overdue():
            return "its disk has not synced for too long"
        if leadership.lets_others_stand_first(max(self._leader_contact, self._running_since)):
            return f"others that are fitter come first: {leadership.own_fitness}"
        if not self._may_vote(first_election=state.has_blank_log):
            differs = "its copy of the data differs from the others"
            return differs if self._own_copy.differs else NEW_DISK
        if not self._may_lead():
            term, index = state.knowledge.committed
            return (
                f"entry {index} of term {term} is committed, and the log here ends at entry {state.log.last_index} of "
                f"term {state.log.last_term}; waiting for a node that has it"
            )
        if state.has_blank_log and (elders := self._vacancy.elders):
            named = ", ".join(map(str, elders))
            return (
                f"{NEW_DISK}. If it is the cluster that is new, the data directories of {named} held another one "
                "before, and have to be emptied"
            )
        return ""

    def _may_stand(self) -> bool:
        """Return whether this node may raise its term and ask for votes: since a majority gave its word, or a leader
        asked for it, this node may have learned that its copy differs or lacks something.
        """
        state = self._state
        may_vote = self._may_vote(first_election=state.has_blank_log)
        return state.is_voter and may_vote and self._may_lead() and not self._retired

    def _may_lead(self) -> bool:
        """Return whether this log has every entry that is known to be committed.

        Nodes that elect this one although it lacks an entry might lack it as well, because a disk was put back.
        """
        state = self._state
        return state.knowledge.is_complete(state.log.last_term, state.log.last_index)

    def on_pre_vote(self, peer: int, request: PreVote) -> None:
        state = self._state
        leader_is_alive = state.role == LEADER or now() - self._leader_contact < self._library.conf.raftMinTimeout
        granted = (
            request.term >= state.term
            and not leader_is_alive
            and self._may_vote(first_election=request.first_election)
            and self._at_least_as_complete(request.last_index, request.last_term)
            and state.knowledge.is_complete(request.last_term, request.last_index)
        )
        self._sender.send(peer, PreVoteReply(state.term, request.term, granted))

    def on_pre_vote_reply(self, peer: int, reply: PreVoteReply) -> None:
        state, pre_votes = self._state, self._pre_votes
        if pre_votes is None or not reply.granted or reply.asked_term != state.term or state.role == LEADER:
            return
        pre_votes.add(peer)
        # With every node's word that its log is blank, nothing can have been acknowledged yet.
        voters = state.configuration.voters
        if pre_votes >= voters if state.has_blank_log else state.configuration.has_majority(pre_votes):
            self._stand()

    def retire(self) -> None:
        """Never stand again, not even when a leader that leaves asks for it: this node is about to leave."""
        self._retired = True

    def on_timeout_now(self, peer: int, message: TimeoutNow) -> None:
        """Stand at once: the leader asks this node to take over."""
        state = self._state
        if self._retired:
            return
        if message.term == state.term and peer == state.leader_id and self._own_copy.votes and self._may_lead():
            self._library.begin_transfer()
            self._stand()

    def _stand(self) -> None:
        """Make the election due; the library's next step raises the term, durably, and asks for votes."""
        self._pre_votes = None
        self._standing = True
        self._library.election_deadline = 0.0

    def ask_for_vote(self, peer: int, term: int, last_index: int, last_term: int) -> None:
        """Ask `peer` for its vote in `term`, in which the library stands."""
        self._sender.send_promise(peer, RequestVote(term, last_index, last_term, self._state.has_blank_log))
