"""The command of `make fuzz` with one small round; the tests in tests/fuzz are themselves part of every test run."""

import subprocess
import sys
from pathlib import Path

from deploy.reporting.result import result_of
from tests.patience import RUN_PATIENCE_S

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", "--seed", "7", "--scale", "0.1", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_PATIENCE_S)


def test_a_round_ends_with_its_result() -> None:
    done = fuzz("-k", "test_small_files")
    result = result_of(done.stdout)
    assert done.returncode == 0, done.stdout
    assert (result["rounds"], result["failed"], result["seeds"], result["scale"]) == (1, 0, [7], 0.1)
    assert result["tests"] >= 1


def test_a_round_that_fails_is_told_whole_and_ends_with_its_result() -> None:
    done = fuzz("-k", "no_such_test")
    assert done.returncode == 1
    assert " deselected" in done.stdout, "the output of pytest is not shown"
    assert "make fuzz SEED=7" in done.stdout
    assert result_of(done.stdout)["failed"] == 1
