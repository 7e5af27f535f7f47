"""One way of assigning queues is enough: the three that RocketMQ users choose from are compared with ours.

Average, circle and consistent hash are those of RocketMQ 5 (AllocateMessageQueueAveragely, …ByCircle, …ConsistentHash
with 10 virtual nodes): members and queues sorted, each member computes its own share from them.
"""

import bisect
import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import md5

import pytest

from store.groups.assignment import TopicQueue, assign

Assignment = dict[str, list[TopicQueue]]
VIRTUAL_NODES = 10


def average(members: Sequence[str], queues: Sequence[TopicQueue]) -> Assignment:
    """Assign each member a run of queues; the first members get one more."""
    share, larger = divmod(len(queues), len(members))
    assigned: Assignment = {}
    begin = 0
    for rank, member in enumerate(sorted(members)):
        end = begin + share + (rank < larger)
        assigned[member] = list(queues[begin:end])
        begin = end
    return assigned


def circle(members: Sequence[str], queues: Sequence[TopicQueue]) -> Assignment:
    """Assign one queue after the other, round and round."""
    return {member: list(queues[rank :: len(members)]) for rank, member in enumerate(sorted(members))}


def consistent_hash(members: Sequence[str], queues: Sequence[TopicQueue]) -> Assignment:
    """Assign each queue to the member whose virtual node follows it on the ring."""
    ring = sorted((_hash(f"{member}-{number}"), member) for member in members for number in range(VIRTUAL_NODES))
    assigned: Assignment = {member: [] for member in members}
    for queue in queues:
        at = bisect.bisect_left(ring, (_hash(f"MessageQueue {queue}"), ""))
        assigned[ring[at % len(ring)][1]].append(queue)
    return assigned


def sticky(
    before: Mapping[str, Sequence[TopicQueue]], members: Sequence[str], queues: Sequence[TopicQueue]
) -> Assignment:
    """Assign as the broker does, which knows the earlier assignment."""
    return assign({member: before.get(member, ()) for member in members}, queues)


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "big")


def spread(assignment: Assignment) -> int:
    """Return how many more queues the busiest member has than the idlest."""
    counts = [len(queues) for queues in assignment.values()]
    return max(counts) - min(counts)


def moved(before: Mapping[str, Sequence[TopicQueue]], after: Assignment) -> int:
    """Count the queues that change hands between members that were there before and after."""
    owners = {queue: member for member, queues in before.items() for queue in queues}
    return sum(
        owners.get(queue) not in (None, member) and owners[queue] in after
        for member, queues in after.items()
        for queue in queues
    )


STRATEGIES: list[Callable[[Sequence[str], Sequence[TopicQueue]], Assignment]] = [average, circle, consistent_hash]
QUEUES = [("orders", number) for number in range(16)] + [("points", number) for number in range(4)]
CHANGES = {
    "a member joins": (5, 6, QUEUES),
    "a member leaves": (6, 5, QUEUES),
    "the topic gets queues": (6, 6, [*QUEUES, *(("orders", number) for number in range(16, 24))]),
    "more members than queues": (20, 24, QUEUES),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("change", CHANGES)
def test_sticky_is_as_balanced_as_each_of_rocketmqs_and_moves_no_more(
    strategy: Callable[[Sequence[str], Sequence[TopicQueue]], Assignment], change: str
) -> None:
    old_count, new_count, queues = CHANGES[change]
    old, new = ([f"member-{number:02}" for number in range(count)] for count in (old_count, new_count))
    theirs_before = strategy(old, QUEUES)
    theirs = strategy(new, sorted(queues))
    # From where their strategy put everything, so that what differs is the step alone.
    ours_before = sticky(theirs_before, old, QUEUES)
    ours = sticky(ours_before, new, queues)
    assert sorted(queue for assigned in ours.values() for queue in assigned) == sorted(queues)
    assert spread(ours) <= 1
    assert spread(ours) <= spread(theirs)
    if spread(theirs_before) <= 1 and spread(theirs) <= 1:  # what is not balanced has no balance to keep
        assert moved(ours_before, ours) <= moved(theirs_before, theirs)


def test_the_figures_of_the_page() -> None:
    """Compare the documented figures for 20 queues when a sixth member comes to five: the queues that move between the
    members that stay, and the spread.
    """
    old, new = ([f"member-{number:02}" for number in range(count)] for count in (5, 6))
    figures = {}
    for strategy in STRATEGIES:
        before, after = strategy(old, QUEUES), strategy(new, QUEUES)
        to_others = sum(
            len(set(queues) - set(before.get(member, ()))) for member, queues in after.items() if member in old
        )
        figures[strategy.__name__] = (to_others, spread(after))
    before = sticky({}, old, QUEUES)
    after = sticky(before, new, QUEUES)
    figures["sticky"] = (
        sum(len(set(queues) - set(before.get(member, ()))) for member, queues in after.items() if member in old),
        spread(after),
    )
    assert figures == {"average": (3, 1), "circle": (12, 1), "consistent_hash": (0, 5), "sticky": (0, 1)}


def as_it_was(held: Mapping[str, Sequence[TopicQueue]], queues: Sequence[TopicQueue]) -> Assignment:
    """Assign with the first version of our algorithm: logs replay by it."""
    wanted = set(queues)
    kept = {member: sorted(queue for queue in held[member] if queue in wanted) for member in held}
    share, larger = divmod(len(wanted), len(held))
    assigned: Assignment = {}
    for rank, member in enumerate(sorted(kept, key=lambda name: (-len(kept[name]), name))):
        assigned[member] = kept[member][: share + (rank < larger)]
    room = {
        member: share + (rank < larger) - len(assigned[member])
        for rank, member in enumerate(sorted(kept, key=lambda name: (-len(kept[name]), name)))
    }
    free = iter(sorted(wanted.difference(*assigned.values())))
    return {
        member: sorted([*assigned[member], *(next(free) for _ in range(room[member]))]) for member in sorted(assigned)
    }


def test_whatever_was_held_before_the_outcome_is_what_it_always_was() -> None:
    random.seed(11)
    for _ in range(500):
        topics = random.sample("abcdefgh", random.randrange(1, 6))
        queues = [(topic, queue) for topic in sorted(topics) for queue in range(random.randrange(0, 9))]
        held: Assignment = {f"m{number}": [] for number in random.sample(range(12), random.randrange(1, 7))}
        for topic in "abcdefghi":
            for queue in range(10):
                if random.random() < 0.5:
                    random.choice(list(held.values())).append((topic, queue))
        assert assign(held, queues) == as_it_was(held, queues)
