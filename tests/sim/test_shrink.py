"""Failing seeds get smaller and keep failing in the same way; the story says what happened."""

from collections.abc import Callable, Collection

import pytest

from .mutants import MUTANTS
from .outcome import Outcome
from .plan import NO_EDITS, Edits, draw_plan
from .run import run_safe
from .shrink import shrink
from .story import LINES_MAX, Story
from .world import World

LOAD_END_US = 10_000_000


def failing_with(needed: Collection[int]) -> Callable[[Edits], Outcome]:
    """Return a run of 20 faults that fails at its end when all of `needed` are among them, and differently without
    fault 1.
    """

    def run(edits: Edits) -> Outcome:
        faults = tuple(range(1, 21) if edits.only_faults is None else edits.only_faults)
        violation = None
        if set(needed) <= set(faults):
            violation = "promise" if 1 in faults or 1 not in needed else "another promise"
        return Outcome(0, nodes=edits.nodes or 5, now_us=LOAD_END_US, violation=violation, faults=faults)

    return run


@pytest.mark.parametrize("needed", [(), (4,), (3, 7), (1, 2, 19, 20)])
def test_only_the_faults_that_are_needed_stay(needed: tuple[int, ...]) -> None:
    run = failing_with(needed)
    found = shrink(run(NO_EDITS), run, reruns_max=1_000)
    assert found.edits.only_faults == needed
    assert found.outcome.violation == "promise"
    assert (found.edits.nodes, found.edits.calm_links, found.edits.actions) == (1, True, 1)


def test_the_number_of_runs_is_bounded() -> None:
    runs = 0

    def run(edits: Edits) -> Outcome:
        nonlocal runs
        runs += 1
        return failing_with((3, 7))(edits)

    first = failing_with((3, 7))(NO_EDITS)
    found = shrink(first, run, reruns_max=9)
    assert runs == found.reruns == 9
    assert found.outcome.violation == "promise"


def test_another_violation_is_not_the_same_failure() -> None:
    def run(edits: Edits) -> Outcome:
        violation = "promise" if edits.only_faults is None else "another promise"
        return Outcome(0, nodes=1, now_us=LOAD_END_US, violation=violation, faults=(1, 2))

    found = shrink(run(NO_EDITS), run)
    assert found.edits.only_faults is None
    assert found.outcome.violation == "promise"


def test_a_mutant_is_shrunk_and_its_story_told() -> None:
    variant = MUTANTS["changes-when-committed"]
    failed = next(outcome for seed in range(60) if (outcome := run_safe(seed, variant)).violation)
    found = shrink(failed, lambda edits: run_safe(failed.seed, variant, edits=edits), reruns_max=6)
    assert found.outcome.accuser == failed.accuser
    assert len(found.outcome.faults) <= len(failed.faults)
    story = Story()
    again = run_safe(failed.seed, variant, edits=found.edits, listeners=[story])
    assert (again.violation, again.detail, again.trace) == (
        found.outcome.violation,
        found.outcome.detail,
        found.outcome.trace,
    )
    lines = story.lines()
    assert len(lines) <= LINES_MAX + 1
    assert f"BROKEN PROMISE {again.violation}: {again.detail}" in lines[-1]
    assert all(any(f"fault {number}: " in line for line in lines) for number in again.faults)


def test_leaving_a_fault_out_changes_nothing_about_the_others() -> None:
    plan = draw_plan(World(3), NO_EDITS)
    kept = tuple(fault.number for fault in plan.faults if fault.number % 3 == 0)
    edited = draw_plan(World(3), Edits(only_faults=kept))
    assert edited.faults == tuple(fault for fault in plan.faults if fault.number in kept)
    assert (edited.settings, edited.windows, edited.links) == (plan.settings, plan.windows, plan.links)
    until = draw_plan(World(3), Edits(until_ms=3_000))
    assert until.faults == tuple(fault for fault in plan.faults if fault.at_us < 3_000_000)


def test_a_plan_of_few_kinds_has_faults_of_no_other() -> None:
    plans = [draw_plan(World(seed), Edits(only_kinds=("kill", "wall_clock_jump"))) for seed in range(40)]
    kinds = {fault.kind for plan in plans for fault in plan.faults}
    assert kinds == {"kill", "wall_clock_jump"}
    assert plans[1].settings == draw_plan(World(1), NO_EDITS).settings


def test_edits_are_written_as_they_are_read() -> None:
    edits = Edits(only_faults=(3, 7), until_ms=4200, actions=16, nodes=3, calm_links=True, no_purges=True)
    assert edits.arguments() == "--only-faults 3,7 --until-ms 4200 --actions 16 --nodes 3 --calm-links --no-purges"
    assert Edits(only_faults=()).arguments() == "--only-faults none"
    assert Edits(only_kinds=("kill", "wipe")).arguments() == "--only-kinds kill,wipe"
    assert NO_EDITS.arguments() == ""


def test_the_story_tells_what_matters() -> None:
    story = Story()
    for now_us, *parts in (
        (0, "open", 1, "new_log", 1),
        (10, "send", 1, 2, "AppendEntries"),
        (1_500_000, "leader", 1, 4),
        (1_600_000, "append", 1, 7, 4),
        (1_610_000, "append", 1, 8, 4),
        (1_700_000, "acknowledged", 1, 5, 4, "batch b1"),
        (1_710_000, "acknowledged", 1, 6, 4, "batch b2"),
        (1_720_000, "acknowledged", 1, 8, 4, "batch b3"),
        (2_000_000, "fault", 3, "power_loss", 1),
        (2_000_000, "down", 1, "power"),
        (3_000_000, "violation", "acknowledged_lost", "batch b3, acknowledged at orders (1, 2), is at no place"),
    ):
        story(now_us, tuple(parts))
    assert story.lines() == [
        "    0.000 s  node 1 starts (new_log); its log ends with entry 1",
        "    1.500 s  node 1 leads term 4",
        "    1.610 s  node 1 appends entry 8 of term 4",
        "    1.710 s  entries 5 to 6 are acknowledged, from 1.700 s on",
        "    1.720 s  node 1 acknowledges entry 8 of term 4: batch b3",
        "    2.000 s  fault 3: node 1 loses power",
        "    3.000 s  BROKEN PROMISE acknowledged_lost: batch b3, acknowledged at orders (1, 2), is at no place",
    ]


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    story = Story()
    for number in range(1_000):
        story(number, ("leader", 1, number))
    lines = story.lines()
    assert len(lines) == LINES_MAX + 1
    assert "leads term 0" in lines[0]
    assert "leads term 999" in lines[-1]
    assert any("lines left out" in line for line in lines)
