"""All groups in memory, found by what a change asks for: a change of a topic visits the groups that it concerns."""

from typing import TypeVar

from store.commands.groups import TopicFilter
from store.groups.record import Group

Key = TypeVar("Key", int, str)


class KnownGroups(dict[str, Group]):
    """The groups by name, by id, and by the topics that they read and subscribe to."""

    def __init__(self) -> None:
        super().__init__()
        self.by_id: dict[int, Group] = {}
        self.paused: dict[str, Group] = {}
        self._readers: dict[int, dict[int, Group]] = {}
        """Groups with an offset in the topic: by topic id and group id."""
        self._subscribed: dict[str, dict[int, Group]] = {}
        """Groups whose members or pop consumers subscribe to the topic, or did last: by topic and group id."""

    def add(self, group: Group) -> None:
        self[group.name] = self.by_id[group.record.id] = group
        self.note_pause(group)
        for topic in group.record.topics:
            self._subscribed.setdefault(topic, {})[group.record.id] = group

    def remove(self, group: Group) -> None:
        """Remove the group, whose offsets are removed by the caller."""
        del self[group.name], self.by_id[group.record.id]
        self.paused.pop(group.name, None)
        for topic_id in group.offsets.topic_ids:
            _drop(self._readers, topic_id, group)
        for topic in group.record.topics:
            _drop(self._subscribed, topic, group)

    def note_pause(self, group: Group) -> None:
        """Note whether the group is paused, which has changed."""
        if group.record.pause is not None:
            self.paused[group.name] = group
        else:
            self.paused.pop(group.name, None)

    def subscribe(self, group: Group, topics: tuple[str, ...], filters: tuple[TopicFilter, ...]) -> None:
        """Set the subscription of the group."""
        record = group.record
        for topic in record.topics:
            _drop(self._subscribed, topic, group)
        record.topics, record.filters = topics, filters
        for topic in topics:
            self._subscribed.setdefault(topic, {})[record.id] = group

    def has_read(self, group: Group, topic_id: int) -> None:
        """Note that the group has an offset in the topic."""
        self._readers.setdefault(topic_id, {})[group.record.id] = group

    def forget_topic(self, topic_id: int) -> list[Group]:
        """Forget who has read the topic, and return those groups, whose offsets are removed by the caller."""
        return [*self._readers.pop(topic_id, {}).values()]

    def readers(self, topic_id: int) -> list[Group]:
        """Return the groups that have an offset in the topic."""
        return [*self._readers.get(topic_id, {}).values()]

    def subscribers(self, topic: str) -> list[Group]:
        """Return the groups with members that subscribe to the topic."""
        return [group for group in self._subscribed.get(topic, {}).values() if group.record.members]


def _drop(table: dict[Key, dict[int, Group]], key: Key, group: Group) -> None:
    """Remove the group from the groups of the key, where an empty table is removed with its last group."""
    groups = table.get(key, {})
    groups.pop(group.record.id, None)
    if not groups:
        table.pop(key, None)
