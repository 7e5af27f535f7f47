"""Chooses a group's first offsets in queues without a committed offset.

They are committed before any message is handled, so they are chosen only once.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Literal

from keelmq import wire
from keelmq.consuming.group_session import GroupSession, TopicQueue
from keelmq.limits import GROUP_TOPIC_PREFIXES

Start = Literal["earliest", "latest"] | int
"""First offset of a group without a committed one; a Unix time in ms is the first message stored at or after it."""


class GroupBeginnings:
    """Chooses the first offset of a queue from the broker's log, so that all members decide alike:

    - The topic was created after a member of the group had joined: it was created anew, or is new to the group. No
      member has read it, so it is read from its beginning, whatever `start` says.
    - This member has read the queue, and the group lost its offset: the group was deleted while its members were
      silent. Reading continues at this member's position.
    - Otherwise the group is new to the queue: `start` applies.
    """

    def __init__(self, session: GroupSession, start: Start) -> None:
        self._session = session
        self._start = start
        self._since_ms: int | None = None
        self._processed: dict[TopicQueue, int] = {}

    @property
    def knows_the_group(self) -> bool:
        return self._since_ms is not None

    def saw(self, members: Collection[wire.GroupMember]) -> None:
        """Record when the longest-standing of the group's present members joined; this member is one of them."""
        joined_ms = [each.joined_at_ms for each in members]
        if self._since_ms is not None:
            joined_ms.append(self._since_ms)
        self._since_ms = min(joined_ms, default=0)

    def was_at(self, place: TopicQueue, position: int) -> None:
        """Record that this member had processed everything before `position` when the group's offset was gone."""
        self._processed[place] = position

    async def find(self, places: Collection[TopicQueue]) -> Mapping[TopicQueue, int]:
        """Return the first offset of each queue, as the leader knows it.

        The offsets are valid only in the generation in which they are committed: recreating a topic changes the
        generation."""
        found: dict[TopicQueue, int] = {}
        by_topic: dict[str, list[int]] = defaultdict(list)
        for topic, queue in places:
            by_topic[topic].append(queue)
        for topic, queues in by_topic.items():
            info = await self._session.topic(topic)
            ranges = {each.queue: each for each in info.queue_offsets}
            for queue in queues:
                place = (topic, queue)
                known = ranges.get(queue, wire.QueueOffsets(queue=queue, min_offset=0, max_offset=0))
                found[place] = await self._position(place, info, known)
        return found

    async def _position(self, place: TopicQueue, topic: wire.TopicInfo, known: wire.QueueOffsets) -> int:
        assert self._since_ms is not None
        if place[0].startswith(GROUP_TOPIC_PREFIXES) or topic.created_at_ms >= self._since_ms:
            return known.min_offset
        processed = self._processed.get(place)
        if processed is not None:
            return min(max(processed, known.min_offset), known.max_offset)
        if self._start == "earliest":
            return known.min_offset
        if self._start == "latest":
            return known.max_offset
        return await self._session.offset_at(place, self._start)
