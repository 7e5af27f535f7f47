"""Broken ways to decide who should lead."""

from cluster.health.leadership_guard import LeadershipGuard
from raft.election.leadership import Leadership
from tests.sim.variant import Swap, mutant


async def keeps_leading_with_a_full_disk(guard: LeadershipGuard) -> None:
    """A leader whose disk is full refuses writes, and hands over to nobody."""


def takes_everybody_for_as_fit(leadership: Leadership) -> int | None:
    """Nobody is ever fitter than the leader."""
    return None


MUTANTS = (
    mutant(0, Swap(LeadershipGuard, "look", keeps_leading_with_a_full_disk)),
    mutant(0, Swap(Leadership, "successor", takes_everybody_for_as_fit)),
)
