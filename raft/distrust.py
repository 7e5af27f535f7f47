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

LOST_ELSEWHERE: Final = (
    "The others went on without it: a disk of theirs was put back to an earlier state, or a majority lost its disks. "
    "Nothing was cut. Keep this node stopped, copy its data directory aside, see with 'keelmqd log dump --data-dir DIR "
    "--from-index {index}' what the others lack, and send that again; then empty the directory and start the node, "
    "which the others fill"
)


def check_term(own: int, told: int) -> None:
    """Raise ProtocolError for a term that no election can have reached: once adopted, it could hardly be raised."""
    if told - own > TERM_LEAP_MAX:
        raise ProtocolError(f"a peer names term {told}, which no election can have reached: this node knows term {own}")


def check_past(term: int, *told: int) -> None:
    """Raise ProtocolError for a term of which a peer tells although its own, `term`, is earlier."""
    if max(told) > term:
        raise ProtocolError(f"a peer tells of term {max(told)}, and its own is {term}")


class Distrust:
    """Counts contradictions of entries that this node knows to be committed. Use it only on the event loop."""

    def __init__(self) -> None:
        self._contradicted = 0

    def contradicted(self, reason: str) -> NoReturn:
        """Raise ProtocolError, which closes the connection; SafetyViolation at call CONTRADICTIONS_MAX."""
        self._contradicted += 1
        if self._contradicted >= CONTRADICTIONS_MAX:
            raise SafetyViolation(reason)
        raise ProtocolError(reason)
