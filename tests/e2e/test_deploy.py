"""`keelmq-deploy` on real nodes: on this machine, and over ssh to an sshd of its own."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.deployment import Deployment, kill_once, load
from tests.e2e.killed_tool import kill_at_steps
from tests.lose_host import lose
from tests.patience import PATIENCE_S
from tests.requirements import REPOSITORY

pytestmark = pytest.mark.process


async def test_a_restart_node_by_node_fails_no_call(deployment: Deployment) -> None:
    assert "looked at" in deployment.done("preflight")
    assert "plan:" in deployment.done("bootstrap", "--dry-run")
    assert not (deployment.directory / "hosts").exists()
    deployment.done("bootstrap")
    before = deployment.pids()
    assert len(before) == 3
    deployment.done("bootstrap")
    assert deployment.pids() == before
    leader = deployment.leader()
    async with load(deployment) as acknowledged:
        output = await asyncio.to_thread(deployment.done, "restart")
    after = deployment.pids()
    assert {number for number in before if before[number] != after[number]} == {1, 2, 3}
    assert acknowledged
    order = [int(number) for number in re.findall(r"of \d+: node (\d) \(this machine\): restart", output)]
    assert (sorted(order), order[-1]) == ([1, 2, 3], leader)
    assert output.count("(leader: it hands over when it is stopped)") >= 1
    deployment.done("status")
    assert "node 2" in deployment.done("logs", "--lines", "3")
    assert not (deployment.directory / "cluster.toml.restart").exists()


def test_a_restart_whose_tool_was_killed_goes_on_where_it_stopped(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    for step in range(4, 7):
        before = deployment.pids()
        output = kill_once(deployment, ("restart",), f"{step} of 7: ")
        first = int(re.findall(r"4 of 7: node (\d)", output)[0])
        between = deployment.pids()
        output = deployment.done("restart")
        assert "going on with a restart that was not finished" in output
        after = deployment.pids()
        assert {number for number in before if after.get(number, 0) in (0, before[number])} == set()
        if step > 4:  # this node was done, and is not disturbed again
            assert after[first] == between[first] != before[first]
    deployment.done("status")


def test_an_upgrade_restarts_only_what_differs(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    before = deployment.pids()
    assert "nothing is left to do" not in deployment.done("bootstrap")
    deployment.options[2] = {"log_level": "debug"}
    deployment.write()
    deployment.done("upgrade")
    after = deployment.pids()
    assert {number for number in before if before[number] != after[number]} == {2}
    deployment.done("upgrade")
    assert deployment.pids() == after
    # What keelmqd would not start with stops no node.
    deployment.options[3] = {"heartbeat_ms": "often"}
    deployment.write()
    refused = deployment.run("upgrade")
    assert refused.returncode == 1
    assert "node 3" in refused.stderr
    assert "heartbeat_ms" in refused.stderr
    assert deployment.pids() == after


def test_what_would_cost_the_quorum_is_refused(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    leader = deployment.leader()
    frozen = max(number for number in (1, 2, 3) if number != leader)
    before = deployment.pids()
    os.kill(before[frozen], signal.SIGSTOP)
    try:
        refused = deployment.run("restart", "--timeout-s", "1")
        assert refused.returncode == 3, refused.stdout + refused.stderr
        assert "are needed" in refused.stderr
        assert f"node {frozen}: " in refused.stderr
        assert deployment.pids() == before
        assert deployment.run("status").returncode == 1
    finally:
        os.kill(before[frozen], signal.SIGCONT)


def test_another_cluster_with_the_same_root_is_left_alone(deployment: Deployment, tmp_path: Path) -> None:
    """The name that `destroy` asks for is that of the inventory, which may be the wrong one for these directories."""
    deployment.done("bootstrap")
    before = deployment.pids()
    bank = tmp_path / "bank.toml"
    bank.write_text(deployment.file.read_text().replace('id = "e2e"', 'id = "bank"'))
    assert bank.read_text() != deployment.file.read_text()
    for verb in (["destroy", "--yes", "bank"], ["bootstrap"], ["restart"]):
        command = [sys.executable, "-m", "deploy.rollout", *verb, "--inventory", str(bank)]
        ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S)
        assert ended.returncode != 0, (verb, ended.stdout + ended.stderr)
    assert deployment.pids() == before


def test_nothing_is_removed_by_mistake(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    refused = deployment.run("destroy")
    assert (refused.returncode, len(deployment.pids())) == (3, 3)
    assert "--yes e2e" in refused.stderr
    deployment.done("destroy", "--yes", "e2e")
    assert deployment.pids() == {}
    assert not any(deployment.root(number).exists() for number in (1, 2, 3))
    deployment.done("destroy", "--yes", "e2e")
    # A directory of somebody else.
    deployment.root(1).mkdir(parents=True)
    (deployment.root(1) / "letters").write_text("dear")
    refused = deployment.run("destroy", "--yes", "e2e")
    assert refused.returncode == 1
    assert "is not marked as that of node 1 of the cluster e2e" in refused.stderr
    assert (deployment.root(1) / "letters").read_text() == "dear"
    found = deployment.run("preflight")
    assert found.returncode == 1
    assert "is in use by something else" in found.stdout
    assert deployment.run("bootstrap").returncode == 1
    assert [path.name for path in deployment.root(1).iterdir()] == ["letters"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ('[cluster]\nid = "e2e"\nroot = "/"\n[[node]]\nid = 1\npeer = "a:1"\nurl = "http://a:2"\n', "root"),
        ('[cluster]\nid = "e2e"\nroot = "/srv/../etc"\n[[node]]\nid = 1\npeer = "a:1"\nurl = "http://a:2"\n', "root"),
        ('[cluster]\nid = "e2e"\nroot = "/srv/q"\nnode = []\n', "unknown field"),
        ('[cluster]\nid = "e2e"\nroot = "/srv/q"\n[[node]]\nid = 1\npeer = "a:1"\nurl = "ftp://a"\n', "url"),
        (
            '[cluster]\nid = "e2e"\nroot = "/srv/q"\n[[node]]\nid = 1\npeer = "a:1"\nurl = "http://a"\nssh = "-oX"\n',
            "ssh",
        ),
        (
            '[cluster]\nid = "e2e"\nroot = "/srv/q"\n[options]\ndata_dir = "/x"\n'
            '[[node]]\nid = 1\npeer = "a:1"\nurl = "http://a"\n',
            "data_dir",
        ),
        ("[cluster", "cluster.toml"),
    ],
)
def test_a_mistake_in_the_inventory_is_a_usage_error(tmp_path: Path, change: str, word: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(change)
    command = [sys.executable, "-m", "deploy.rollout", "bootstrap", "--inventory", str(file)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert word in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.toml"]


def test_a_cluster_is_deployed_over_ssh(ssh_deployment: Deployment) -> None:
    deployment = ssh_deployment
    deployment.done("preflight")
    deployment.done("bootstrap")
    before = deployment.pids()
    deployment.done("restart")
    after = deployment.pids()
    assert {number for number in before if before[number] != after[number]} == {1, 2, 3}
    deployment.done("destroy", "--yes", "e2e")
    assert deployment.pids() == {}
    # A host that nobody may enter is named, with the reason of ssh.
    (deployment.directory / "known_hosts").write_text("")
    refused = deployment.run("preflight")
    assert refused.returncode == 1
    assert "node 1 (root@127.0.0.1): facts: exit code 255" in refused.stdout


def test_a_tool_that_is_killed_at_every_step_over_ssh_ends_alike(ssh_deployment: Deployment, keelmqd: str) -> None:
    """The kills are those of an upgrade of one node and of its replacement; `make deploy-test` has all of both."""
    deployment = ssh_deployment
    deployment.cluster["program"] = keelmqd
    deployment.write()
    deployment.done("bootstrap")
    before = deployment.pids()
    deployment.options[2] = {"log_level": "debug"}
    deployment.write()
    assert kill_at_steps(deployment, "upgrade") >= 3
    after = deployment.pids()
    assert {number for number in before if before[number] != after.get(number)} == {2}
    deployment.done("upgrade")
    assert deployment.pids() == after
    lose([deployment.root(2)])
    # A node that the killed tool has started may be healthy before the next run looks: then it waits for nothing.
    assert kill_at_steps(deployment, "replace", "2") >= 2
    deployment.done("status")
    assert {number: pid for number, pid in deployment.pids().items() if number != 2} == {1: before[1], 3: before[3]}
