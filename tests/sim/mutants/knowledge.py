"""What a node knows of the others, and they of it, ignored: disks that are put back."""

import raft.node
from raft.handlers import SafeSyncObj
from raft.knowledge import Knowledge
from raft.messages import Recall
from tests.sim.variant import Swap, mutant


class ElectsWhoLacksACommittedEntry(SafeSyncObj):
    """A node votes and stands by its log alone, whatever it was told to be committed."""

    def _may_lead(self) -> bool:
        return True


def _knows_nothing(self: Knowledge, last_term: int, last_index: int) -> bool:
    return True


def ignores_what_it_is_told(self: Knowledge, told: Recall, own_term: int, last_term: int, last_index: int) -> str:
    """A node whose disk was put back goes on as if it remembered what it acknowledged."""
    return ""


MUTANTS = (
    mutant(
        19,
        Swap(raft.node, "SafeSyncObj", ElectsWhoLacksACommittedEntry),
        Swap(Knowledge, "is_complete", _knows_nothing),
        rare=True,
    ),
    mutant(19, Swap(Knowledge, "forgotten", ignores_what_it_is_told), rare=True),
)
