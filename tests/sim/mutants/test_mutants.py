"""The suite runs a few mutants at a time, with fresh seeds, and still catches them."""

import inspect
import io
from random import SystemRandom

import pytest

from deploy.reporting.report import Report
from deploy.reporting.result import result_of
from tests.sim.run import run_safe
from tests.sim.variant import SAFE, Swap, Variant

from . import MUTANTS
from . import __main__ as command
from .hunt import Hunt, hunt

PICKED = 2
SEEDS_MAX = 100
"""A mutant that is not `rare` needs a few seeds; the suite would have to be very unlucky, or blind."""


def test_a_few_mutants_are_caught(capsys: pytest.CaptureFixture[str]) -> None:
    random = SystemRandom()
    picked = random.sample([name for name, variant in MUTANTS.items() if not variant.rare], PICKED)
    first_seed = random.randrange(1_000_000)
    with capsys.disabled():
        print(f"\nmutants from seed {first_seed} on: {', '.join(picked)}")
    for name in picked:
        found = hunt(MUTANTS[name], first_seed, SEEDS_MAX)
        replay = f"python -m tests.sim.mutants --mutant {name} --first-seed {first_seed} --seeds {SEEDS_MAX}"
        assert found.caught_by is not None, f"{name} goes unnoticed: {replay}"
        assert not found.slip, f"{name} does not run: {found.detail}"


def test_every_mutant_says_what_it_breaks() -> None:
    assert len(MUTANTS) >= 20
    for variant in MUTANTS.values():
        assert variant.breaks.endswith(".")
        assert 0 <= variant.invariant <= 27
        with variant.installed():
            assert all(getattr(owner, name) is part for owner, name, part in variant.swaps)
        assert not any(getattr(owner, name) is part for owner, name, part in variant.swaps)


def test_every_mutant_takes_what_the_real_part_takes() -> None:
    """Otherwise a checker would find its calls, not its defect."""
    for name, variant in MUTANTS.items():
        for swap in variant.swaps:
            real = inspect.getattr_static(swap.owner, swap.name)
            if not (inspect.isfunction(real) and inspect.isfunction(swap.part)):
                continue
            taken = inspect.signature(swap.part).parameters.values()
            if not any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in taken):
                assert len(taken) == len(inspect.signature(real).parameters), name


def test_nothing_of_a_mutant_stays_behind() -> None:
    """Runs share a process: the next one must be made of the real parts."""
    before = run_safe(4)
    for name in ("acks-before-sync", "forgets-ids-at-a-restart", "ignores-the-topic"):
        run_safe(4, MUTANTS[name])
    assert run_safe(4) == before


def test_a_part_that_is_gone_is_not_swapped_in_silence() -> None:
    with pytest.raises(AttributeError), Variant(swaps=(Swap(run_safe, "no_such_part", None),)).installed():
        pass


def test_the_real_parts_are_not_accused() -> None:
    assert hunt(SAFE, 4, 1).caught_by is None


def test_the_command_fails_when_a_mutant_goes_unnoticed() -> None:
    name = next(iter(MUTANTS))
    caught = Hunt(name, 3, "election_safety", 2, "")
    for hunts, status in (
        ([caught], 0),
        ([caught._replace(caught_by=None)], command.EXIT_MISSED),
        ([caught._replace(slip=True)], command.EXIT_MISSED),
    ):
        output = io.StringIO()
        assert command.conclude(Report(output), hunts, 0, 500) == status
        result = result_of(output.getvalue())
        assert result["caught"] == (status == 0)
    output = io.StringIO()
    command.print_table(Report(output), [caught])
    command.print_markdown(Report(output), [caught])
    assert output.getvalue().count("election_safety") == 2
    assert "election_safety | 3 |" in output.getvalue()
