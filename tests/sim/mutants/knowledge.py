"""A node that ignores the knowledge of others about it: its disk was put back."""

from raft.copies.own_copy import OwnCopy
from raft.knowledge import Knowledge
from raft.messages import Recall
from tests.sim.variant import Swap, mutant


def ignores_what_it_is_told(self: Knowledge, told: Recall, own_term: int, last_term: int, last_index: int) -> str:
    """A node whose disk was put back goes on as if it remembered what it acknowledged."""
    return ""


def remembers_what_is_being_filled(self: OwnCopy) -> tuple[int, int]:
    """A node whose disk was put back takes entries that are sent to it again, and are not durable, for remembered."""
    return self._state.log.last_term, self._state.log.last_index


MUTANTS = (
    mutant(19, Swap(Knowledge, "forgotten", ignores_what_it_is_told)),
    mutant(19, Swap(OwnCopy, "_durable_end", remembers_what_is_being_filled), rare=True, first_seed=8_200_538),
)
