"""The committed offsets of one group, by topic and queue: a change of a topic costs what the group has read of it."""

from collections.abc import Collection, Iterable, Mapping
from typing import overload

Place = tuple[int, int]
"""Topic id and queue."""


class Offsets:
    __slots__ = ("_of_topics",)

    def __init__(self) -> None:
        self._of_topics: dict[int, dict[int, int]] = {}

    def __contains__(self, place: Place) -> bool:
        return place[1] in self._of_topics.get(place[0], ())

    def __getitem__(self, place: Place) -> int:
        """Return the offset. Raises KeyError when there is none."""
        return self._of_topics[place[0]][place[1]]

    def __setitem__(self, place: Place, offset: int) -> None:
        self._of_topics.setdefault(place[0], {})[place[1]] = offset

    @overload
    def get(self, place: Place) -> int | None: ...

    @overload
    def get(self, place: Place, default: int) -> int: ...

    def get(self, place: Place, default: int | None = None) -> int | None:
        queues = self._of_topics.get(place[0])
        return default if queues is None else queues.get(place[1], default)

    def in_topic(self, topic_id: int) -> Mapping[int, int]:
        """Return the offsets of the topic by queue, as they are from now on: no copy."""
        return self._of_topics.get(topic_id, {})

    def begin(self, topic_id: int, queues: Iterable[int]) -> None:
        """Set the offsets of queues to their beginning."""
        self._of_topics.setdefault(topic_id, {}).update(dict.fromkeys(queues, 0))

    def remove_topic(self, topic_id: int) -> Collection[int]:
        """Remove the offsets of the topic, and return the queues that had one."""
        return self._of_topics.pop(topic_id, {}).keys()

    @property
    def topic_ids(self) -> Collection[int]:
        """Ids of the topics that have an offset."""
        return self._of_topics.keys()
