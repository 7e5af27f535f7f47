"""Checks that pop consumers acknowledged every message in the end."""

from collections.abc import Collection

from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations


def judge_pops(
    delivered: Collection[int], acked: Collection[int], unknown: Collection[int], violations: Violations
) -> None:
    """Check by message number: `delivered` are in the queues of the topic, `acked` are known to be acknowledged, and
    `unknown` perhaps are.
    """
    for number in set(delivered) - set(acked) - set(unknown):
        violations.add(Kind.RETURNED, f"{name_of(number)} was never acknowledged, and the group has no lag")
    for number in set(acked) - set(delivered):
        violations.add(Kind.RETURNED, f"{name_of(number)} was popped and is in no queue")
