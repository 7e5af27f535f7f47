"""Decides how much of a leader's log must stay for the other nodes."""

from bisect import bisect_left
from collections.abc import Mapping

from store.log.commit_log import CommitLog


def needed_from(log: CommitLog, acked: Mapping[int, int], pinned_from: int | None, retain_behind_bytes: int) -> int:
    """Return the lowest index of this log that other nodes need; the index after the synced entries if they need none.

    `acked` maps the leader's peers to the index they have acknowledged in its term; it is empty on other nodes. A peer
    that lags by more than `retain_behind_bytes` needs nothing, because it is sent a snapshot. A peer without an
    acknowledgement (index 0) may need anything within that distance. `pinned_from` is the first index that stays for
    peers that get or have just got a snapshot.
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
