"""`keelmq-deploy` on real nodes: on this machine, and over ssh to an sshd of its own."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout.host_root import running
from keelmq import Admin, Connection, Producer
from keelmq.consuming.group_session import first_offset
from tests.e2e.cluster_process import wait_for
from tests.e2e.killed_tool import kill_at_steps
from tests.lose_host import lose
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S
from tests.requirements import REPOSITORY, Requirement

pytestmark = pytest.mark.process

OPTIONS: Final = {"election_timeout_ms": 500, "heartbeat_ms": 50, "segment_bytes": 4 << 20, "min_free_bytes": 0}
SSH = Requirement("ssh", "ssh-keygen", "sshd", root=True)


class Deployment:
    """An inventory of nodes below one directory, three unless told otherwise, and the tool that works on it."""

    def __init__(
        self, directory: Path, cluster: dict[str, Any] | None = None, ssh: str = "", numbers: Sequence[int] = (1, 2, 3)
    ) -> None:
        self.directory = directory
        self.file = directory / "cluster.toml"
        ports = free_ports(6)
        self.urls = {number: f"http://127.0.0.1:{ports[number - 1]}" for number in numbers}
        self.peers = {number: f"127.0.0.1:{ports[number + 2]}" for number in numbers}
        self.cluster = {
            "id": "e2e",
            "root": str(directory / "hosts"),
            "program": str(Path(sys.executable).parent / "keelmqd"),
            **(cluster or {}),
        }
        self.ssh = ssh
        self.hosts: dict[int, str] = {}
        """Destinations for ssh of nodes that are not at `ssh`."""
        self.options: dict[int, dict[str, Any]] = {number: {} for number in numbers}
        self.write()

    def write(self) -> None:
        lines = ["[cluster]", *toml_lines(self.cluster), "[options]", *toml_lines(OPTIONS)]
        for number, url in self.urls.items():
            node = {"id": number, "peer": self.peers[number], "url": url, "ssh": self.hosts.get(number, self.ssh)}
            lines += ["[[node]]", *toml_lines(node), "[node.options]", *toml_lines(self.options[number])]
        self.file.write_text("\n".join(lines) + "\n")

    def root(self, number: int) -> Path:
        return self.directory / "hosts" / f"node{number}"

    def pids(self) -> dict[int, int]:
        """Return the processes of the nodes that run, by node."""
        found = {number: running(self.root(number)) for number in self.urls}
        return {number: each[0] for number, each in found.items() if each is not None}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "deploy.rollout", *arguments, "--inventory", str(self.file)]

    def run(self, *arguments: str, patience_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        command = self.command(*arguments)
        return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=patience_s)

    def done(self, *arguments: str, patience_s: float = PATIENCE_S) -> str:
        """Run the tool, which must succeed, and return its output."""
        ended = self.run(*arguments, patience_s=patience_s)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def leader(self) -> int:
        return self.leader_of(1)

    def leader_of(self, number: int) -> int:
        """Return the leader that the node knows."""
        with urllib.request.urlopen(f"{self.urls[number]}/v1/cluster", timeout=PATIENCE_S) as answer:
            return int(json.load(answer)["leader_id"])

    def end(self) -> None:
        """End all nodes for certain, also one that is just being started."""

        def are_gone() -> bool:
            found = self.pids()
            for pid in found.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not found

        wait_for(are_gone, "the nodes to be gone")


def toml_lines(values: dict[str, Any]) -> list[str]:
    return [f"{name} = {json.dumps(value)}" for name, value in values.items()]


@pytest.fixture
def deployment(tmp_path: Path, keelmqd: str) -> Iterator[Deployment]:
    made = Deployment(tmp_path, {"program": keelmqd})
    try:
        yield made
    finally:
        made.end()


@asynccontextmanager
async def load(deployment: Deployment, took_s: list[float] | None = None) -> AsyncIterator[list[int]]:
    """Send one message after the other within the block, a hundred a second at most. The list has the number of each
    acknowledged one, and `took_s` gets the seconds of each call; any error of a call fails the test at the end of the
    block.
    """
    over, acknowledged = asyncio.Event(), list[int]()
    durations_s = [] if took_s is None else took_s

    async def send(producer: Producer) -> None:
        while not over.is_set():
            number = len(acknowledged)
            begun_s = time.monotonic()
            await producer.send("load", str(number).encode(), message_id=f"load-{number}")
            durations_s.append(time.monotonic() - begun_s)
            acknowledged.append(number)
            await asyncio.sleep(0.01)  # more would tell no more, and keep the processors busy

    connection = Connection(list(deployment.urls.values()))
    try:
        await Admin(connection).put_topic("load", queues=1)
        async with Producer(connection=connection, send_timeout_ms=CALL_PATIENCE_MS) as producer:
            sending = asyncio.create_task(send(producer))
            try:
                yield acknowledged
            finally:
                over.set()
                await sending
        assert await first_offset(connection, ("load", 0), "latest") == len(acknowledged)
    finally:
        connection.close()


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


def kill_once(deployment: Deployment, arguments: tuple[str, ...], text: str) -> str:
    """Start the tool and kill it with SIGKILL once it has printed the text; return its output until then."""
    process = subprocess.Popen(deployment.command(*arguments), cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = ""
    while text not in output:
        line = process.stdout.readline()
        assert line, output
        output += line
    process.kill()
    process.communicate()
    return output


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


@pytest.fixture
def ssh_deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A deployment over ssh to an sshd of this test, with keys of its own."""
    SSH.require()
    tmp_path.chmod(0o700)
    for name in ("host", "client"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    (port,) = free_ports(1)
    public = (tmp_path / "host.pub").read_text()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
    (tmp_path / "authorized_keys").write_text((tmp_path / "client.pub").read_text())
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {tmp_path}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {tmp_path}/authorized_keys\nPermitRootLogin prohibit-password\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = SSH.programs[2].path()
    with subprocess.Popen(
        [str(sshd), "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=subprocess.DEVNULL
    ) as it:
        made = None
        try:
            wait_for(lambda: _accepts(port), "sshd")
            options = ["-F", "none", "-p", str(port), "-i", f"{tmp_path}/client"]
            options += ["-o", f"UserKnownHostsFile={tmp_path}/known_hosts"]
            made = Deployment(tmp_path, {"ssh_options": options, "python": sys.executable}, ssh="root@127.0.0.1")
            yield made
        finally:
            if made is not None:
                made.end()
            it.kill()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), PATIENCE_S).close()
    except OSError:
        return False
    return True


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
