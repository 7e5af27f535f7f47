"""The steps of a verb: shown as its plan, and carried out one after the other, or those of a stage side by side."""

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from deploy.reporting.report import Report
from deploy.rollout.side_by_side import side_by_side


class Step(NamedTuple):
    text: str
    act: Callable[[], None]
    stage: str = ""
    """Steps in a row of the same stage are each about another host, and are carried out side by side."""


class _Numbered(NamedTuple):
    number: int
    step: Step

    @property
    def stage(self) -> str | int:
        return self.step.stage or self.number


def show(steps: Sequence[Step], report: Report, at_once: int) -> None:
    """Print the plan."""
    report.text("plan:" if steps else "plan: nothing is left to do", "step")
    for group in _groups(steps):
        for number, step in group:
            report.text(f"  {number}. {step.text}")
        if len(group) > 1:
            report.text(f"     {_range(group)} side by side{_limit(len(group), at_once)}")


def carry_out(steps: Sequence[Step], report: Report, at_once: int, done: Callable[[], None]) -> None:
    """Carry all steps out; `done` is called after each. The steps after a stage in which one has failed are left."""
    for group in _groups(steps):
        if len(group) > 1:
            _carry_out_stage(group, len(steps), report, at_once, done)
        else:
            ((number, step),) = group
            report.step(f"{number} of {len(steps)}: {step.text}")
            step.act()
            done()


def _carry_out_stage(
    group: Sequence[_Numbered], total: int, report: Report, at_once: int, done: Callable[[], None]
) -> None:
    ended = 0

    def carry(each: _Numbered) -> None:
        report.event(f"{each.number} of {total}: {each.step.text}", "step")
        begun_s = time.monotonic()
        try:
            each.step.act()
        except Exception as error:
            report.event(f"failed: {each.step.text}: {error}", "problem")
            raise
        report.event(f"done in {time.monotonic() - begun_s:.1f} s: {each.step.text}")

    def count() -> None:
        nonlocal ended
        ended += 1
        done()

    report.step(f"{_range(group)} of {total}: {group[0].stage}{_limit(len(group), at_once)}")
    with report.live(lambda: f"{ended} of {len(group)} hosts are done"):
        side_by_side(carry, group, at_once, count)


def _groups(steps: Sequence[Step]) -> list[list[_Numbered]]:
    numbered = [_Numbered(number, step) for number, step in enumerate(steps, 1)]
    return [list(group) for _, group in groupby(numbered, key=lambda each: each.stage)]


def _range(group: Sequence[_Numbered]) -> str:
    return f"{group[0].number} to {group[-1].number}"


def _limit(hosts: int, at_once: int) -> str:
    return f", {at_once} at a time" if at_once < hosts else ""
