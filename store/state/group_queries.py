"""Queries on the consumer groups of the applied state. They change nothing."""

from collections.abc import Collection, Iterable, Iterator

from store.commands.groups import GroupPause
from store.commands.views import GroupOffset, GroupView, Membership, MemberView
from store.groups.given_back import REPLAYED
from store.groups.pops import Pops
from store.messages.topics import DLQ_PREFIX
from store.state.tables import Tables


class QueriesOnGroups:
    def __init__(self, tables: Tables, pops: Pops) -> None:
        self._topics = tables.topics
        self._groups = tables.groups
        self._marks = tables.marks
        self._pops = pops

    def group(self, name: str) -> GroupView | None:
        return self._groups.view(name)

    @property
    def groups_count(self) -> int:
        return len(self._groups)

    @property
    def members_count(self) -> int:
        """Number of members of all groups together; visits each group."""
        return self._groups.members_count()

    def member_ids(self, name: str) -> Collection[str] | None:
        """Return the ids of the group's members, without a copy; None when the group does not exist."""
        return self._groups.member_ids(name)

    def group_names(self, after: str | None, limit: int) -> list[str]:
        """Return at most `limit` group names after `after`, in order."""
        return self._groups.names(after, limit)

    def group_members(self, name: str) -> list[str]:
        """Return the ids of the group's members; empty when the group does not exist."""
        return self._groups.members(name)

    def membership(self, group: str, member_id: str) -> Membership | None:
        """Return the state of one member; None when it is not in the group. Refused (`group_not_found`)."""
        return self._groups.membership(group, member_id)

    def generation(self, group: str) -> int:
        """Return the group's generation. Refused (`group_not_found`)."""
        return self._groups.generation(group)

    def rebalance_size(self, group: str, topics: Iterable[str] = ()) -> int:
        """Return the number of members and queues that a join or leave visits, with `topics` in addition to the group's
        own.
        """
        return self._groups.rebalance_size(group, topics)

    def widest_subscription(self, topic: str) -> int:
        """Return the number of queues of the group with most queues, among those with members that read the topic."""
        return self._groups.widest_subscription(topic)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have an offset in the topic, or members that subscribe to it, by name."""
        return self._groups.of_topic(topic)

    def readers(self, topic: str) -> int:
        """Return the number of groups that have an offset in the topic; 0 when there is no such topic."""
        found = self._topics.get(topic)
        return 0 if found is None else self._groups.readers(found.id)

    def rebalanced_with(self, topic: str) -> int:
        """Return the number of members and queues that a change of the topic's queues visits, in all groups with
        members that read it.
        """
        return self._groups.rebalanced_with(topic)

    def take_moved_groups(self) -> tuple[str, ...]:
        """Return the groups whose generation changed since the last call; for members that wait for a change."""
        return self._groups.take_moved()

    def group_pause(self, group: str) -> GroupPause | None:
        """Return why the group is handed out nothing; None when it is not paused, or does not exist."""
        return self._groups.pause(group)

    def paused_groups(self) -> list[tuple[str, int]]:
        """Return the groups that are paused, by name, each with the time since when."""
        return self._groups.paused()

    def take_paused_groups(self) -> tuple[str, ...]:
        """Return the groups that were paused, resumed, or deleted while paused, since the last call."""
        return self._groups.take_paused()

    def group_head(self, name: str) -> GroupView | None:
        """Return the group without its members; None when it does not exist."""
        return self._groups.head(name)

    def members_after(self, group: str, after: str | None, limit: int, queues_max: int) -> list[MemberView]:
        """Return a page of members, at most `limit`. It ends with the member that brings the number of assigned queues
        to `queues_max`. Refused (`group_not_found`).
        """
        return self._groups.members_after(group, after, limit, queues_max)

    def offsets_after(
        self, group: str, topic: str | None, after: tuple[str, int] | None, limit: int
    ) -> list[GroupOffset] | None:
        """Return a page of `offsets`, after the topic and queue `after`; None when the group does not exist."""
        return self._groups.offsets_after(group, topic, after, limit)

    def offsets(self, group: str, topic: str | None = None) -> list[GroupOffset] | None:
        """Return the group's committed offsets, by topic and queue; None when the group does not exist."""
        return self._groups.offsets(group, topic)

    def each_offset(self, group: str, topic: str | None, after: tuple[str, int] | None) -> Iterator[GroupOffset]:
        """Yield the offsets of a page, each as it is when it is asked for: entries may be applied in between. Refused
        (`group_not_found`) when the group does not exist, or not any more.
        """
        return self._groups.each_offset(group, topic, after)

    def queues_read(self, group: str, topic: str | None) -> int:
        """Return the number of queues of the topic, or of all topics, in which the group has an offset; 0 when either
        does not exist.
        """
        return self._groups.queues_read(group, topic)

    def topics_read(self, group: str) -> list[tuple[str, int]] | None:
        """Return the topics that the group has read, without groups' own, by name, each with the number of queues in
        which it has an offset; None when the group does not exist.
        """
        return self._groups.topics_read(group)

    def committed(self, group: str, topic: str, queue: int) -> int | None:
        """Return the group's committed offset in the queue; None when it has none."""
        return self._groups.committed(group, topic, queue)

    def committed_in(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's committed offsets by queue of the topic; none when either does not exist."""
        return self._groups.committed_in(group, topic)

    def poppable(self, group: str, topic: str) -> int | None:
        """Return how many messages a pop could look at, in the topic and among the group's retries; None when the pop
        must be applied even without messages, to be noted or refused.
        """
        return self._pops.poppable(group, topic)

    def replayed_at_ms(self, group: str, offset: int) -> int | None:
        """Return when the dead letter at this offset was last replayed; None if it never was. Refused
        (`group_not_found`).
        """
        topic = self._topics.get(DLQ_PREFIX + group)
        mark = self._marks.get(self._groups.id_of(group), topic.id, 0, offset) if topic is not None else None
        return mark.due_at_ms if mark is not None and mark.outcome == REPLAYED else None
