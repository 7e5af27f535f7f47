"""Inventories of nodes on this machine, the tool that works on them, and a load beside its work."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
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
from tests.e2e.forked_tool import ForkedTool, tool_template
from tests.patience import CALL_PATIENCE_MS, PATIENCE_S
from tests.requirements import REPOSITORY, Requirement

OPTIONS: Final = {"election_timeout_ms": 500, "heartbeat_ms": 50, "segment_bytes": 4 << 20, "min_free_bytes": 0}
SSH = Requirement("ssh", "ssh-keygen", "sshd", root=True)


class Deployment:
    """An inventory of nodes below one directory, three unless told otherwise, and the tool that works on it."""

    def __init__(
        self, directory: Path, cluster: dict[str, Any] | None = None, ssh: str = "", numbers: Sequence[int] = (1, 2, 3)
    ) -> None:
        self.directory = directory
        self.is_forked = False
        """Whether the tool is forked from a process that has imported it."""
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

    def fork_tool(self) -> None:
        """Have the tool forked from now on. The main thread calls this."""
        tool_template()
        self.is_forked = True

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

    def begin(self, *arguments: str, errors: int | None = None) -> "subprocess.Popen[str] | ForkedTool":
        """Start the tool, whose output is read."""
        if self.is_forked:
            return ForkedTool([*arguments, "--inventory", str(self.file)], errors)
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(*arguments), cwd=REPOSITORY, stdout=pipe, stderr=errors, text=True)

    def run(self, *arguments: str, patience_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile("w+") as errors, self.begin(*arguments, errors=errors.fileno()) as tool:
            timer = threading.Timer(patience_s, tool.kill)
            timer.start()
            assert tool.stdout is not None
            output = tool.stdout.read()
            code = tool.wait()
            timer.cancel()
            errors.seek(0)
            return subprocess.CompletedProcess(arguments, code, output, errors.read())

    def done(self, *arguments: str, patience_s: float = PATIENCE_S) -> str:
        """Run the tool, which must succeed, and return its output."""
        ended = self.run(*arguments, patience_s=patience_s)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def leader(self) -> int:
        return self.leader_of(1)

    def leader_of(self, number: int) -> int:
        """Return the leader that the node knows, as soon as it knows one."""

        def known() -> int | None:
            with urllib.request.urlopen(f"{self.urls[number]}/v1/cluster", timeout=PATIENCE_S) as answer:
                leader: int | None = json.load(answer)["leader_id"]
            return leader

        return wait_for(known, f"node {number} to know a leader")

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


async def messages_of(deployment: Deployment) -> int:
    """Return how many messages the queue of the load has."""
    connection = Connection(list(deployment.urls.values()))
    try:
        return await first_offset(connection, ("load", 0), "latest")
    finally:
        connection.close()


def kill_once(deployment: Deployment, arguments: tuple[str, ...], text: str) -> str:
    """Start the tool and kill it with SIGKILL once it has printed the text; return its output until then."""
    output = ""
    with deployment.begin(*arguments) as process:
        assert process.stdout is not None
        while text not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        process.kill()
    return output


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
