"""Checks the effects that handlers left in a database by way of the inbox: each message's effect is there once, however
often it was handled.
"""

from collections.abc import Collection, Mapping

from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.returns import is_doomed


def judge_effects(delivered: Collection[int], effects: Mapping[int, int], violations: Violations) -> None:
    """Check by message number: `delivered` are in the queues of the group's topics, `effects` counts each in the
    database.
    """
    for number in delivered:
        times, wanted = effects.get(number, 0), 0 if is_doomed(number) else 1
        if times != wanted:
            violations.add(Kind.INBOX, f"the effect of {name_of(number)} is there {times} times, not {wanted}")
    for number in effects.keys() - set(delivered):
        violations.add(Kind.INBOX, f"the effect of {name_of(number)} is there, which is in no queue")
