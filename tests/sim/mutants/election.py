"""Terms and votes, broken."""

from typing import Any

import raft.node
from raft.handlers import SafeSyncObj
from raft.knowledge import Knowledge
from raft.library import CANDIDATE, LEADER
from raft.messages import PreVote, RequestVote, VoteReply
from raft.rejoin import Rejoin
from store.log.hard_state import HardState
from tests.sim.variant import Swap, Variant, mutant


class ForgetsVotes(SafeSyncObj):
    """The vote is kept in memory only."""

    def set_term(self, term: int, voted_for: int | None) -> None:
        super().set_term(term, None)
        self._SyncObj__votedForNodeId = voted_for


class AsksForVotesBeforeTheTermIsDurable(SafeSyncObj):
    """A new term and the vote in it are written to disk only after the messages that speak of them have left."""

    def set_term(self, term: int, voted_for: int | None) -> None:
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        super()._onTick(timeToWait)
        self.journal.setCurrentTerm(self.term, self.voted_for)


class VotesForAnyLog(SafeSyncObj):
    """A candidate's log is compared neither with the voter's nor with what the voter was told is committed."""

    def _at_least_as_complete(self, last_index: int, last_term: int) -> bool:
        return True


def _needs_nothing(self: Knowledge, last_term: int, last_index: int) -> bool:
    return True


class VotesTwice(SafeSyncObj):
    """A second candidate of the same term gets a vote too; the hard state refuses to change a vote."""

    def _on_request_vote(self, peer: int, request: RequestVote) -> None:
        if request.term == self.term:
            self._SyncObj__votedForNodeId = None
        super()._on_request_vote(peer, request)


class VotesTwiceUnguarded(VotesTwice):
    """A second candidate of the same term gets a vote too, and the hard state takes what it is given."""


def _check_nothing(state: HardState, term: int, voted_for: int | None) -> None:
    pass


class CountsVotesPerMessage(SafeSyncObj):
    """A vote that the network duplicates is counted twice, as the stock library does."""

    def _on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        if self.role != CANDIDATE or reply.term != self.term or not reply.granted:
            return
        counted = getattr(self, "_counted", (0, 1))
        votes = counted[1] + 1 if counted[0] == self.term else 2
        self._counted: tuple[int, int] = (self.term, votes)
        if votes >= self.majority:
            self.become_leader()


class LeadsOnInAHigherTerm(SafeSyncObj):
    """A leader that hears of a higher term takes it for its own and goes on leading."""

    def _adopt_term(self, term: int) -> None:
        if self.role == LEADER:
            self.set_term(term, None)
        else:
            super()._adopt_term(term)


class VotesAfterWipe(SafeSyncObj):
    """A node whose disk was replaced votes as if it remembered what it acknowledged."""

    def _may_vote(self, *, first_election: bool) -> bool:
        return True


def rejoins_before_catching_up(*_: Any) -> bool:
    """A node whose disk was replaced votes again as soon as it has heard everybody, without what was committed."""
    return True


class RejoinsBeforeHearingEverybody(SafeSyncObj):
    """A node whose disk was replaced votes in a term in which its old disk may have voted."""

    def _vote_again(self) -> None:
        for peer in self.peer_ids:
            self._rejoin.heard(peer)
        super()._vote_again()


class LeadsWithoutAQuorum(SafeSyncObj):
    """A leader that hears from nobody goes on leading."""

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        for peer in self.peer_ids if self.role == LEADER else ():
            self.heard_from(peer)
        super()._onTick(timeToWait)


class GrantsPreVotesBesideALivingLeader(SafeSyncObj):
    """A node that hears its leader helps another to depose it."""

    def _on_pre_vote(self, peer: int, request: PreVote) -> None:
        self._leader_contact = float("-inf")
        super()._on_pre_vote(peer, request)


def _handlers(invariant: int, part: type[SafeSyncObj], *more: Swap, rare: bool = False) -> Variant:
    return mutant(invariant, Swap(raft.node, "SafeSyncObj", part), *more, rare=rare)


class LeadsOnAfterItStood(SafeSyncObj):
    """A leader that stood for longer than an election timeout takes the answers that piled up for fresh ones."""

    has_stood = False


MUTANTS = (
    _handlers(2, ForgetsVotes),
    _handlers(2, AsksForVotesBeforeTheTermIsDurable),
    _handlers(1, VotesForAnyLog, Swap(Knowledge, "is_complete", _needs_nothing)),
    _handlers(2, VotesTwice),
    _handlers(3, VotesTwiceUnguarded, Swap(HardState, "_check", _check_nothing)),
    _handlers(3, CountsVotesPerMessage, rare=True),
    _handlers(3, LeadsOnInAHigherTerm),
    _handlers(12, VotesAfterWipe),
    mutant(12, Swap(Rejoin, "holds_all", rejoins_before_catching_up)),
    _handlers(12, RejoinsBeforeHearingEverybody),
    _handlers(0, LeadsWithoutAQuorum),
    _handlers(0, LeadsOnAfterItStood),
    _handlers(0, GrantsPreVotesBesideALivingLeader),
)
