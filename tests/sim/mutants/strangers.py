"""Broken trust: a node believes every message, whoever sent it."""

import raft.election.election
from raft.election.election import Election
from raft.messages import PreVote
from tests.sim.variant import Swap, mutant

_on_pre_vote = Election.on_pre_vote


def takes_a_question_for_an_election(self: Election, peer: int, request: PreVote) -> None:
    """A node adopts the term of a pre-vote, which changes nothing on its asker's side."""
    if request.term > self._state.term:
        self.hear(request.term)
    _on_pre_vote(self, peer, request)


def adopts_any_term(own: int, told: int) -> None:
    """A node adopts terms that no election can have led to."""


def follows_in_a_term_that_it_led(self: Election) -> None:
    """A node that led a term and stepped down follows whoever claims to lead that term."""


MUTANTS = (
    mutant(21, Swap(Election, "lead", follows_in_a_term_that_it_led), rare=True, first_seed=8_200_364),
    mutant(21, Swap(Election, "on_pre_vote", takes_a_question_for_an_election)),
    mutant(21, Swap(raft.election.election, "check_term", adopts_any_term)),
)
