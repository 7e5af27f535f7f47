"""What tells a cluster from another one that its operators gave the same name.

The first leader says it in the no-op that its leadership begins with: the incarnation of its disk, which nobody else
ever has. So the name is in the log, in the state, in every snapshot, in every data directory, and in every handshake.
A name that is cut off with its no-op was none; if two are committed, the first one counts.
"""

from raft.config import RaftConfig
from raft.membership import Membership
from store.state.machine import StateMachine


class ClusterName:
    """Of one node. Loop-only."""

    def __init__(self, config: RaftConfig, state_machine: StateMachine, membership: Membership) -> None:
        self._config = config
        self._state = state_machine
        self._membership = membership

    @property
    def uid(self) -> str:
        """Of this node's cluster, by its log or else its data directory; empty before it knows one."""
        return self._state.cluster_uid or self._config.cluster_uid or self._origin

    def opening(self) -> bytes:
        """What the no-op of this node's leadership says: a name, as long as none is known to be committed."""
        return b"" if self._state.cluster_uid else (self._origin or self._config.incarnation).encode()

    @property
    def _origin(self) -> str:
        """Of a cluster that began as one node, which knows its name at once: on another disk it begins another one."""
        return self._membership.settled.configuration.origin
