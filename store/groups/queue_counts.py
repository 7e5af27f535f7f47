"""Counts of something that groups have in queues, found by queue, by topic and by group without a walk through all."""

Place = tuple[int, int, int]
"""Group id, topic id and queue."""


class QueueCounts:
    def __init__(self) -> None:
        self._counts: dict[int, dict[int, dict[int, int]]] = {}
        """The counts, none of them 0, by topic id, queue and group id."""
        self._of_group: dict[int, set[tuple[int, int]]] = {}
        """Topic id and queue of the counts of each group."""

    def __contains__(self, place: Place) -> bool:
        return place[1:] in self._of_group.get(place[0], ())

    def add(self, place: Place, change: int) -> None:
        group_id, topic_id, queue = place
        groups = self._counts.setdefault(topic_id, {}).setdefault(queue, {})
        groups[group_id] = count = groups.get(group_id, 0) + change
        if count:
            self._of_group.setdefault(group_id, set()).add((topic_id, queue))
        else:
            self._remove(place)

    def groups(self, topic_id: int, queue: int) -> list[int]:
        """Return the ids of the groups that have a count in the queue."""
        return [*self._counts.get(topic_id, {}).get(queue, ())]

    def of_topic(self, topic_id: int) -> list[Place]:
        """Return the places of all counts in the topic."""
        queues = self._counts.get(topic_id, {}).items()
        return [(group_id, topic_id, queue) for queue, groups in queues for group_id in groups]

    def remove_group(self, group_id: int) -> None:
        for topic_id, queue in [*self._of_group.get(group_id, ())]:
            self._remove((group_id, topic_id, queue))

    def _remove(self, place: Place) -> None:
        """Remove a count, and the tables that are empty without it."""
        group_id, topic_id, queue = place
        queues, places = self._counts[topic_id], self._of_group.get(group_id, set())
        del queues[queue][group_id]
        if not queues[queue]:
            del queues[queue]
        if not queues:
            del self._counts[topic_id]
        places.discard((topic_id, queue))
        if not places:
            self._of_group.pop(group_id, None)
