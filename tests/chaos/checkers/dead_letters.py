"""Checks that a group that gives back ended with every message either processed or a dead letter, once."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.returns import is_doomed


def judge_returns(
    delivered: Collection[int], processed: Mapping[int, int], dead: Iterable[int], violations: Violations
) -> None:
    """Check by message number: `delivered` are in the queues of the group's topics, `processed` counts how often a
    handler finished each, and `dead` has the dead letters, with repetitions.
    """
    letters = Counter(dead)
    for number in delivered:
        wrong = _wrong(number, processed.get(number, 0), letters[number])
        if wrong:
            violations.add(Kind.RETURNED, f"{name_of(number)} {wrong}")
    for number in letters.keys() - set(delivered):
        violations.add(Kind.RETURNED, f"{name_of(number)} is a dead letter and in no queue")


def _wrong(number: int, processed: int, letters: int) -> str:
    if letters > 1:
        return f"is {letters} dead letters"
    if is_doomed(number):
        return "" if letters else "cannot be processed and is no dead letter"
    if letters:
        return "can be processed and is a dead letter"
    return "" if processed else "was given back or skipped, and never came again"
