"""Broken ways to handle terms and votes."""

from typing import Any

from raft.copies.new_disk import NewDisk
from raft.copies.rejoin import Rejoin
from raft.election.election import Election
from raft.election.stalls import Stalls
from raft.handlers import SafeRaft
from raft.knowledge import Knowledge
from raft.library import CANDIDATE, LEADER, PinnedSyncObj
from raft.messages import PreVote, RequestVote, VoteReply
from store.log.hard_state import HardState
from tests.sim.mutants.parts import swap_part
from tests.sim.variant import Swap, Variant, mutant


class ForgetsVotes(PinnedSyncObj):
    """The vote is kept in memory only."""

    def set_term(self, term: int, voted_for: int | None) -> None:
        super().set_term(term, None)
        self._SyncObj__votedForNodeId = voted_for


class AsksForVotesBeforeTheTermIsDurable(PinnedSyncObj):
    """A new term and the vote in it are written to disk only after the messages that speak of them have left."""

    def set_term(self, term: int, voted_for: int | None) -> None:
        self._SyncObj__raftCurrentTerm = term
        self._SyncObj__votedForNodeId = voted_for

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        super()._onTick(timeToWait)
        self._journal.setCurrentTerm(self.term, self.voted_for)


class VotesForAnyLog(Election):
    """A candidate's log is compared neither with the voter's nor with what the voter was told is committed."""

    def _at_least_as_complete(self, last_index: int, last_term: int) -> bool:
        return True


def _needs_nothing(self: Knowledge, last_term: int, last_index: int) -> bool:
    return True


class VotesTwice(Election):
    """A second candidate of the same term gets a vote too; the hard state refuses to change a vote."""

    def on_request_vote(self, peer: int, request: RequestVote) -> None:
        if request.term == self._state.term:
            self._library._SyncObj__votedForNodeId = None
        super().on_request_vote(peer, request)


class VotesTwiceUnguarded(VotesTwice):
    """A second candidate of the same term gets a vote too, and the hard state takes what it is given."""


def _check_nothing(state: HardState, term: int, voted_for: int | None) -> None:
    pass


class CountsVotesPerMessage(Election):
    """A vote that the network duplicates is counted twice, as the stock library does."""

    def on_vote_reply(self, peer: int, reply: VoteReply) -> None:
        state = self._state
        if state.role != CANDIDATE or reply.term != state.term or not reply.granted:
            return
        counted = getattr(self, "_counted", (0, 1))
        votes = counted[1] + 1 if counted[0] == state.term else 2
        self._counted: tuple[int, int] = (state.term, votes)
        if votes >= state.majority:
            self._library.become_leader()


class LeadsOnInAHigherTerm(Election):
    """A leader that hears of a higher term takes it for its own and goes on leading."""

    def _adopt_term(self, term: int) -> None:
        if self._state.role == LEADER:
            self._library.set_term(term, None)
        else:
            super()._adopt_term(term)


class VotesAfterWipe(Election):
    """A node whose disk was replaced votes as if it remembered what it acknowledged."""

    def _may_vote(self, *, first_election: bool) -> bool:
        return True


def rejoins_before_catching_up(*_: Any) -> bool:
    """A node whose disk was replaced votes again as soon as it has heard everybody, without what was committed."""
    return True


class RejoinsBeforeHearingEverybody(NewDisk):
    """A node whose disk was replaced votes in a term in which its old disk may have voted."""

    def tick(self) -> None:
        for peer in self._state.peer_ids:
            self._rejoin.heard(peer)
        super().tick()


class LeadsWithoutAQuorum(SafeRaft):
    """A leader that hears from nobody goes on leading."""

    def on_tick(self) -> None:
        state = self.state
        for peer in state.peer_ids if state.role == LEADER else ():
            state.library.heard_from(peer)
        super().on_tick()


class GrantsPreVotesBesideALivingLeader(Election):
    """A node that hears its leader helps another to depose it."""

    def on_pre_vote(self, peer: int, request: PreVote) -> None:
        self._leader_contact = float("-inf")
        super().on_pre_vote(peer, request)


def _part(invariant: int, part: type, *more: Swap, rare: bool = False) -> Variant:
    return mutant(invariant, swap_part(part), *more, rare=rare)


class LeadsOnAfterItStood(Stalls):
    """A leader that stood for longer than an election timeout takes the answers that piled up for fresh ones."""

    def _has_stood_at(self, at_s: float) -> bool:
        return False


MUTANTS = (
    _part(2, ForgetsVotes),
    _part(2, AsksForVotesBeforeTheTermIsDurable),
    _part(1, VotesForAnyLog, Swap(Knowledge, "is_complete", _needs_nothing)),
    _part(2, VotesTwice),
    _part(3, VotesTwiceUnguarded, Swap(HardState, "_check", _check_nothing)),
    _part(3, CountsVotesPerMessage, rare=True),
    _part(3, LeadsOnInAHigherTerm),
    _part(12, VotesAfterWipe),
    mutant(12, Swap(Rejoin, "holds_all", rejoins_before_catching_up)),
    _part(12, RejoinsBeforeHearingEverybody),
    _part(0, LeadsWithoutAQuorum),
    _part(0, LeadsOnAfterItStood),
    _part(0, GrantsPreVotesBesideALivingLeader),
)
