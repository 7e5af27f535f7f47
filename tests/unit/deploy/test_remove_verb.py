"""`keelmq-deploy remove` of a node whose host is dead: the others let it go, and what its host still has is said."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.rollout import __main__
from deploy.rollout.rolling import Deployed
from deploy.rollout.transport import Host, HostError
from tests.unit.deploy.stand_ins import Cluster

Remove = Callable[..., tuple[int, str]]


@pytest.fixture
def dead_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host is entered by ssh."""

    def refuse(host: Host) -> None:
        raise HostError(host.node, "facts: exit code 255: ssh: connect to host 10.0.0.3 port 22: No route to host")

    monkeypatch.setattr(Host, "facts", refuse)


@pytest.fixture
def remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Remove:
    def run(*arguments: str) -> tuple[int, str]:
        inventory = str(tmp_path / "cluster.toml")
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", "remove", "3", *arguments, "-i", inventory])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.usefixtures("dead_host")
def test_a_dead_host_is_no_obstacle(cluster: Cluster, remove: Remove, tmp_path: Path) -> None:
    cluster.down = {3}
    cluster.inventory(tmp_path)
    left = f"left on the dead host, if its disk is not lost: {tmp_path}/hosts/node3 with the data"
    for arguments, asked in ((["--dry-run"], []), ([], ["DELETE /v1/cluster/members/3"])):
        code, said = remove(*arguments)
        assert (code, cluster.asked) == (0, asked), said
        assert "not reached, and taken as dead: node 3 (this machine)" in said
        assert "1. node 3 (this machine): leave the cluster" in said
        assert left in said
        assert "next: take node 3 out of cluster.toml" in said
    code, said = remove()
    assert (code, len(cluster.asked)) == (0, 1)
    assert "plan: nothing is left to do" in said
    assert left in said


@pytest.mark.usefixtures("dead_host")
def test_a_node_that_answers_is_not_left_running(cluster: Cluster, remove: Remove, tmp_path: Path) -> None:
    """A wrong key for ssh is no dead host."""
    cluster.inventory(tmp_path)
    code, said = remove()
    assert (code, cluster.asked) == (1, []), said
    assert "its host cannot be entered to stop it: node 3 (this machine): facts: exit code 255" in said


@pytest.mark.usefixtures("dead_host")
def test_the_majority_is_asked_first(cluster: Cluster, remove: Remove, tmp_path: Path) -> None:
    cluster.down = {2, 3}
    cluster.inventory(tmp_path)
    code, said = remove("--timeout-s", "0.1")
    assert (code, cluster.asked) == (3, []), said
    assert "without node 3, 1 of 3 nodes are ready, and 2 are needed" in said


def test_a_node_on_a_living_host_is_stopped(
    cluster: Cluster, remove: Remove, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[int] = []
    monkeypatch.setattr(Deployed, "pid", 4711)
    monkeypatch.setattr(Deployed, "stop", lambda each: stopped.append(each.node.id))
    cluster.inventory(tmp_path)
    code, said = remove()
    assert (code, stopped, cluster.members) == (0, [3], [1, 2]), said
    assert "dead host" not in said
