"""The name that distinguishes a cluster from another one to which operators gave the same `cluster_id`.

The first leader writes the name, the incarnation of its disk, into the no-op that begins its leadership; no other disk
ever has that incarnation. So the name is in the log, in the state, in every snapshot, in every data directory, and in
every handshake. A name that is cut off with its no-op never existed; if two names are committed, the first one counts.
"""

from raft.config import RaftConfig
from raft.membership import Membership
from store.state.machine import StateMachine


class ClusterName:
    """Knows the name of one node's cluster. Use it only on the event loop."""

    def __init__(self, config: RaftConfig, state_machine: StateMachine, membership: Membership) -> None:
        self._config = config
        self._state = state_machine
        self._membership = membership

    @property
    def uid(self) -> str:
        """Name of this node's cluster from its state, its data directory or its founding; empty before it knows one."""
        return self._state.cluster_uid or self._config.cluster_uid or self._origin

    def opening(self) -> bytes:
        """Return the payload of the no-op that begins this node's leadership: a name while no name is known to be
        committed.
        """
        return b"" if self._state.cluster_uid else (self._origin or self._config.incarnation).encode()

    @property
    def _origin(self) -> str:
        """The name of a cluster that began as one node, which knows its name at once: on another disk another one
        begins.
        """
        return self._membership.settled.configuration.origin
