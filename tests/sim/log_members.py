"""The members in force by each node's log. The look into the log is repeated only when what it depends on changes."""

from typing import TYPE_CHECKING, Any

from raft.membership import Configuration

from .checkers.committed_kept import CommittedKept
from .checkers.membership import Members, MembershipModel

if TYPE_CHECKING:
    from .replica import Replica


class LogMembers:
    """Every step of a node asks for its members, and few steps change them."""

    def __init__(self, membership: MembershipModel, committed: CommittedKept) -> None:
        self._membership, self._committed = membership, committed
        self._found: dict[int, tuple[tuple[Any, ...], Members]] = {}  # node -> what its members depend on, and they
        self._agreed: dict[int, tuple[Configuration, Members]] = {}  # node -> what was last found to agree

    def of(self, replica: "Replica") -> Members:
        """Return the members in force by the replica's log, durable or not.

        What follows a cut of the log is appended, and every append asks for the members before it: a log that has the
        same ends again has been asked in between.
        """
        log, node_id = replica.log, replica.node_id
        depends_on = (
            log,
            log.base.index,
            log.last_index,
            replica.machine.applied_index,
            self._membership.record_count,
            self._committed.entry_count,
        )
        found = self._found.get(node_id)
        if found is None or found[0] != depends_on:
            found = self._found[node_id] = depends_on, self._membership.in_force(replica.term_at)
        return found[1]

    def check_agrees(self, node_id: int, configuration: Configuration, members: Members) -> None:
        """Check that the node goes by the members that its log says."""
        agreed = self._agreed.get(node_id)
        if agreed is not None and agreed[0] is configuration and agreed[1] is members:
            return
        voters = configuration.voters
        learners = frozenset(member.node_id for member in configuration.members) - voters
        self._membership.check_in_force(node_id, voters, learners, members)
        self._agreed[node_id] = configuration, members
