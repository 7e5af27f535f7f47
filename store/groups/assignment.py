"""The assignment of queues to members: balanced, sticky, and the same on every replica."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

TopicQueue = tuple[str, int]

TOPICS_CACHED: Final = 16
"""Number of topics whose queues are kept for the next rebalance."""


@lru_cache(maxsize=TOPICS_CACHED)
def topic_queues(topic: str, queues: int) -> tuple[TopicQueue, ...]:
    """Return the queues of a topic. Many groups that read it share them."""
    return tuple((topic, queue) for queue in range(queues))


def assign(held: Mapping[str, Sequence[TopicQueue]], queues: Sequence[TopicQueue]) -> dict[str, list[TopicQueue]]:
    """Spread `queues` over the members of `held` so that counts differ by at most one, moving as few queues as
    possible.

    Members keep the queues they hold, up to their share; the larger shares go to the members that hold most. Queues
    that are no longer in `queues` are dropped. The result is sorted and depends on the arguments alone.
    """
    if not held:
        return {}
    wanted = dict.fromkeys(queues)
    if len(held) == 1:
        return {member: sorted(wanted) for member in held}
    is_wanted = wanted.__contains__
    # A member's queues are sorted already, so sorting them again is one pass.
    kept = {member: sorted(filter(is_wanted, queues_of_member)) for member, queues_of_member in held.items()}
    share, larger = divmod(len(wanted), len(held))
    assigned: dict[str, list[TopicQueue]] = {}
    room: dict[str, int] = {}
    for rank, member in enumerate(sorted(kept, key=lambda name: (-len(kept[name]), name))):
        quota = share + (1 if rank < larger else 0)
        assigned[member] = kept[member][:quota]
        room[member] = quota - len(assigned[member])
    for queues_of_member in assigned.values():
        for queue in queues_of_member:
            wanted.pop(queue, None)
    free = sorted(wanted)
    at = 0
    for member in sorted(assigned):
        if room[member]:
            assigned[member] += free[at : at + room[member]]
            assigned[member].sort()
            at += room[member]
    return assigned
