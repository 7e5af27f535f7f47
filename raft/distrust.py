"""Reactions to impossible messages: they cost a peer its connection, and stop this node only when it doubts itself.

One forged or garbled message must not stop a node. A leader that repeatedly contradicts this node's log over new
connections is a different case: one of the two nodes has lost data that it should remember.
"""

from typing import Final, NoReturn

from raft.errors import ProtocolError, SafetyViolation

TERM_LEAP_MAX: Final = 1 << 32
"""Limit of a leap: a cluster that held an election every millisecond would take seven weeks to raise its term as far.
"""
CONTRADICTIONS_MAX: Final = 3
"""Number of contradictions of this node's log, each over a connection of its own, at which the node stops."""


def check_term(own: int, told: int) -> None:
    """Raises ProtocolError for a term that no election can have led to: once adopted, it could hardly be raised any
    more.
    """
    if told - own > TERM_LEAP_MAX:
        raise ProtocolError(f"term {told}, and this node knows of term {own}")


class Distrust:
    """Counts contradictions of what this node knows to be committed. Loop-only."""

    def __init__(self) -> None:
        self._contradicted = 0

    def contradicted(self, reason: str) -> NoReturn:
        """Raises ProtocolError, which closes the connection; the last of CONTRADICTIONS_MAX calls raises
        SafetyViolation. @1v Errors of the Raft layer.

        RaftError ├── NotLeader          this node is no leader; leader_id names the leader ├── NoLeader           no
        leader is known at the moment; retry after a short wait ├── Overloaded         too many bytes are waiting for
        commit; retry after a short wait ├── NoRoom             no majority has room on its disks; retry when there is
        some ├── ProposalTooLarge   no log record can hold the command; it must be made smaller ├── FeatureNotEnabled
        the command belongs to a feature level above the one in force; raise the level first ├── MembershipRefused  the
        change of membership cannot be made now; `code` says why ├── UnknownOutcome     proposed, then leadership was
        lost: it may or may not commit; retry with the same id ├── NodeStopped        the node is stopping or has
        stopped ├── ProtocolError      a peer sent a message that violates the protocol; the connection is closed, the
        node goes on └── SafetyViolation    going on could lose or fork data: the process must stop, and says why
        """
        self._contradicted += 1
        if self._contradicted >= CONTRADICTIONS_MAX:
            raise SafetyViolation(reason)
        raise ProtocolError(reason)
