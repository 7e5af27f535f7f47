"""A scenario is repeated only when a disturbance explains its failure, and not for ever."""

from pathlib import Path

import pytest

from tests.e2e.undisturbed import ATTEMPTS_MAX, Disturbed, judged_unless, undisturbed


def test_a_failure_that_nothing_disturbed_is_a_failure(tmp_path: Path) -> None:
    attempts: list[Path] = []

    def scenario(directory: Path) -> None:
        attempts.append(directory)
        with judged_unless(lambda: None):
            raise AssertionError("wrong")

    with pytest.raises(AssertionError, match="wrong"):
        undisturbed(scenario, tmp_path)
    assert len(attempts) == 1


def test_a_disturbed_failure_is_judged_again(tmp_path: Path) -> None:
    attempts: list[Path] = []

    def scenario(directory: Path) -> None:
        attempts.append(directory)
        with judged_unless(lambda: "an election"):
            assert len(attempts) == 2

    undisturbed(scenario, tmp_path)
    assert len(set(attempts)) == 2, "each attempt has a directory of its own"


def test_what_is_never_judged_fails(tmp_path: Path) -> None:
    attempts: list[Path] = []

    def scenario(directory: Path) -> None:
        attempts.append(directory)
        with judged_unless(lambda: "an election"):
            raise AssertionError("wrong")

    with pytest.raises(Disturbed, match="an election"):
        undisturbed(scenario, tmp_path)
    assert len(attempts) == ATTEMPTS_MAX
