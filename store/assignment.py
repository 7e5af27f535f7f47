"""Which member reads which queue: balanced, sticky, and the same on every replica."""

from collections.abc import Mapping, Sequence

TopicQueue = tuple[str, int]


def assign(held: Mapping[str, Sequence[TopicQueue]], queues: Sequence[TopicQueue]) -> dict[str, list[TopicQueue]]:
    """Spread `queues` over the members of `held` so that counts differ by at most one, moving as few as possible.

    Members keep what they hold, up to their share; the larger shares go to those that hold most. Queues that are not in
    `queues` any more are dropped. The result is sorted and depends on the arguments alone.
    """
    if not held:
        return {}
    wanted = set(queues)
    kept = {member: sorted(queue for queue in held[member] if queue in wanted) for member in held}
    share, larger = divmod(len(wanted), len(held))
    assigned: dict[str, list[TopicQueue]] = {}
    room: dict[str, int] = {}
    for rank, member in enumerate(sorted(kept, key=lambda name: (-len(kept[name]), name))):
        quota = share + (1 if rank < larger else 0)
        assigned[member] = kept[member][:quota]
        room[member] = quota - len(assigned[member])
    taken = {queue for queues_of_member in assigned.values() for queue in queues_of_member}
    free = iter(sorted(wanted - taken))
    for member in sorted(assigned):
        for _ in range(room[member]):
            assigned[member].append(next(free))
        assigned[member].sort()
    return assigned
