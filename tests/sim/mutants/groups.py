"""Broken ways to manage consumer groups and their offsets."""

import store.groups.groups
from store.commands.groups import CommitOffsets, OffsetsCommitted
from store.errors import Refused
from store.groups.groups import Groups
from store.groups.record import Group, Member, require_member
from store.index import keys
from store.messages.placement import At
from tests.sim.variant import Swap, mutant

_commit, _store = Groups.commit, Groups._store


def lets_offsets_move_back(groups: Groups, command: CommitOffsets, at: At) -> OffsetsCommitted:
    """A commit of a lower offset than the committed one is accepted."""
    group = groups._groups.get(command.group)
    if group is not None and command.member_id is None:
        for item in command.offsets:
            topic = groups._topics.require(item.topic)
            if (topic.id, item.queue) in group.offsets:
                group.offsets[topic.id, item.queue] = 0
    return _commit(groups, command, at)


def refuses_a_commit_and_keeps_it(groups: Groups, command: CommitOffsets, at: At) -> OffsetsCommitted:
    """A refused commit has moved the offsets."""
    try:
        return _commit(groups, command, at)
    except Refused:
        group = groups._groups.get(command.group)
        if group is not None and command.member_id is None:
            changes = [(groups._topics.require(item.topic), item.queue, item.offset) for item in command.offsets]
            groups._set_offsets(group, changes)
        raise


def accepts_a_stale_generation(group: Group, member_id: str, generation: int | None) -> Member:
    """A member commits with the generation of an assignment that it has lost."""
    return require_member(group, member_id)


def forgets_members_at_a_restart(groups: Groups, group: Group) -> None:
    """Members, assignment and generation are in memory only: on the disk a group stays as it was made."""
    if groups._index.get(keys.group(group.name)) is None:
        _store(groups, group)


def forgets_offsets_at_a_restart(groups: Groups, group: Group, changes: object) -> None:
    """Committed offsets are in memory only."""
    for topic, queue, offset in changes:  # type: ignore[attr-defined]
        group.offsets[topic.id, queue] = offset


MUTANTS = (
    mutant(7, Swap(Groups, "commit", lets_offsets_move_back)),
    mutant(11, Swap(Groups, "commit", refuses_a_commit_and_keeps_it)),
    mutant(7, Swap(store.groups.groups, "fenced_member", accepts_a_stale_generation)),
    mutant(8, Swap(Groups, "_store", forgets_members_at_a_restart)),
    mutant(7, Swap(Groups, "_set_offsets", forgets_offsets_at_a_restart)),
)
