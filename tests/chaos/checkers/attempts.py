"""Checks the messages that a recorded group gave back: each return makes one new attempt, and the last attempt ends as
a dead letter.
"""

from collections.abc import Iterable

from tests.chaos.group_records import AnyRecord, Begun, GivingBack, Spot
from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations


class Attempts:
    """Checks the attempts of a run: call `judge` with its records, then `judge_dead`. `attempts_max` is the maximum
    number of times that a message comes again.
    """

    def __init__(self, group: str, attempts_max: int, violations: Violations) -> None:
        self._group = group
        self._attempts_max = attempts_max
        self._violations = violations
        self._given: set[Spot] = set()
        """Spots that some member has asked to be taken back."""
        self._spots: dict[tuple[Spot, int], Spot] = {}
        """Spot of each attempt, by the message's origin and the attempt."""
        self._latest: dict[int, int] = {}
        """The last attempt at each message, by its number."""

    def judge(self, records: Iterable[AnyRecord]) -> None:
        for record in sorted(records, key=lambda each: each.at_s):
            if isinstance(record, GivingBack):
                self._given.update(record.spots)
            elif isinstance(record, Begun):
                self._on_begun(record)

    def judge_dead(self, dead: Iterable[int]) -> None:
        """Check that each number in `dead`, the messages among the dead letters, has had its last attempt."""
        for number in dead:
            attempts = self._latest.get(number)
            if attempts != self._attempts_max:
                self._add(number, f"is a dead letter, and its last attempt was {attempts} of {self._attempts_max}")

    def _on_begun(self, begun: Begun) -> None:
        spot = (*begun.place, begun.offset)
        if (begun.origin is None) != (begun.attempt == 0):
            self._add(begun.number, f"at {spot} is attempt {begun.attempt}, and comes from {begun.origin}")
            return
        origin = begun.origin or spot
        known = self._spots.setdefault((origin, begun.attempt), spot)
        if known != spot:
            self._add(begun.number, f"is there twice as attempt {begun.attempt}: at {known} and at {spot}")
        self._latest[begun.number] = max(begun.attempt, self._latest.get(begun.number, 0))
        if begun.attempt > self._attempts_max:
            self._add(begun.number, f"comes for the {begun.attempt}th time, {self._attempts_max} are allowed")
        if begun.attempt:
            before = self._spots.get((origin, begun.attempt - 1))
            if before is None:
                self._add(begun.number, f"is attempt {begun.attempt}, nobody has seen the one before it")
            elif before not in self._given:
                self._add(begun.number, f"is attempt {begun.attempt}, nobody gave back the one before it at {before}")

    def _add(self, number: int, detail: str) -> None:
        self._violations.add(Kind.RETURNED, f"group {self._group}: {name_of(number)} {detail}")
