"""Refuses a commit of offsets, before it is proposed, when it contradicts itself or the group's offsets."""

from cluster.problems import Problem
from store.commands.groups import CommitOffsets
from store.state.machine import StateMachine


def check_commit(commit: CommitOffsets, state: StateMachine) -> None:
    """Check a commit against itself and the group's offsets.

    Raises Problem `invalid_request` when a queue is named twice, since one of the two offsets would be lost. Raises
    Problem `already_begun` when the commit begins a queue beyond the group's offset in it: the messages in between
    would count as skipped, though the group has yet to read them.
    """
    named: set[tuple[str, int]] = set()
    for item in commit.offsets:
        place = (item.topic, item.queue)
        if place in named:
            raise Problem("invalid_request", f"offsets: queue {item.queue} of {item.topic} is named twice")
        named.add(place)
    if not commit.begins:
        return
    for item in commit.offsets:
        at = state.committed(commit.group, item.topic, item.queue)
        if at is not None and item.offset > at:
            detail = (
                f"group {commit.group} has begun queue {item.queue} of {item.topic}, and is at offset {at}; go on there"
            )
            raise Problem("already_begun", detail, {"topic": item.topic, "queue": item.queue, "committed": at})
