"""The words of keelmq-deploy while it waits, and a dry run, which looks once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.rollout import health
from deploy.rollout.health import Probe
from deploy.rollout.inventory import read_inventory
from tests.unit.deploy.stand_ins import Cluster, Run

NO_LEADER = "the nodes have no leader (node 1: "
PATIENCE_S = "20"


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Path]:
    """Write the inventory of a cluster of which no node runs."""
    made = Cluster()
    made.down = {1, 2, 3}
    yield made.inventory(tmp_path)
    made.end()


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("verb", [("transfer", "2"), ("add", "2"), ("remove", "2"), ("spare", "2"), ("wait",)])
def test_a_dry_run_looks_once(run: Run, verb: tuple[str, ...]) -> None:
    """A run that waited would say for what, and after its time that it waited."""
    code, said = run(*verb, "--dry-run", "--timeout-s", PATIENCE_S)
    assert code in (1, 3), said
    assert "after" not in said.partition("RESULT")[0]
    assert "waiting" not in said


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("verb", [("transfer", "2"), ("remove", "2")])
def test_who_waits_for_a_leader_says_so_at_once(run: Run, verb: tuple[str, ...]) -> None:
    code, said = run(*verb, "--timeout-s", "0.2")
    assert code == 3, said
    assert f"waiting: {NO_LEADER}" in said
    assert f"after 0 s still {NO_LEADER}" in said


def test_a_long_wait_says_what_for_every_few_seconds(stopped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SAY_EVERY_S", 0.0)
    said: list[str] = []
    probe = Probe(read_inventory(stopped), said.append)
    reasons = iter(["node 1 is not ready", "node 2 is not ready", None])
    probe.wait(lambda _: next(reasons), 60.0)
    assert said == ["waiting: node 1 is not ready", "waiting: node 2 is not ready"]
