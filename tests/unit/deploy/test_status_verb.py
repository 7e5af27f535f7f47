"""`keelmq-deploy status`: which builds run, and which nodes are drained."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.rollout import __main__
from deploy.rollout.host_agent import DRAINED
from tests.unit.deploy.stand_ins import Cluster

Status = Callable[[], tuple[int, str]]


@pytest.fixture
def status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Status:
    def run() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", "status", "-i", str(tmp_path / "cluster.toml")])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_builds_that_differ_are_told_with_their_hosts(cluster: Cluster, status: Status, tmp_path: Path) -> None:
    cluster.inventory(tmp_path)
    cluster.commits = dict.fromkeys((1, 2, 3), "0123456789ab")
    code, said = status()
    assert code == 0
    assert said.count("0.3.0    0123456789ab  ready") == 3, said
    assert "the builds differ" not in said
    cluster.commits[2] = "ba9876543210"
    del cluster.commits[3]
    code, said = status()
    assert code == 0, "a rolling upgrade is no failure"
    wanted = (
        "the builds differ: 0.3.0 at node 3 (this machine); 0.3.0 0123456789ab at node 1 (this machine); "
        "0.3.0 ba9876543210 at node 2 (this machine). Next: keelmq-deploy upgrade --bundle FILE"
    )
    assert wanted in said, said


def test_drained_nodes_are_told(cluster: Cluster, status: Status, tmp_path: Path) -> None:
    """A node that `keelmq node drain` asks not to lead goes on; one that `keelmq-deploy drain` has stopped does not."""
    cluster.drained, cluster.down = {2}, {3}
    cluster.inventory(tmp_path)
    root = tmp_path / "hosts" / "node3"
    root.mkdir(parents=True)
    code, said = status()
    assert code == 1
    assert "ready, drained: others lead while one can" in said
    assert "does not run: " in said
    (root / DRAINED).touch()
    code, said = status()
    assert code == 1
    assert "drained: out of service until keelmq-deploy undrain 3" in said, said
    assert "ready, drained: others lead while one can" in said
