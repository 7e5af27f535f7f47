"""A commit of offsets is refused before it is proposed where its request contradicts itself, or the group."""

from cluster.problems import Problem
from store.commands.groups import CommitOffsets
from store.state.machine import StateMachine


def check_commit(commit: CommitOffsets, state: StateMachine) -> None:
    """Raises Problem: `invalid_request` for a queue that is named twice, since one of the two offsets would be lost;
    `already_begun` when the group was to begin at an offset of a queue in which it is at a smaller one: the messages
    between would count as skipped, though the group was to read them."""
    named: set[tuple[str, int]] = set()
    for item in commit.offsets:
        place = (item.topic, item.queue)
        if place in named:
            raise Problem("invalid_request", f"offsets: queue {item.queue} of {item.topic} is named twice")
        named.add(place)
    if not commit.begins:
        return
    committed = {(each.topic, each.queue): each.offset for each in state.offsets(commit.group) or []}
    for item in commit.offsets:
        at = committed.get((item.topic, item.queue))
        if at is not None and item.offset > at:
            detail = f"group {commit.group} has begun queue {item.queue} of {item.topic}, and is at offset {at}"
            raise Problem("already_begun", detail, {"topic": item.topic, "queue": item.queue, "committed": at})
