"""On PYTHONPATH, this makes nodes remove segments of their log though the index that stands for them is not on disk.

The harness must notice.
"""

from store.state.machine import StateMachine


def flush(self: StateMachine) -> int:
    """Claims success and does nothing."""
    return self.applied_index


StateMachine.flush = flush  # type: ignore[method-assign]
