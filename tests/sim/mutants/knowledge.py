"""A node that ignores the knowledge of others about it: its disk was put back."""

from raft.knowledge import Knowledge
from raft.messages import Recall
from tests.sim.variant import Swap, mutant


def ignores_what_it_is_told(self: Knowledge, told: Recall, own_term: int, last_term: int, last_index: int) -> str:
    """A node whose disk was put back goes on as if it remembered what it acknowledged."""
    return ""


MUTANTS = (mutant(19, Swap(Knowledge, "forgotten", ignores_what_it_is_told)),)
