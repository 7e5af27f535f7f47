"""Makes nodes with this directory on their PYTHONPATH remove log segments before the index that replaces them is on
disk.

The harness must notice this.
"""

from store.state.machine import StateMachine


def applied_index(self: StateMachine) -> int:
    """Claim that all that is applied is on disk."""
    return self.applied_index


StateMachine.flushed_index = property(applied_index)  # type: ignore[method-assign, assignment]
