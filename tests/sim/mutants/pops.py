"""Broken ways to pop messages, and to delete groups."""

from collections.abc import Collection, Container, Iterator, Sequence

import msgspec

from store.commands.groups import GivenBack, GroupPause
from store.commands.pops import AckPopped, ExpirePopped, PopPick, PopsAcked, PopsExpired
from store.groups.given_back import GivingGroup, Mark
from store.groups.groups import Groups
from store.groups.leases import Lease, LeaseKey, Leases
from store.groups.pops import Pops, _Taken
from store.groups.queries import GroupQueries
from store.groups.record import Group
from store.groups.redelivery import Redeliveries
from store.index.index import Index
from store.messages.placement import At
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX, Topic, Topics
from tests.sim.variant import Swap, mutant

_popped, _due, _find, _give_back_popped = Groups.popped, Leases.due, Leases.find, Redeliveries.give_back_popped
_take_picked, _shrink, _init = Pops._take_picked, Pops._shrink, Leases.__init__
_take, _remove, _remove_topic, _store = Pops._take, Groups.remove, Topics.remove, Groups._store


def hands_out_again(groups: Groups, group: Group, topic: Topic, queue: int, offset: int, commits: object) -> None:
    """A pop hands messages out and does not move the group past them."""


def passes_a_message_by(
    groups: Groups, group: Group, topic: Topic, queue: int, offset: int, commits: tuple[bytes, bytes]
) -> None:
    """A pop moves the group past one message more than it hands out."""
    _popped(groups, group, topic, queue, min(offset + 1, topic.ends[queue]), commits)


def loses_what_nobody_acknowledged(pops: Pops, command: ExpirePopped, at: At) -> PopsExpired:
    """A lease that is over is removed, and its messages with it."""
    due = list(pops._leases.due(at.clock_ms))
    for key, lease in due:
        pops._leases.remove(key, lease)
    return PopsExpired((), 0, 0, len(due))


def takes_messages_away_early(leases: Leases, until_ms: int) -> Iterator[tuple[LeaseKey, Lease]]:
    """Leases that have time left are over as soon as another lease is."""
    return _due(leases, until_ms + 3_600_000)


def takes_any_acknowledgement(pops: Pops, command: AckPopped, at: At) -> PopsAcked:
    """Nobody is told that the time of a handle is over."""
    for handle in command.handles:
        group_id = pops._groups.id_of(command.group)
        found = pops._leases.find(group_id, *msgspec.structs.astuple(handle))
        if found is not None:
            pops._ack(command.group, *found, [handle.offset], at)
    return PopsAcked(command.group, tuple("acked" for _ in command.handles))


def forgets_an_acknowledgement(pops: Pops, group: str, key: LeaseKey, lease: Lease, offsets: list[int], at: At) -> None:
    """An acknowledged message is held as before."""


def goes_by_the_entry_alone(leases: Leases, group_id: int, raft_index: int, number: int, offset: int) -> object:
    """A handle is good for whatever the same entry handed out first."""
    return _find(leases, group_id, raft_index, 0, offset)


def forgets_acknowledgements_with_their_lease(
    pops: Pops, key: LeaseKey, lease: Lease, without: Collection[int], at: At
) -> None:
    """The acknowledgements of a lease are forgotten when it holds no more messages."""
    _shrink(
        pops, key, lease if set(lease.held) - set(without) else msgspec.structs.replace(lease, acked=()), without, at
    )


def gives_no_more_time(pops: Pops, key: LeaseKey, lease: Lease, offset: int, due_ms: int, at: At) -> None:
    """A consumer that extends its lease is told so, and has only the time that was left."""


def gives_back_two_times(
    redeliveries: Redeliveries, group: str, giving: GivingGroup, item: GivenBack, at: At
) -> Mark | None:
    """A message that was not acknowledged comes again twice."""
    _give_back_popped(redeliveries, group, giving, item, at)
    return _give_back_popped(redeliveries, group, giving, item, at)


def lets_members_in(groups: Groups, group: Group) -> None:
    """A group takes members, is committed for and deleted while its messages are out."""


def forgets_what_is_held_at_a_restart(leases: Leases, index: Index) -> None:
    """The number of messages that are out is counted from the start of the process."""
    _init(leases, index)
    leases._held.clear()
    leases._of_group.clear()


def forgets_leases_at_a_restart(leases: Leases, index: Index) -> None:
    """Leases are in memory only: a node that starts holds no message for anybody."""
    _init(leases, index)
    for key, lease in list(_due(leases, 1 << 60)):
        leases.remove(key, lease)


def picks_what_others_have(
    pops: Pops, group: Group, topic: Topic, queue: int, picks: Sequence[PopPick], taken: _Taken
) -> tuple[tuple[int, ...], int]:
    """Messages that a filter found are handed out, also when others have popped there since it looked."""
    begin = group.offsets[topic.id, queue]
    moved = tuple(
        msgspec.structs.replace(each, begin=begin, end=max(begin, each.end)) if each.queue == queue else each
        for each in picks
    )
    return _take_picked(pops, group, topic, queue, moved, taken)


def picks_what_is_gone(
    pops: Pops, group: Group, topic: Topic, queue: int, picks: Sequence[PopPick], taken: _Taken
) -> tuple[tuple[int, ...], int]:
    """Messages that a filter found are handed out, also when retention has removed them since."""
    starts, topic.starts = topic.starts, [0] * len(topic.starts)
    offsets, end = _take_picked(pops, group, topic, queue, picks, taken)
    topic.starts = starts
    return offsets, end


def begins_before_what_is_kept(
    pops: Pops, group: Group, topic: Topic, queue: int, taken: _Taken
) -> tuple[tuple[int, ...], int]:
    """A pop goes on where the group is, also when the messages there are gone."""
    offsets, end = _take(pops, group, topic, queue, taken)
    gone = range(group.offsets[topic.id, queue], topic.starts[queue])
    return (*gone, *offsets), end


def loses_what_is_out_once_older_messages_are_gone(
    redeliveries: Redeliveries, group: str, giving: GivingGroup, item: GivenBack, at: At
) -> Mark | None:
    """A message that is given back counts as gone if its queue has lost its first messages."""
    topic = redeliveries._topics.get(item.topic)
    if topic is not None and topic.starts[item.queue]:
        return None
    return _give_back_popped(redeliveries, group, giving, item, at)


def leaves_handles_behind(
    leases: Leases, group_id: int, topic_id: int | None = None, queues: Container[int] | None = None
) -> None:
    """A reset leaves messages with those who popped them, and hands them out once more."""


def deletes_a_group_that_is_used(groups: Groups, name: str) -> int:
    """Members, or messages that are out, do not keep a group from being deleted."""
    group = groups._require(name)
    group.record.members.clear()
    groups._leases.revoke(group.record.id)
    return _remove(groups, name)


def keeps_the_retries_of_a_deleted_group(topics: Topics, topic: Topic) -> None:
    """A group is deleted, and its own topics stay."""
    if not topic.name.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        _remove_topic(topics, topic)


def hands_out_to_a_paused_group(groups: GroupQueries, name: str) -> GroupPause | None:
    """A paused group still gets messages."""
    return None


def forgets_pauses_at_a_restart(groups: Groups, group: Group) -> None:
    """A pause is in memory only: a node that starts hands out messages to all groups."""
    _store(groups, Group(group.name, msgspec.structs.replace(group.record, pause=None)))


MUTANTS = (
    mutant(17, Swap(GroupQueries, "pause", hands_out_to_a_paused_group)),
    mutant(17, Swap(Groups, "_store", forgets_pauses_at_a_restart)),
    mutant(17, Swap(Groups, "remove", deletes_a_group_that_is_used)),
    mutant(17, Swap(Topics, "remove", keeps_the_retries_of_a_deleted_group)),
    mutant(17, Swap(Groups, "popped", hands_out_again)),
    mutant(17, Swap(Groups, "popped", passes_a_message_by)),
    mutant(17, Swap(Pops, "expire", loses_what_nobody_acknowledged)),
    mutant(17, Swap(Leases, "due", takes_messages_away_early)),
    mutant(17, Swap(Pops, "ack", takes_any_acknowledgement)),
    mutant(17, Swap(Pops, "_ack", forgets_an_acknowledgement)),
    mutant(17, Swap(Leases, "find", goes_by_the_entry_alone)),
    mutant(17, Swap(Pops, "_shrink", forgets_acknowledgements_with_their_lease)),
    mutant(17, Swap(Pops, "_extend", gives_no_more_time)),
    mutant(17, Swap(Redeliveries, "give_back_popped", gives_back_two_times)),
    mutant(17, Swap(Groups, "_refuse_popped", lets_members_in)),
    mutant(17, Swap(Leases, "__init__", forgets_what_is_held_at_a_restart)),
    mutant(17, Swap(Leases, "__init__", forgets_leases_at_a_restart)),
    mutant(17, Swap(Pops, "_take_picked", picks_what_others_have), rare=True),
    mutant(17, Swap(Pops, "_take_picked", picks_what_is_gone), rare=True),
    mutant(17, Swap(Pops, "_take", begins_before_what_is_kept)),
    mutant(17, Swap(Redeliveries, "give_back_popped", loses_what_is_out_once_older_messages_are_gone)),
    mutant(17, Swap(Leases, "revoke", leaves_handles_behind)),
)
