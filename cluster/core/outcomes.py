"""The outcome of a proposal that was waited for, as an answer to the client."""

from typing import cast

from raft.errors import Overloaded, UnknownOutcome
from raft.proposals import Applied, Proposed


def outcome_of(future: Proposed, timeout_s: float) -> Applied | Exception:
    """Return the result of a proposal that has ended or was withdrawn after `timeout_s`, or its error."""
    if future.cancelled():
        return late(future, timeout_s)
    error = future.exception()
    return future.result() if error is None else cast("Exception", error)


def late(proposed: Proposed, timeout_s: float) -> UnknownOutcome | Overloaded:
    """Return the error of a proposal that took longer than `timeout_s`: its outcome is certain only while it is not in
    the log.
    """
    if proposed.is_in_log:
        return UnknownOutcome(f"not committed within {timeout_s * 1000:.0f} ms")
    return Overloaded(f"waited {timeout_s * 1000:.0f} ms for a place in the log; nothing was stored")
