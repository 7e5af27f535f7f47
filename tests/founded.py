"""The membership of nodes that tests start without a store."""

from raft.config import RaftConfig
from raft.membership import Membership, founding, recovered


def founded(config: RaftConfig) -> Membership:
    """Return the membership of a node whose log has no configuration."""
    return recovered(founding(config), None, ())
