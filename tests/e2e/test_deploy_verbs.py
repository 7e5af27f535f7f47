"""The verbs of `keelmq-deploy` for one node, and those that go back, on real nodes of this machine."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import ssl
import tarfile
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from deploy.local_nodes import free_ports
from deploy.reporting.result import result_of
from deploy.rollout.host_releases import point
from deploy.rollout.host_root import running
from deploy.rollout.support_bundle import REDACTED, redacted
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment, kill_once, load
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process


def members(deployment: Deployment) -> dict[int, str]:
    """Return the membership of the nodes, as node 1 sees it."""
    with urllib.request.urlopen(f"{deployment.urls[1]}/v1/cluster", timeout=PATIENCE_S) as answer:
        return {each["node_id"]: each["membership"] for each in json.load(answer)["nodes"]}


def result(deployment: Deployment, *arguments: str) -> dict[str, Any]:
    """Run the tool and return its result, which is also its exit code."""
    ended = deployment.run(*arguments)
    found = result_of(ended.stdout)
    assert found["exit_code"] == ended.returncode, ended.stdout + ended.stderr
    return found


def wipe(deployment: Deployment, number: int) -> None:
    """Kill the node, and take everything from its host."""
    before = deployment.pids()[number]
    os.kill(before, signal.SIGKILL)
    shutil.rmtree(deployment.root(number), ignore_errors=True)
    while deployment.root(number).exists():
        shutil.rmtree(deployment.root(number), ignore_errors=True)


def test_other_tools_are_told_when_a_node_may_be_stopped(deployment: Deployment) -> None:
    refused = result(deployment, "wait", "--timeout-s", "0.1")
    assert refused["exit_code"] == 1
    deployment.done("bootstrap")
    before, leader = deployment.pids(), deployment.leader()
    assert [result(deployment, "leads", str(number))["exit_code"] for number in (1, 2, 3)] == [
        int(number != leader) for number in (1, 2, 3)
    ]
    deployment.done("wait")
    deployment.done("spare", "2")
    assert deployment.pids() == before
    os.kill(before[1], signal.SIGKILL)
    wait_for(lambda: 1 not in deployment.pids(), "node 1 to be gone")

    def is_kept() -> bool:
        kept = result(deployment, "spare", "2", "--timeout-s", "0.1")
        assert kept["exit_code"] == 3
        return "without node 2, 1 of 3 nodes are ready, and 2 are needed" in kept["reason"]

    wait_for(is_kept, "node 2 to be needed, once another leader is elected")
    deployment.done("spare", "1")


async def test_leadership_and_service_move_without_a_failed_call(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    before = deployment.pids()
    to = min(number for number in (1, 2, 3) if number != deployment.leader())
    async with load(deployment) as acknowledged:
        planned = result(deployment, "transfer", str(to), "--dry-run")
        assert (planned["steps"], planned["steps_done"], deployment.leader() == to) == (1, 0, False)
        await asyncio.to_thread(deployment.done, "transfer", str(to))
        assert deployment.leader() == to
        assert result(deployment, "transfer", str(to))["steps"] == 0
        await asyncio.to_thread(deployment.done, "drain", str(to))
        left = {number: pid for number, pid in before.items() if number != to}
        assert deployment.pids() == left
        assert result(deployment, "drain", str(to))["steps"] == 0
        # The others are needed now, and a drained node is not started behind the operator's back.
        for verb in (["drain", str(min(left))], ["restart"], ["upgrade"], ["bootstrap"]):
            refused = await asyncio.to_thread(deployment.run, *verb, "--timeout-s", "1")
            assert refused.returncode == 3, refused.stdout + refused.stderr
        assert deployment.pids() == left
        await asyncio.to_thread(deployment.done, "undrain", str(to))
        assert result(deployment, "undrain", str(to))["steps"] == 0
    assert acknowledged
    assert set(deployment.pids()) == {1, 2, 3}
    deployment.done("restart")


def test_the_tool_administers_at_listeners_for_administration(deployment: Deployment) -> None:
    for number, port in zip((1, 2, 3), free_ports(3), strict=True):
        deployment.options[number] = {"admin_listen": f"127.0.0.1:{port}"}
    deployment.write()
    host, _, port = deployment.options[2]["admin_listen"].partition(":")
    with socket.create_server((host, int(port))):
        refused = deployment.run("preflight")
    assert refused.returncode == 1
    assert f"node 2 (this machine): port {port} cannot be used" in refused.stdout
    deployment.done("preflight")
    deployment.done("bootstrap")
    to = min(number for number in (1, 2, 3) if number != deployment.leader())
    deployment.done("transfer", str(to))
    assert deployment.leader() == to
    deployment.done("drain", str(to))
    deployment.done("undrain", str(to))


async def test_a_wiped_host_comes_back_under_load(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    leader = deployment.leader()
    async with load(deployment) as acknowledged:
        wipe(deployment, leader)
        output = await asyncio.to_thread(deployment.done, "replace", str(leader))
        assert re.search(r"start, joining node \d", output)
        assert result(deployment, "replace", str(leader))["steps"] == 0
    assert acknowledged
    deployment.done("status")
    assert "nothing is left to do" not in deployment.done("restart")
    # What a node with a new disk was started with counts as wanted.
    pids = deployment.pids()
    deployment.done("upgrade")
    assert deployment.pids() == pids


def test_a_replacement_whose_tool_was_killed_ends_alike(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    for step in ("1 of 3: ", "2 of 3: ", "3 of 3: "):
        number = deployment.leader()
        wipe(deployment, number)
        kill_once(deployment, ("replace", str(number)), step)
        deployment.done("replace", str(number))
        assert set(deployment.pids()) == {1, 2, 3}
        assert members(deployment) == {1: "voter", 2: "voter", 3: "voter"}
        deployment.done("status")


def test_a_node_is_added_and_removed(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    before = deployment.pids()
    assert deployment.run("add", "4").returncode == 2
    http_port, peer_port = free_ports(2)
    deployment.urls[4], deployment.peers[4] = f"http://127.0.0.1:{http_port}", f"127.0.0.1:{peer_port}"
    deployment.options[4] = {}
    deployment.write()
    assert deployment.run("replace", "4").returncode == 1
    assert result(deployment, "add", "4", "--dry-run")["steps"] == 5
    assert members(deployment) == {1: "voter", 2: "voter", 3: "voter"}
    kill_once(deployment, ("add", "4"), "3 of 5: ")
    deployment.done("add", "4")
    assert members(deployment) == {1: "voter", 2: "voter", 3: "voter", 4: "voter"}
    assert {number: deployment.pids()[number] for number in before} == before
    assert result(deployment, "add", "4")["steps"] == 0
    deployment.done("remove", "4")
    assert members(deployment) == {1: "voter", 2: "voter", 3: "voter"}
    assert deployment.pids() == before
    assert result(deployment, "remove", "4")["steps"] == 0
    # Two of three cannot lose one more.
    os.kill(before[3], signal.SIGSTOP)
    try:
        victim = next(number for number in (1, 2) if number != deployment.leader())
        assert result(deployment, "remove", str(victim), "--timeout-s", "1")["exit_code"] == 3
        assert len(members(deployment)) == 3
    finally:
        os.kill(before[3], signal.SIGCONT)


def child_of(pid: int) -> int:
    """Return the node that the supervisor runs, 0 while it runs none."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else 0


def test_a_supervised_node_is_started_again(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    try:
        deployment.done("bootstrap")
        plain = deployment.pids()
        deployment.cluster["supervised"] = True
        deployment.write()
        deployment.done("upgrade")
        before = deployment.pids()
        assert not set(before.values()) & set(plain.values())
        deployment.done("upgrade")
        assert deployment.pids() == before, "supervised nodes are what is wanted"
        nodes = {number: child_of(pid) for number, pid in before.items()}
        os.kill(nodes[2], signal.SIGKILL)
        wait_for(lambda: child_of(before[2]) not in (0, nodes[2]), "the supervisor to start node 2 again")
        deployment.done("wait")
        assert deployment.pids() == before
        assert "the node has ended with signal SIGKILL: it is started again" in deployment.done("logs")
        # A node whose supervisor was killed goes on, and the tool gives it another one.
        os.kill(before[3], signal.SIGKILL)
        wait_for(lambda: deployment.pids()[3] == nodes[3], "the supervisor to be gone")
        deployment.done("upgrade")
        after = deployment.pids()
        assert child_of(after[3]) not in (0, nodes[3])
        assert {number: after[number] for number in (1, 2)} == {number: before[number] for number in (1, 2)}
        deployment.done("restart")
        deployment.done("destroy", "--yes", "e2e")
        assert deployment.pids() == {}
    finally:
        deployment.end()


def test_a_node_of_a_dead_host_is_removed(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    victim = max(number for number in (1, 2, 3) if number != deployment.leader())
    wipe(deployment, victim)
    # ssh refuses this destination before it connects.
    deployment.hosts, deployment.cluster["ssh_options"] = {victim: "root@127.0.0.1"}, ["-o", "Port=0"]
    deployment.write()
    assert result(deployment, "remove", str(victim), "--dry-run")["steps"] == 1
    output = deployment.done("remove", str(victim))
    assert f"left on the dead host, if its disk is not lost: {deployment.root(victim)}" in output
    del deployment.urls[victim]
    deployment.write()
    deployment.done("status")


def test_certificates_are_made_renewed_and_read_again(deployment: Deployment) -> None:
    assert deployment.run("certs").returncode == 2
    deployment.cluster["tls"] = "all"
    deployment.urls = {number: url.replace("http:", "https:") for number, url in deployment.urls.items()}
    deployment.write()
    deployment.done("certs")
    deployment.done("bootstrap")
    before = deployment.pids()
    for number in (1, 2, 3):
        etc = deployment.root(number) / "etc"
        assert [(etc / name).stat().st_mode & 0o777 for name in ("node.key", "node.crt")] == [0o600, 0o644]
    shown = certificate(deployment, 2)
    assert result(deployment, "certs")["steps"] == 0
    assert certificate(deployment, 2) == shown
    deployment.done("certs", "--renew")
    assert certificate(deployment, 2) != shown
    deployment.done("status")
    assert deployment.pids() == before


def certificate(deployment: Deployment, number: int) -> str:
    """Return the certificate that the node shows once it has read its file; SIGHUP makes that soon."""
    host, port = deployment.urls[number].removeprefix("https://").split(":")
    wanted = (deployment.root(number) / "etc" / "node.crt").read_text().strip()
    while (found := ssl.get_server_certificate((host, int(port)), timeout=PATIENCE_S).strip()) != wanted:
        pass
    return found


def test_a_bundle_for_support_has_no_secrets(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    secret = (deployment.directory / "cluster.toml.secret").read_text().strip()
    with (deployment.root(2) / "keelmqd.log").open("a") as log:
        log.write(f"Authorization: Bearer abc123\nthe secret is {secret}\n")
    deployment.done("bundle")
    path = deployment.directory / "cluster.toml.support.tar.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as archive:
        texts = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}  # type: ignore[union-attr]
    assert len(texts) == 9
    assert json.loads(texts["e2e/node1/status.json"])["status"]["cluster_id"] == "e2e"
    assert REDACTED in texts["e2e/node2/keelmqd.log"]
    assert not any(secret in text or "abc123" in text for text in texts.values())


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ('{"token": "k1"}', "k1"),
        ("password=k1", "k1"),
        ("https://user:k1@host/", "k1"),
        ("-----BEGIN PRIVATE KEY-----\nk1\n-----END PRIVATE KEY-----", "k1"),
        ("authorization: Bearer k1", "k1"),
    ],
)
def test_what_is_called_a_secret_is_redacted(text: str, gone: str) -> None:
    assert gone not in redacted(text)
    assert redacted("node 1 leads term 7") == "node 1 leads term 7"


def releases(deployment: Deployment) -> list[str]:
    """Return the name of the release that each node runs."""
    found = [running(deployment.root(number)) for number in (1, 2, 3)]
    return [re.findall(r"/releases/(\w+)/", " ".join(each[1]))[0] for each in found if each is not None]


def test_a_rollback_goes_back_once_and_ends_alike_when_killed(deployment: Deployment) -> None:
    deployment.done("bootstrap")
    for number in (1, 2, 3):
        root = deployment.root(number)
        for name in ("a", "b"):
            (root / "releases" / name / "bin").mkdir(parents=True)
            shutil.copy(deployment.cluster["program"], root / "releases" / name / "bin")
        point(root / "current", root / "releases" / "b")
        point(root / "previous", root / "releases" / "a")
    deployment.cluster["program"] = ""
    deployment.write()
    deployment.done("upgrade")
    assert releases(deployment) == ["b", "b", "b"]
    kill_once(deployment, ("rollback",), "2 of 3: ")
    kill_once(deployment, ("rollback",), "5 of 7: ")
    deployment.done("rollback")
    assert releases(deployment) == ["a", "a", "a"]
    before = deployment.pids()
    again = deployment.done("rollback")
    assert "no host has a release from before" in again
    assert deployment.pids() == before
