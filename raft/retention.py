"""How much of a leader's log the other nodes hold up."""

from bisect import bisect_left
from collections.abc import Mapping

from store.log.commit_log import CommitLog


def needed_from(log: CommitLog, acked: Mapping[int, int], pinned_from: int | None, retain_behind_bytes: int) -> int:
    """The lowest index that other nodes need of this log; the one behind what is synced when they need none.

    `acked` are the leader's peers and what they have acknowledged in its term; empty on other nodes. A peer that lags
    by more than `retain_behind_bytes` needs nothing: it will be sent a snapshot. One that was not heard yet may need
    anything within that. `pinned_from` stays for those who have just got one.
    """
    needed = [log.synced_index + 1]  # a log that follows a snapshot may be behind what is applied
    if pinned_from is not None:
        needed.append(pinned_from)
    horizon = log.end_position - retain_behind_bytes
    for index in acked.values():
        if index >= log.last_index:
            continue
        if not index:
            indexes = range(log.first_index, log.last_index + 1)
            needed.append(log.first_index + bisect_left(indexes, horizon, key=log.position_of))
        elif index >= log.base.index and log.position_of(index + 1) >= horizon:
            needed.append(index + 1)
    return max(min(needed), log.first_index)
