"""Checks the recorded operators' steps in transactions: no acknowledged step is missing, and none is made up."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.operators import Step


def judge_audit(
    steps: Sequence[Step], timelines: Mapping[str, Sequence[Mapping[str, Any]]], violations: Violations
) -> None:
    """Check `steps` against `timelines`, the broker's final timelines of all transactions that `steps` name."""
    asked = {(step.transaction_id, step.event, step.operator, step.reason) for step in steps}
    recorded: set[tuple[str, str, str, str]] = set()
    for transaction_id, timeline in timelines.items():
        for event in timeline:
            if "operator" not in event:
                continue
            record = (transaction_id, event["event"], event["operator"], event["reason"])
            recorded.add(record)
            if record not in asked:
                violations.add(Kind.TRANSACTION, f"{transaction_id}: nobody asked for {event}")
            elif event["event"] != "resumed" and not event.get("forced"):
                violations.add(Kind.TRANSACTION, f"{transaction_id}: forced, and not recorded as such: {event}")
    for step in steps:
        record = (step.transaction_id, step.event, step.operator, step.reason)
        if step.acknowledged and record not in recorded:
            told = timelines.get(step.transaction_id)
            violations.add(Kind.TRANSACTION, f"{step.transaction_id}: {step} is not in its timeline: {told}")
