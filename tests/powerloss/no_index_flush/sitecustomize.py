"""Makes nodes with this directory on their PYTHONPATH remove log segments before the index that replaces them is on
disk.

The harness must notice this.
"""

from store.state.machine import StateMachine


def flush(self: StateMachine) -> int:
    """Claim success and do nothing."""
    return self.applied_index


StateMachine.flush = flush  # type: ignore[method-assign]
