"""Queries on consumer groups. They change nothing."""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from store.commands.groups import GroupPause, QueueOffset
from store.commands.views import GroupOffset, GroupView, Membership, MemberView
from store.errors import GROUP_NOT_FOUND, Refused
from store.groups.given_back import GivingGroup
from store.groups.history import GroupHistory, Passed
from store.groups.known_groups import KnownGroups
from store.groups.leases import Leases
from store.groups.offsets import Offsets
from store.groups.record import Group, assigned_queues, member_view, view_of
from store.messages.sorted_names import SortedNames
from store.messages.topics import Topic, Topics, is_of_group


class GroupQueries:
    def __init__(self, topics: Topics, history: GroupHistory, leases: Leases) -> None:
        self._topics = topics
        self._history = history
        self._leases = leases
        self._groups = KnownGroups()
        self._names = SortedNames()
        self._moved: dict[str, None] = {}
        self._turned: dict[str, None] = {}

    def view(self, name: str) -> GroupView | None:
        group = self._groups.get(name)
        return view_of(group) if group is not None else None

    def __len__(self) -> int:
        return len(self._groups)

    def member_ids(self, name: str) -> Collection[str] | None:
        """Return the ids of the group's members, without a copy; None when the group does not exist."""
        group = self._groups.get(name)
        return group.record.members.keys() if group is not None else None

    def members_count(self) -> int:
        """Return the number of members of all groups together."""
        return sum([len(group.record.members) for group in self._groups.values()])

    def names(self, after: str | None, limit: int) -> list[str]:
        """Return at most `limit` group names after `after`, in order."""
        return self._names.after(after, limit)

    def members(self, name: str) -> list[str]:
        """Return the ids of the group's members; empty when the group does not exist."""
        group = self._groups.get(name)
        return list(group.record.members) if group is not None else []

    def membership(self, name: str, member_id: str) -> Membership | None:
        """Return the state of one member, without visiting the others; None when it is not in the group. Refused
        (`group_not_found`).
        """
        record = self._require(name).record
        member = record.members.get(member_id)
        if member is None:
            return None
        return Membership(record.generation, assigned_queues(member), member.session_timeout_ms, record.pause)

    def rebalance_size(self, name: str, topics: Iterable[str]) -> int:
        """Return the number of members and queues that a rebalance of the group visits, with `topics` in addition to
        its own.
        """
        group = self._groups.get(name)
        members = len(group.record.members) if group is not None else 0
        found = map(self._topics.get, {*topics, *(group.record.topics if group is not None else ())})
        return members + sum(len(topic.ends) for topic in found if topic is not None)

    def widest_subscription(self, topic: str) -> int:
        """Return the number of queues of the group with most queues, among those with members that read the topic; 0 if
        there is none.
        """
        widths = [
            sum(len(found.ends) for found in map(self._topics.get, group.record.topics) if found is not None)
            for group in self._groups.subscribers(topic)
        ]
        return max(widths, default=0)

    def of_topic(self, name: str) -> list[str]:
        """Return the groups that have an offset in the topic, or members that subscribe to it, by name."""
        topic = self._topics.get(name)
        readers = [] if topic is None else self._groups.readers(topic.id)
        return sorted({group.name for group in (*readers, *self._groups.subscribers(name))})

    def readers(self, topic_id: int) -> int:
        """Return the number of groups that have an offset in the topic."""
        return len(self._groups.readers(topic_id))

    def rebalanced_with(self, topic: str) -> int:
        """Return the number of members and queues that a change of the topic's queues visits, in all groups with
        members that read it.
        """
        return sum(self.rebalance_size(group.name, ()) for group in self._groups.subscribers(topic))

    def pause(self, name: str) -> GroupPause | None:
        """Return why the group is handed out nothing; None when it is not paused, or does not exist."""
        group = self._groups.get(name)
        return group.record.pause if group is not None else None

    def paused(self) -> list[tuple[str, int]]:
        """Return the groups that are paused, by name, each with the time since when."""
        pauses = ((name, group.record.pause) for name, group in self._groups.paused.items())
        return sorted((name, pause.since_ms) for name, pause in pauses if pause is not None)

    def take_paused(self) -> tuple[str, ...]:
        """Return the groups that were paused, resumed, or deleted while paused, since the last call."""
        turned = tuple(self._turned)
        self._turned.clear()
        return turned

    def take_moved(self) -> tuple[str, ...]:
        """Return the groups whose generation changed since the last call."""
        moved = tuple(self._moved)
        self._moved.clear()
        return moved

    def head(self, name: str) -> GroupView | None:
        """Return the group without its members; None when it does not exist."""
        group = self._groups.get(name)
        return view_of(group, with_members=False) if group is not None else None

    def members_after(self, name: str, after: str | None, limit: int, queues_max: int) -> list[MemberView]:
        """Return members after `after` in the order of their ids, at most `limit`. The page ends with the member that
        brings the number of assigned queues to `queues_max`. Refused (`group_not_found`).
        """
        members = self._require(name).record.members
        found: list[MemberView] = []
        queues = 0
        for member_id in sorted(each for each in members if after is None or each > after)[:limit]:
            found.append(member_view(member_id, members[member_id]))
            queues += len(members[member_id].assignment)
            if queues >= queues_max:
                break
        return found

    def offsets(self, name: str, topic: str | None = None) -> list[GroupOffset] | None:
        """Return the committed offsets, by topic and queue; None when the group does not exist."""
        return self.offsets_after(name, topic, None, None)

    def offsets_after(
        self, name: str, topic: str | None, after: tuple[str, int] | None, limit: int | None
    ) -> list[GroupOffset] | None:
        """Return the committed offsets of one topic or of all, after the topic and queue `after`, at most `limit`; None
        when the group does not exist. Costs as much as it returns, plus one look per topic.
        """
        if name not in self._groups:
            return None
        return [*islice(self.each_offset(name, topic, after), limit)]

    def each_offset(
        self, name: str, topic: str | None = None, after: tuple[str, int] | None = None
    ) -> Iterator[GroupOffset]:
        """Yield the offsets of `offsets_after`, each as it is when it is asked for: entries may be applied between two
        of them. Topics that the group reads only since then are left out. Refused (`group_not_found`) when the group
        does not exist, or not any more.
        """
        group = self._require(name)
        topics = sorted(
            (each for each in self._read(group, topic) if after is None or each.name >= after[0]),
            key=lambda each: each.name,
        )
        for each in topics:
            first = after[1] + 1 if after is not None and after[0] == each.name else 0
            for queue in sorted(group.offsets.in_topic(each.id)):
                if self._groups.get(name) is not group:
                    raise _no_group(name)
                offset = group.offsets.get((each.id, queue)) if queue >= first else None
                if offset is not None:
                    yield self._offset_of(group, each, queue, offset)

    def _processed(self, group: Group, topic: str | None) -> Iterator[QueueOffset]:
        """Yield the offsets before which the group has processed everything, by topic and queue, without those in
        groups' own topics.
        """
        holds = self._leases.held_by(group.record.id) > 0
        wanted = (each for each in self._read(group, topic) if not is_of_group(each.name))
        for each in sorted(wanted, key=lambda each: each.name):
            for queue, offset in sorted(group.offsets.in_topic(each.id).items()):
                first = self._leases.first_held(group.record.id, each.id, queue) if holds else None
                yield QueueOffset(each.name, queue, offset if first is None else first)

    def _offset_of(self, group: Group, topic: Topic, queue: int, offset: int) -> GroupOffset:
        start, end = topic.starts[queue], topic.ends[queue]
        place = (group.record.id, topic.id, queue)
        held, first_held = self._leases.held(*place), self._leases.first_held(*place)
        first = offset if first_held is None else first_held
        lag = end - max(offset, start) + held
        return GroupOffset(topic.name, queue, offset, end, lag, held, first)

    def passed(self, topic: Topic, queue: int, offset: int) -> Iterator[tuple[str, Passed] | None]:
        """Yield, per group, the commits and resets that moved it over a message or back before it; see
        GroupHistory.passed. Yields None before each group: entries may be applied then.
        """
        for group in sorted(self._groups.readers(topic.id), key=lambda each: each.name):
            yield None
            is_there = self._topics.by_id(topic.id) is topic and self._groups.get(group.name) is group
            is_there = is_there and (topic.id, queue) in group.offsets
            for passed in self._history.passed((group.record.id, topic.id, queue), offset) if is_there else ():
                yield group.name, passed

    def held(self, name: str) -> int:
        """Return the number of messages that the group's pop consumers hold; 0 when the group does not exist."""
        group = self._groups.get(name)
        return self._leases.held_by(group.record.id) if group is not None else 0

    def places(self, name: str) -> Offsets:
        """Return the group's offsets, no copy. Refused (`group_not_found`)."""
        return self._require(name).offsets

    def name_of(self, group_id: int) -> str | None:
        group = self._groups.by_id.get(group_id)
        return group.name if group is not None else None

    def processed(self, name: str, topic: Topic, queue: int) -> int:
        """Return the offset before which everything in the queue is processed; 0 when the group does not exist."""
        group = self._groups.get(name)
        if group is None:
            return 0
        first_held = self._leases.first_held(group.record.id, topic.id, queue)
        offset = group.offsets.get((topic.id, queue), 0)
        return offset if first_held is None else min(offset, first_held)

    def queues_read(self, name: str, topic: str | None) -> int:
        """Return the number of queues of the topic, or of all topics, in which the group has an offset; 0 when either
        does not exist. Looks at that topic alone.
        """
        group = self._groups.get(name)
        if group is None:
            return 0
        return sum(len(group.offsets.in_topic(each.id)) for each in self._read(group, topic))

    def _read(self, group: Group, topic: str | None) -> Iterable[Topic]:
        """Return the topic, or all topics, that the group has read."""
        if topic is None:
            return filter(None, map(self._topics.by_id, group.offsets.topic_ids))
        found = self._topics.get(topic)
        return () if found is None or found.id not in group.offsets.topic_ids else (found,)

    def topics_read(self, name: str) -> list[tuple[str, int]] | None:
        """Return the topics that the group has read, without groups' own, by name, each with the number of queues in
        which it has an offset; None when the group does not exist.
        """
        group = self._groups.get(name)
        if group is None:
            return None
        read = filter(None, map(self._topics.by_id, group.offsets.topic_ids))
        return sorted((each.name, len(group.offsets.in_topic(each.id))) for each in read if not is_of_group(each.name))

    def committed(self, name: str, topic: str, queue: int) -> int | None:
        """Return the group's committed offset in the queue; None when it has none."""
        group, found = self._groups.get(name), self._topics.get(topic)
        return None if group is None or found is None else group.offsets.get((found.id, queue))

    def committed_in(self, name: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets by queue of the topic; none when either does not exist."""
        group, found = self._groups.get(name), self._topics.get(topic)
        return {} if group is None or found is None else {**group.offsets.in_topic(found.id)}

    def known_id(self, name: str) -> int | None:
        """Return the id of the group; None when it does not exist."""
        group = self._groups.get(name)
        return group.record.id if group is not None else None

    def id_of(self, name: str) -> int:
        """Return the id of the group. Refused (`group_not_found`) when it does not exist."""
        return self._require(name).record.id

    def generation(self, name: str) -> int:
        return self._require(name).record.generation

    def giving(self, name: str, client_id: str) -> GivingGroup:
        """Return the settings by which the group gives back messages that `client_id` popped."""
        record = self._require(name).record
        return GivingGroup(record.id, record.retry_max_attempts, record.retry_delays_ms, client_id)

    def _require(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise _no_group(name)
        return group


def _no_group(name: str) -> Refused:
    return Refused(GROUP_NOT_FOUND, f"group {name} does not exist: a member's first join creates it")
