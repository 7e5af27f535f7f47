"""The simulation holds our nodes to their promises, finds broken ones guilty, and repeats itself exactly."""

import functools
import gc
import os
import re
import subprocess
import sys
from pathlib import Path
from random import SystemRandom
from typing import Any

import pytest

from deploy.reporting.result import result_of

from . import plan, scenarios
from .__main__ import FIRST_SEED_MAX
from .bench_members import SafeMember
from .checkers import Violation
from .mutants import MUTANTS
from .outcome import Outcome
from .report import EXIT_VIOLATION
from .run import run_safe
from .stock_run import run_stock
from .world import World

ROOT = Path(__file__).parents[2]
SEEDS = 6
FRESH_SEEDS = 4
STOCK_SEEDS_MAX = 12


@functools.cache
def outcome_of(seed: int) -> Outcome:
    """Return the outcome of the seed, which runs once for all tests. Nothing of the run is left behind: ten thousand
    seeds run in a few processes.
    """
    before = _worlds()
    outcome = run_safe(seed)
    assert _worlds() == before, f"seed {seed} left its world behind"
    return outcome


def _worlds() -> int:
    gc.collect()
    return sum(isinstance(each, World) for each in gc.get_objects())


@pytest.mark.parametrize("seed", range(SEEDS))
def test_promises_hold(seed: int) -> None:
    _check_seed(seed)


def test_promises_hold_for_seeds_that_nobody_has_seen(capsys: pytest.CaptureFixture[str]) -> None:
    first_seed = SystemRandom().randrange(FIRST_SEED_MAX)
    with capsys.disabled():
        print(f"\nsimulation: make sim FIRST_SEED={first_seed} SEEDS={FRESH_SEEDS}")
    for seed in range(first_seed, first_seed + FRESH_SEEDS):
        _check_seed(seed)


def _check_seed(seed: int) -> None:
    outcome = outcome_of(seed)
    assert outcome.violation is None, f"make sim SEED={seed}: {outcome.violation}: {outcome.detail}"
    assert outcome.acknowledged > 0


def test_a_seed_is_the_same_with_rocksdb_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map in place of RocksDB keeps and loses the same keys; otherwise the runs would part at the first restart."""
    outcome = outcome_of(2)
    has_rocksdb = plan.draw_plan(World(2), plan.NO_EDITS).rocksdb
    monkeypatch.setattr(plan, "ROCKSDB_PROBABILITY", 0.0 if has_rocksdb else 1.1)
    assert plan.draw_plan(World(2), plan.NO_EDITS).rocksdb != has_rocksdb
    assert run_safe(2) == outcome


def test_stock_handlers_are_found_guilty() -> None:
    verdicts = (run_stock(seed).violation for seed in range(STOCK_SEEDS_MAX))
    assert any(verdict in ("leader_completeness", "acknowledged_lost", "state_machine_safety") for verdict in verdicts)


def test_acks_of_an_earlier_term_are_caught() -> None:
    """Two elections have to pass while one message is on its way: rare by chance, so the interleaving is played."""
    with MUTANTS["takes-acks-of-any-term"].installed(), pytest.raises(Violation):
        scenarios.acknowledgement_of_an_earlier_leadership(SafeMember)


def test_a_seed_repeats_itself_in_any_process() -> None:
    """Nothing may depend on hash randomisation, addresses, time or scheduling."""
    hash_seed = "4242" if os.environ.get("PYTHONHASHSEED") != "4242" else "1"
    result, outcome = _run_in_process(("--seed", "5"), hash_seed), outcome_of(5)
    assert (result["trace"], result["steps"]) == (outcome.trace, outcome.steps)
    assert result["met"] == dict(sorted(outcome.met.items()))
    assert _run_in_process(("--seed", "4", "--stock"), hash_seed)["trace"] == run_stock(4).trace


def test_the_command_fails_when_a_broken_node_runs() -> None:
    """The command shrinks its failure, tells the story, and says how to repeat it. The repetition fails in the same
    way.
    """
    arguments = ("--seeds", "2", "--first-seed", "7", "--jobs", "1", "--mutant", "forgets-votes")
    completed = _command(arguments, "0")
    result = _result_of(completed)
    assert completed.returncode == EXIT_VIOLATION
    assert (result["violations"], result["failed_seeds"], result["first_seed"]) == (2, [7, 8], 7)
    assert "FIRST_SEED=7" in completed.stdout
    assert re.search(
        r"stands for election in term 1\n(.*\n)*.*BROKEN PROMISE nothing_unsynced_promised", completed.stdout
    )
    replay = re.search(
        r"replay: make sim SEED=7 SIM_ARGS='(--mutant forgets-votes --only-faults .*)'", completed.stdout
    )
    assert replay is not None, completed.stdout
    again = _command(("--seed", "7", *replay[1].split()), "0")
    assert again.returncode == EXIT_VIOLATION
    assert _result_of(again)["violation"] == "nothing_unsynced_promised"


def test_seeds_are_fresh_unless_the_first_is_named() -> None:
    runs = [_command(("--seeds", "1", "--jobs", "1", "--stock"), "0") for _ in range(2)]
    first_seeds = [_result_of(run)["first_seed"] for run in runs]
    assert first_seeds[0] != first_seeds[1]
    again = _command(("--seeds", "1", "--jobs", "1", "--stock", "--first-seed", str(first_seeds[0])), "0")
    assert _result_of(again) == _result_of(runs[0])


def test_edits_without_a_seed_are_refused() -> None:
    completed = _command(("--seeds", "2", "--only-faults", "none"), "0")
    assert completed.returncode == 2
    assert "need --seed" in completed.stderr


def _run_in_process(arguments: tuple[str, ...], hash_seed: str) -> dict[str, Any]:
    return _result_of(_command(arguments, hash_seed))


def _command(arguments: tuple[str, ...], hash_seed: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "tests.sim", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def _result_of(completed: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert completed.stdout, completed.stderr
    return result_of(completed.stdout)
