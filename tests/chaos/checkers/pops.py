"""What pop consumers made of every message: each acknowledged in the end."""

from collections.abc import Collection

from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations


def judge_pops(
    delivered: Collection[int], acked: Collection[int], unknown: Collection[int], violations: Violations
) -> None:
    """By message number: what is in the queues of the topic, what is known to be acknowledged, and what perhaps is."""
    for number in set(delivered) - set(acked) - set(unknown):
        violations.add(Kind.RETURNED, f"{name_of(number)} was never acknowledged, and the group has no lag")
    for number in set(acked) - set(delivered):
        violations.add(Kind.RETURNED, f"{name_of(number)} was popped and is in no queue")
