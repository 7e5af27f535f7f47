"""Marks of the messages that a group has given back and not committed yet, so that giving back again changes nothing.

A mark is removed when the group's committed offset passes its message, and when the queue's offset is reset: messages
that are processed anew may be given back anew. Marks of dead letters that were replayed stay.
"""

from typing import Final, Literal, NamedTuple

import msgspec

from store.groups.queue_counts import QueueCounts
from store.index import keys
from store.index.index import Index
from store.steps import Steps

MarkOutcome = Literal["scheduled", "dead_lettered", "replayed"]
REPLAYED: Final = "replayed"


class Mark(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """A message was given back or replayed. `due_at_ms` is when it becomes, or became, visible again; None for a dead
    letter.
    """

    attempt: int
    outcome: MarkOutcome
    due_at_ms: int | None


class GivingGroup(NamedTuple):
    """A group that gives messages back; `id` is None if the group does not exist yet."""

    id: int | None
    max_attempts: int
    delays_ms: tuple[int, ...]
    client_id: str
    """Client of the member that gives the messages back; empty for a group without members."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Mark).decode


class GivenBackMarks:
    def __init__(self, index: Index) -> None:
        """Count the marks of each queue: most queues have no marks, and a commit must not scan for them there."""
        self._index = index
        self._counts = QueueCounts()
        for key, value in index.scan(keys.GIVEN_BACK, keys.after(keys.GIVEN_BACK)):
            if _decode(value).outcome != REPLAYED:
                self._counts.add(keys.given_back_parts(key)[:3], 1)

    def get(self, group_id: int, topic_id: int, queue: int, offset: int) -> Mark | None:
        value = self._index.get(keys.given_back(group_id, topic_id, queue, offset))
        return _decode(value) if value is not None else None

    def put(self, group_id: int, topic_id: int, queue: int, offset: int, mark: Mark) -> None:
        """Add a mark. The message must not have one yet."""
        self._index.put(keys.given_back(group_id, topic_id, queue, offset), _encode(mark))
        if mark.outcome != REPLAYED:
            self._counts.add((group_id, topic_id, queue), 1)

    def forget(self, group_id: int, topic_id: int, queue: int, before: int | None = None) -> None:
        """Remove the marks of the queue, or only the marks of messages before an offset. Marks of replayed dead letters
        stay.
        """
        place = (group_id, topic_id, queue)
        if place not in self._counts:
            return
        begin = keys.given_back(*place, 0)
        end = keys.after(begin[:-8]) if before is None else keys.given_back(*place, before)
        gone = [key for key, value in self._index.scan(begin, end) if _decode(value).outcome != REPLAYED]
        self._index.delete_all(gone)
        self._counts.add(place, -len(gone))

    def expire(self, topic_id: int, queue: int, before: int) -> None:
        """Remove the marks of messages before an offset, in all groups: the messages are gone and cannot be given back
        again.
        """
        for group_id in self._counts.groups(topic_id, queue):
            self.forget(group_id, topic_id, queue, before)

    def forget_replayed(self, group_id: int, topic_id: int, before: int) -> None:
        """Remove the marks of dead letters before an offset, which are gone."""
        for key, _ in list(
            self._index.scan(keys.given_back(group_id, topic_id, 0, 0), keys.given_back(group_id, topic_id, 0, before))
        ):
            self._index.delete(key)

    def forget_group(self, group_id: int) -> None:
        """Remove all marks of the group, including the marks of replayed dead letters."""
        prefix = keys.given_back_by(group_id)
        self._index.delete_range(prefix, keys.after(prefix))
        self._counts.remove_group(group_id)

    def forget_topic(self, topic_id: int) -> Steps[None]:
        for place in self._counts.of_topic(topic_id):
            yield
            self.forget(*place)
