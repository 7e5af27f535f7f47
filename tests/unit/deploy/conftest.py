"""Fixtures of keelmq-deploy, run in this process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.rollout import __main__
from tests.unit.deploy.stand_ins import Cluster, Run


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.end()


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a verb with the inventory of the test, and returns its exit code and output."""

    def run_verb(*arguments: str) -> tuple[int, str]:
        inventory = str(tmp_path / "cluster.toml")
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", *arguments, "-i", inventory])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run_verb
