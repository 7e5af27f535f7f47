"""The outcome of a proposal that was waited for, as an answer to the client."""

from typing import cast

from raft.errors import Overloaded, UnknownOutcome
from raft.proposals import Applied, Proposed


def outcome_of(future: Proposed, timeout_s: float) -> Applied | Exception:
    if future.cancelled():
        return late(future, timeout_s)
    error = future.exception()
    return future.result() if error is None else cast("Exception", error)


def late(proposed: Proposed, timeout_s: float) -> UnknownOutcome | Overloaded:
    if proposed.is_in_log:
        return UnknownOutcome(f"not committed within {timeout_s * 1000:.0f} ms")
    return Overloaded(f"waited {timeout_s * 1000:.0f} ms for a place in the log; nothing was stored")
