"""Errors of the Raft layer.

RaftError
├── NotLeader          this node is not the leader; leader_id names the leader
├── NoLeader           no leader is known at the moment; retry after a short wait
├── Overloaded         too many bytes are waiting for commit; retry after a short wait
├── NoRoom             no majority has room on its disks; retry when there is some
├── ProposalTooLarge   no log record can hold the command; it must be made smaller
├── FeatureNotEnabled  the command belongs to a feature level above the one in force; raise the level first
├── MembershipRefused  the change of membership cannot be made now; `code` says why
├── UnknownOutcome     proposed, then leadership was lost: it may or may not commit; retry with the same id
├── NodeStopped        the node is stopping or has stopped
└── ProtocolError      a peer sent a message that violates the protocol; the connection is closed, the node goes on

SafetyViolation        no RaftError, so that nobody goes on: the process must stop, and says why
"""


class RaftError(Exception):
    """Base class of every error raised by raft/."""


class NotLeader(RaftError):
    """A command was proposed on a follower; nothing was appended."""

    def __init__(self, leader_id: int) -> None:
        super().__init__(f"node {leader_id} is the leader")
        self.leader_id = leader_id


class NoLeader(RaftError):
    """No leader is known; nothing was appended."""


class Overloaded(RaftError):
    """The bytes waiting for commit are at their limit; nothing was appended."""


class NoRoom(RaftError):
    """No majority of the voters has room on its disks; nothing was appended."""


class ProposalTooLarge(RaftError):
    """No log record can hold the command with its blocks; nothing was appended, and it never can be."""


class MembershipRefused(RaftError):
    """A change of the cluster's membership was refused; nothing was appended."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class FeatureNotEnabled(RaftError):
    """A command needs a feature level above the one in force; nothing was appended."""


class UnknownOutcome(RaftError):
    """The entry was appended, but this node cannot tell whether it will commit."""


class NodeStopped(RaftError):
    """The node no longer takes proposals; nothing was appended."""


class ProtocolError(RaftError):
    """A peer sent a frame or message that no correct peer sends."""


class SafetyViolation(Exception):
    """An invariant of docs/invariants.md does not hold, and going on could lose or fork data: the node stops."""
