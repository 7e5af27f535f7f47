"""Broken parts of a node's Raft handlers, in place of the real ones."""

import raft.handlers
import raft.node
from tests.sim.variant import Swap


def swap_part(part: type) -> Swap:
    """Put a broken subclass in the place of SafeRaft, or of the part of it that it is a subclass of."""
    base = next(each for each in part.__mro__ if each.__module__.startswith("raft."))
    return Swap(raft.node if hasattr(raft.node, base.__name__) else raft.handlers, base.__name__, part)
