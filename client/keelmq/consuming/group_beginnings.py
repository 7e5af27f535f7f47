"""Where a group begins in queues in which it has no offset: committed before anything is handled, so decided once."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Literal

from keelmq import wire
from keelmq.consuming.group_session import GroupSession, TopicQueue
from keelmq.limits import GROUP_TOPIC_PREFIXES

Start = Literal["earliest", "latest"] | int
"""Where a group without a committed offset begins: a Unix time in ms is the first message stored at or after it."""


class GroupBeginnings:
    """What a queue without an offset is, the broker's log tells, so all members decide alike:

    - Its topic was made after a member of the group had joined: it was made anew, or is new to the group. Nobody has
      read it, so it is read from its beginning, whatever `start` says.
    - This member has read it, and the group lost its offset: the group was deleted while its members were silent. It
      goes on where this member was.
    - Otherwise the group is new to the queue: `start`.
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
        """Of the members that the group has now, this one among them, the first one has been there the longest."""
        joined_ms = [each.joined_at_ms for each in members]
        if self._since_ms is not None:
            joined_ms.append(self._since_ms)
        self._since_ms = min(joined_ms, default=0)

    def was_at(self, place: TopicQueue, position: int) -> None:
        """This member had processed everything before `position` when the group's offset was gone."""
        self._processed[place] = position

    async def find(self, places: Collection[TopicQueue]) -> Mapping[TopicQueue, int]:
        """One position for each. By the leader's word, and only as good as the generation in which it is committed: a
        topic that was made anew meanwhile has moved that on."""
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
