"""Checks who may handle and commit in a recorded group: one member per queue and generation, while its session lasts.

A member that was told that it no longer owns a queue, or that its session is over, begins no further call. The same
holds once its session is over by its own clock: no heartbeat sent within the session timeout was answered.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from tests.chaos.group_records import AnyRecord, Assigned, Begun, Committed, SessionOver, Started, Stood
from tests.chaos.reads import TopicQueue
from tests.chaos.violations import Kind, Violations

SLACK_S: Final = 0.5
"""Tolerated seconds between the moment at which a member knows and the call that it begins, for a busy machine."""


class _Member:
    def __init__(self, started: Started, stood: list[Stood]) -> None:
        self.session_s = started.session_timeout_ms / 1000
        self.slots = started.slots
        self.places: set[TopicQueue] = set()
        self.told_s: dict[TopicQueue, float] = {}
        """Time at which the member was told that it does not own a queue, by queue."""
        self.over_since_s: float | None = started.at_s
        """Time at which the member was told that its session is over; it begins without a session."""
        self.renewed_s = started.at_s
        self.excused: dict[float, int] = {}
        self._stood = stood

    def awake_s(self, from_s: float, until_s: float) -> float:
        """Return how many of these seconds the member could use, without those in which it stood."""
        stood_s = sum(max(0.0, min(each.at_s, until_s) - max(each.from_s, from_s)) for each in self._stood)
        return until_s - from_s - stood_s

    def excuses(self, begun: Begun) -> bool:
        """Return whether the process may have been stopped between its look at the clock and this call. At one look
        `slots` calls can begin, so only that number of calls is excused per stop, the first one after the process went
        on.
        """
        for each in self._stood:
            near = each.from_s <= begun.at_s <= each.at_s + SLACK_S
            if each.stopped and near and each.from_s <= self.renewed_s + self.session_s:
                self.excused[each.from_s] = self.excused.get(each.from_s, 0) + 1
                return self.excused[each.from_s] <= self.slots
        return False


class GroupOwners:
    """Checks the ownership of queues: call `judge` with the records of a run."""

    def __init__(self, group: str, violations: Violations) -> None:
        self._group = group
        self._violations = violations
        self._members: dict[str, _Member] = {}
        self._owners: dict[tuple[int, TopicQueue], str] = {}
        self._assignments: dict[tuple[str, int], set[TopicQueue]] = {}
        self._generation = 0
        """The latest generation that any member was told of."""

    def judge(self, records: Iterable[AnyRecord]) -> None:
        known = list(records)
        stood = [each for each in known if isinstance(each, Stood)]
        for each in known:
            if isinstance(each, Started):
                mine = [pause for pause in stood if pause.member == each.member]
                self._members[each.member] = _Member(each, mine)
        for asked, record in _commits_when_sent(known):
            match record:
                case Committed() if asked:
                    self._check_commit(record)
                case Assigned():
                    self._on_assigned(record)
                case SessionOver():
                    member = self._members[record.member]
                    member.over_since_s = record.at_s
                case Begun():
                    self._check_call(record)

    def _on_assigned(self, record: Assigned) -> None:
        member, places = self._members[record.member], set(record.places)
        for place in places:
            owner = self._owners.setdefault((record.generation, place), record.member)
            if owner != record.member:
                self._add(place, f"is {owner}'s and {record.member}'s in generation {record.generation}")
        self._assignments[record.member, record.generation] = places
        self._generation = max(self._generation, record.generation)
        for place in member.places - places:
            member.told_s[place] = record.at_s
        member.places, member.over_since_s = places, None
        member.renewed_s = max(member.renewed_s, record.sent_at_s)

    def _check_commit(self, record: Committed) -> None:
        assigned = self._assignments.get((record.member, record.generation))
        for topic, queue, offset in record.offsets:
            what = f"{record.member} committed {offset} in generation {record.generation}"
            if record.generation < self._generation:
                self._add((topic, queue), f"{what}, the group was at {self._generation} before it asked")
            elif assigned is not None and (topic, queue) not in assigned:
                self._add((topic, queue), f"{what}, in which the queue was not its own")

    def _check_call(self, begun: Begun) -> None:
        member, place = self._members[begun.member], begun.place
        what = f"{begun.member} begins to handle offset {begun.offset}"
        if member.over_since_s is not None:
            if (late_s := member.awake_s(member.over_since_s, begun.at_s)) > SLACK_S:
                self._add(place, f"{what}, {late_s:.2f} s after it was told that it is no member")
        elif place not in member.places:
            told_s = member.told_s.get(place)
            if told_s is None:
                self._add(place, f"{what}, which nobody has ever assigned to it")
            elif (late_s := member.awake_s(told_s, begun.at_s)) > SLACK_S:
                self._add(place, f"{what}, {late_s:.2f} s after it was told that the queue is not its own")
        late_s = begun.at_s - member.renewed_s - member.session_s
        if late_s > SLACK_S and not member.excuses(begun):
            self._add(place, f"{what}, {late_s:.2f} s after its session was over by its clock")

    def _add(self, place: TopicQueue, detail: str) -> None:
        self._violations.add(Kind.NOT_OWNER, f"group {self._group}, {place[0]}/{place[1]}: {detail}")


def _commits_when_sent(records: list[AnyRecord]) -> Iterator[tuple[bool, AnyRecord]]:
    """Yield the records in the order of time, a commit at the time at which it was sent."""
    events = [
        (record.sent_at_s, True, record) if isinstance(record, Committed) else (record.at_s, False, record)
        for record in records
    ]
    for _, asked, record in sorted(events, key=lambda each: each[:2]):
        yield asked, record
