"""What can be asked of consumer groups. Nothing here changes anything."""

from collections.abc import Mapping

from store.errors import GROUP_NOT_FOUND, Refused
from store.given_back import GivingGroup
from store.group_history import GroupHistory, Passed
from store.group_record import Group, view_of
from store.leases import Leases
from store.results import GroupOffset, GroupView
from store.topics import Topic, Topics


class GroupQueries:
    def __init__(self, topics: Topics, history: GroupHistory, leases: Leases) -> None:
        self._topics = topics
        self._history = history
        self._leases = leases
        self._groups: dict[str, Group] = {}

    def view(self, name: str) -> GroupView | None:
        group = self._groups.get(name)
        return view_of(group) if group is not None else None

    def all(self) -> list[GroupView]:
        """In the order of their names."""
        return [view_of(self._groups[name]) for name in sorted(self._groups)]

    def offsets(self, name: str, topic: str | None = None) -> list[GroupOffset] | None:
        """What is committed, by topic and queue; None when the group does not exist."""
        group = self._groups.get(name)
        if group is None:
            return None
        found: list[GroupOffset] = []
        for (topic_id, queue), offset in group.offsets.items():
            of_topic = self._topics.by_id(topic_id)
            if of_topic is not None and (topic is None or of_topic.name == topic):
                start, end = of_topic.starts[queue], of_topic.ends[queue]
                place = (group.record.id, topic_id, queue)
                held, first_held = self._leases.held(*place), self._leases.first_held(*place)
                first = offset if first_held is None else first_held
                lag = end - max(offset, start) + held
                found.append(GroupOffset(of_topic.name, queue, offset, end, lag, held, first))
        return sorted(found, key=lambda item: (item.topic, item.queue))

    def passed(self, topic: Topic, queue: int, offset: int) -> list[tuple[str, Passed]]:
        """Per group, what moved it over a message or back before it; see GroupHistory."""
        groups = [group for group in self._groups.values() if (topic.id, queue) in group.offsets]
        places = [(group.name, (group.record.id, topic.id, queue)) for group in groups]
        return [(name, passed) for name, place in places for passed in self._history.passed(place, offset)]

    def held(self, name: str) -> int:
        """Messages that its pop consumers hold; 0 when it does not exist."""
        group = self._groups.get(name)
        return self._leases.held_by(group.record.id) if group is not None else 0

    def places(self, name: str) -> Mapping[tuple[int, int], int]:
        """Its offsets by topic id and queue."""
        return self._require(name).offsets

    def name_of(self, group_id: int) -> str | None:
        return next((group.name for group in self._groups.values() if group.record.id == group_id), None)

    def processed(self, name: str, topic: Topic, queue: int) -> int:
        """Everything before this offset of the queue is processed; 0 when the group does not exist."""
        group = self._groups.get(name)
        if group is None:
            return 0
        first_held = self._leases.first_held(group.record.id, topic.id, queue)
        offset = group.offsets.get((topic.id, queue), 0)
        return offset if first_held is None else min(offset, first_held)

    def known_id(self, name: str) -> int | None:
        """None when the group does not exist."""
        group = self._groups.get(name)
        return group.record.id if group is not None else None

    def id_of(self, name: str) -> int:
        """Refused (`group_not_found`) when there is none."""
        return self._require(name).record.id

    def generation(self, name: str) -> int:
        return self._require(name).record.generation

    def giving(self, name: str, client_id: str) -> GivingGroup:
        """The group as one that gives back what `client_id` popped."""
        record = self._require(name).record
        return GivingGroup(record.id, record.retry_max_attempts, record.retry_delays_ms, client_id)

    def _require(self, name: str) -> Group:
        group = self._groups.get(name)
        if group is None:
            raise Refused(GROUP_NOT_FOUND, f"group {name} does not exist: a member's first join creates it")
        return group
