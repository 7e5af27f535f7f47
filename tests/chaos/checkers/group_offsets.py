"""Checks committed offsets of a recorded group: they never go back, pass no unhandled one, and bind later members."""

from collections.abc import Iterable, Iterator, Mapping

from tests.chaos.group_records import AnyRecord, Assigned, Begun, Committed, Ended, GaveBack, ReadOffsets, SessionOver
from tests.chaos.progress import GroupProgress
from tests.chaos.reads import TopicQueue
from tests.chaos.violations import Kind, Violations


class GroupOffsets:
    """Checks the records of a run with `judge`, then each node's final offsets with `judge_node`.

    A commit counts from the time of its acknowledgement, and binds everything that is asked for later.
    """

    def __init__(self, group: str, violations: Violations) -> None:
        self.calls = 0
        """Number of handler calls."""
        self.commits = 0
        """Number of acknowledged offsets."""
        self.progress = GroupProgress(group, violations)
        self._group = group
        self._violations = violations
        self._acknowledged: dict[TopicQueue, int] = {}
        self._begun: dict[tuple[str, int], Begun] = {}
        self._assigned: dict[str, set[TopicQueue]] = {}
        self._floors: dict[tuple[str, TopicQueue], int] = {}
        """Offset acknowledged when the member was told that it owns the queue, by member and queue."""

    def judge(self, records: Iterable[AnyRecord]) -> None:
        for asked, record in _asked_and_answered(records):
            if asked:
                self._on_asked(record)
            else:
                self._on_answered(record)

    def judge_node(self, node: str, offsets: Mapping[TopicQueue, int]) -> None:
        """Check `offsets`, the node's committed offsets after everything has come to rest."""
        for place, acknowledged in self._acknowledged.items():
            self._check_not_back(node, place, offsets.get(place, 0), acknowledged)
        for place, offset in offsets.items():
            self.progress.committed(place, offset)

    def _on_asked(self, record: AnyRecord) -> None:
        if isinstance(record, Committed):
            for topic, queue, offset in record.offsets:
                self.progress.committed((topic, queue), offset)
                self._check_not_back(f"{record.member} commits", (topic, queue), offset, self._at((topic, queue)))
        elif isinstance(record, ReadOffsets):
            read = {(topic, queue): offset for topic, queue, offset in record.offsets}
            for place in self._acknowledged:
                self._check_not_back(f"{record.member} is told", place, read.get(place, 0), self._at(place))

    def _on_answered(self, record: AnyRecord) -> None:
        match record:
            case Committed():
                for topic, queue, offset in record.offsets:
                    self.commits += 1
                    self._acknowledged[topic, queue] = max(offset, self._at((topic, queue)))
            case Begun():
                self.calls += 1
                self._begun[record.member, record.call] = record
                self._check_floor(record)
            case Ended(done=True):
                begun = self._begun[record.member, record.call]
                self.progress.finished(begun.place, begun.offset)
            case GaveBack():
                for topic, queue, offset in record.spots:
                    self.progress.finished((topic, queue), offset)
            case Assigned():
                self._on_assigned(record)
            case SessionOver():
                self._assigned.pop(record.member, None)

    def _on_assigned(self, record: Assigned) -> None:
        before, now = self._assigned.get(record.member, set()), set(record.places)
        self._assigned[record.member] = now
        for place in now - before:
            self._floors[record.member, place] = self._at(place)

    def _check_floor(self, begun: Begun) -> None:
        floor = self._floors.get((begun.member, begun.place), 0)
        if begun.offset < floor:
            detail = f"{begun.member} handles offset {begun.offset}, {floor} was committed before it got the queue"
            self._add(Kind.HANDLED_AGAIN, begun.place, detail)

    def _check_not_back(self, who: str, place: TopicQueue, offset: int, acknowledged: int) -> None:
        if offset < acknowledged:
            self._add(Kind.OFFSET_WENT_BACK, place, f"{who} {offset}, {acknowledged} was acknowledged before")

    def _at(self, place: TopicQueue) -> int:
        return self._acknowledged.get(place, 0)

    def _add(self, kind: Kind, place: TopicQueue, detail: str) -> None:
        self._violations.add(kind, f"group {self._group}, {place[0]}/{place[1]}: {detail}")


def _asked_and_answered(records: Iterable[AnyRecord]) -> Iterator[tuple[bool, AnyRecord]]:
    """Yield each record at its time, and a record of an answer also at the time of its request, in order of time."""
    events = [(record.at_s, False, record) for record in records]
    events += [
        (record.sent_at_s, True, record) for _, _, record in events if isinstance(record, Committed | ReadOffsets)
    ]
    for _, asked, record in sorted(events, key=lambda each: each[:2]):
        yield asked, record
