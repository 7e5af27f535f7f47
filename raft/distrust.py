"""What a peer says that cannot be, and what it costs: first the connection, and this node only when it doubts itself.

One forged or garbled message must not stop a node. A leader that goes on saying, over new connections, what contradicts
this node's log is none of that: one of the two has lost what it should remember.
"""

from typing import Final, NoReturn

from raft.errors import ProtocolError, SafetyViolation

TERM_LEAP_MAX: Final = 1 << 32
"""A cluster that held an election every millisecond would take seven weeks to get there."""
CONTRADICTIONS_MAX: Final = 3
"""Times that this node's log is contradicted, each over a connection of its own, before the node stops."""


def check_term(own: int, told: int) -> None:
    """ProtocolError for a term that no election led to: once adopted, it could hardly be raised any more."""
    if told - own > TERM_LEAP_MAX:
        raise ProtocolError(f"term {told}, and this node knows of term {own}")


class Distrust:
    """Counts contradictions of what this node knows to be committed. Loop-only."""

    def __init__(self) -> None:
        self._contradicted = 0

    def contradicted(self, reason: str) -> NoReturn:
        """ProtocolError, which closes the connection; the last of CONTRADICTIONS_MAX times SafetyViolation."""
        self._contradicted += 1
        if self._contradicted >= CONTRADICTIONS_MAX:
            raise SafetyViolation(reason)
        raise ProtocolError(reason)
