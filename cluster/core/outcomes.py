"""The outcome of a proposal that was waited for, as an answer to the client."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from raft.errors import Overloaded, UnknownOutcome
from raft.proposals import Applied, Proposed


async def until_settled(futures: Sequence[Proposed], timeout_s: float) -> None:
    """Wait until all proposals have ended, at most `timeout_s`. The last is waited for first: proposals that were made
    together mostly share an entry, and then all have ended.
    """
    now_s = asyncio.get_running_loop().time
    deadline_s = now_s() + timeout_s
    for future in reversed(futures):
        if future.done():
            continue
        left_s = deadline_s - now_s()
        if left_s <= 0:
            return
        await asyncio.wait((future,), timeout=left_s)


async def unless_left(proposed: Proposed, on_left: Callable[[Applied], None]) -> Applied:
    """Return the outcome of a proposal. If the caller is cancelled before, the proposal is withdrawn, or `on_left` gets
    its result once there is one: it may be in the log.
    """
    try:
        return await asyncio.shield(proposed)
    except asyncio.CancelledError:
        if proposed.is_in_log:
            proposed.add_done_callback(lambda done: _tell(done, on_left))
        else:
            proposed.cancel()
        raise


def _tell(done: asyncio.Future[Applied], on_left: Callable[[Applied], None]) -> None:
    if not done.cancelled() and done.exception() is None:
        on_left(done.result())


def outcome_of(future: Proposed, timeout_s: float) -> Applied | Exception:
    """Return the result or the error of a proposal. One that has not ended is withdrawn, because nobody waits for
    it any more: `timeout_s` are over, or the caller is gone.
    """
    if future.cancel() or future.cancelled():
        return late(future, timeout_s)
    error = future.exception()  # retrieved in any case, so that asyncio does not log it
    return future.result() if error is None else cast("Exception", error)


def late(proposed: Proposed, timeout_s: float) -> UnknownOutcome | Overloaded:
    """Return the error of a proposal that took longer than `timeout_s`: its outcome is certain only while it is not in
    the log.
    """
    if proposed.is_in_log:
        return UnknownOutcome(f"not committed within {timeout_s * 1000:.0f} ms")
    return Overloaded(f"waited {timeout_s * 1000:.0f} ms for a place in the log; nothing was stored")
