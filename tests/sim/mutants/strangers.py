"""Broken trust: a node believes every message, whoever sent it."""

from typing import NoReturn

import raft.election.election
import raft.messages
from raft.distrust import Distrust
from raft.election.election import Election
from raft.errors import SafetyViolation
from raft.messages import PreVote
from tests.sim.variant import Swap, mutant

_on_pre_vote, _follow = Election.on_pre_vote, Election.follow


def takes_a_question_for_an_election(self: Election, peer: int, request: PreVote) -> None:
    """A node adopts the term of a pre-vote, which changes nothing on its asker's side."""
    if request.term > self._state.term:
        self.hear(request.term)
    _on_pre_vote(self, peer, request)


def adopts_any_term(own: int, told: int) -> None:
    """A node adopts terms that no election can have led to."""


def believes_what_cannot_be(term: int, *told: int) -> None:
    """A node takes over terms that its peer tells of and cannot know."""


def follows_whoever_claims_to_lead(self: Election, leader: int) -> None:
    """A follower of a term's leader follows another node that claims to lead the same term."""
    self._last_leader = 0, 0
    _follow(self, leader)


def ends_at_the_first_contradiction(self: Distrust, reason: str) -> NoReturn:
    """One forged message against a committed entry ends the node."""
    raise SafetyViolation(reason)


def follows_in_a_term_that_it_led(self: Election) -> None:
    """A node that led a term and stepped down follows whoever claims to lead that term."""


MUTANTS = (
    mutant(21, Swap(Election, "lead", follows_in_a_term_that_it_led), rare=True, first_seed=8_200_364),
    mutant(21, Swap(Election, "on_pre_vote", takes_a_question_for_an_election)),
    mutant(21, Swap(raft.election.election, "check_term", adopts_any_term)),
    mutant(21, Swap(raft.messages, "check_past", believes_what_cannot_be)),
    mutant(21, Swap(Election, "follow", follows_whoever_claims_to_lead)),
    mutant(21, Swap(Distrust, "contradicted", ends_at_the_first_contradiction)),
)
