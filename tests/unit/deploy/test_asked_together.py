"""Nodes and hosts are asked side by side: those that do not answer take no longer than one."""

import threading
from pathlib import Path

import pytest

from deploy.rollout import health, verbs
from deploy.rollout.health import Probe
from deploy.rollout.inventory import Node, read_inventory
from deploy.rollout.transport import HostError, answers_of
from tests.patience import PATIENCE_S
from tests.unit.deploy.stand_ins import Cluster, Run


@pytest.fixture
def together() -> threading.Barrier:
    """A barrier that lets nobody through until all three are there."""
    return threading.Barrier(3, timeout=PATIENCE_S)


def test_the_health_of_all_nodes(
    cluster: Cluster, together: threading.Barrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PROBE_TIMEOUT_S", 2 * PATIENCE_S)
    cluster.before_answer = together.wait
    views = Probe(read_inventory(cluster.inventory(tmp_path))).views()
    assert [(view.node.id, view.reason) for view in views] == [(1, None), (2, None), (3, None)]


def test_hosts_of_which_one_says_no(cluster: Cluster, together: threading.Barrier, tmp_path: Path) -> None:
    def ask(node: Node) -> int:
        together.wait()
        if node.id == 2:
            raise HostError(node, "no route")
        return node.id

    nodes = read_inventory(cluster.inventory(tmp_path)).nodes
    first, second, third = answers_of(ask, nodes, 3)
    assert (first, third) == (1, 3)
    assert isinstance(second, HostError)
    assert second.node.id == 2


def test_the_hosts_of_nodes_that_do_not_answer(
    cluster: Cluster, run: Run, together: threading.Barrier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Drained:
        is_drained = True

        def __init__(self, *_: object) -> None:
            together.wait()

    cluster.down = {1, 2, 3}
    cluster.inventory(tmp_path)
    monkeypatch.setattr(verbs, "Deployed", Drained)
    code, said = run("status")
    assert code == 1, said
    assert [f"undrain {number}" in said for number in (1, 2, 3)] == [True, True, True]
