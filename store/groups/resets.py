"""Resets of a group's offsets, in either direction: what they write, remove and tell, for many queues at once."""

from collections.abc import Sequence

from store.features import FEATURES
from store.groups.given_back import GivenBackMarks
from store.groups.history import EncodedResets, GroupHistory
from store.groups.leases import Leases
from store.groups.record import Group
from store.index import keys
from store.index.index import Index
from store.messages.outcomes import Event, Outcomes
from store.messages.placement import At
from store.messages.topics import Topic


class Resets:
    def __init__(
        self, index: Index, marks: GivenBackMarks, history: GroupHistory, outcomes: Outcomes, leases: Leases
    ) -> None:
        self._index = index
        self._marks = marks
        self._history = history
        self._outcomes = outcomes
        self._leases = leases

    def carry_out(self, group: Group, changes: Sequence[tuple[Topic, int, int]], at: At) -> None:
        """Set the offsets of the queues, begin a pass over each, and end the leases and forget the marks in them."""
        group_id = group.record.id
        encoded = EncodedResets(at)
        tells = FEATURES.knows("Event.type.RESET", at.feature_level)
        holds = self._leases.held_by(group_id) > 0
        held: dict[int, set[int]] = {}
        events: list[Event] = []
        rows: list[tuple[bytes, bytes]] = []
        for topic, queue, offset in changes:
            place = (group_id, topic.id, queue)
            before = group.offsets.get((topic.id, queue))
            rows.append((self._history.pass_begun(place, offset, is_first=before is None), encoded[before]))
            rows.append((keys.group_offset(*place), keys.u64(offset)))
            if tells:
                events.append(Event("RESET", None, topic.name, queue, before, offset, group.name))
            self._marks.forget(*place)
            if holds and self._leases.held(*place):
                held.setdefault(topic.id, set()).add(queue)
        for topic, queue, offset in changes:
            group.offsets[topic.id, queue] = offset
        for topic_id, queues in held.items():
            self._leases.revoke(group_id, topic_id, queues)
        self._outcomes.add_all(events)
        self._index.put_all(rows)

    def note(self, group: Group, topic: Topic, queue: int, before: int | None, offset: int, at: At) -> None:
        """Note that the group begins, or goes on, at the offset: as a reset, that leaves marks and leases alone."""
        place = (group.record.id, topic.id, queue)
        begun = self._history.pass_begun(place, offset, is_first=before is None)
        self._index.put(begun, EncodedResets(at)[before])
        if FEATURES.knows("Event.type.RESET", at.feature_level):
            self._outcomes.add(Event("RESET", None, topic.name, queue, before, offset, group.name))
