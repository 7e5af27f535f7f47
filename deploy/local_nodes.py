"""Broker nodes as processes of this machine, for `make cluster`, the demo, the benchmark and tests.

Each node has a directory of its own: `data/` (the data directory), `keelmqd.log` (its standard error) and
`keelmqd.pid`. A process counts as the node only if its command line names that data directory, so a recycled process id
is never killed.
"""

import contextlib
import os
import random
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from deploy.broker_process import HOST as HOST
from deploy.broker_process import BrokerProcess
from deploy.claimed_ports import ClaimedPorts

READY_TIMEOUT_S: Final = 60.0
REMOVED: Final = "was removed from the cluster"  # part of the reason that a removed node gives for not being ready
STOP_TIMEOUT_S: Final = 10.0
POLL_S: Final = 0.05
LOG_TAIL_LINES: Final = 15
SERVER_PORT_MIN: Final = 10_000
SERVER_PORTS_MIN: Final = 1_000

_random = random.SystemRandom()
_claimed = ClaimedPorts()


class NodeError(Exception):
    """Raised when a node cannot be started or did not become ready; the message says why and what to do."""


class LocalNode(BrokerProcess):
    """One keelmqd process. `options` are configuration options by name, as in docs/configuration.md."""

    DIES_WITH_PARENT: ClassVar[bool] = False  # `make cluster` ends, and its nodes go on
    OWN_SESSION: ClassVar[bool] = True  # Ctrl-C in the terminal is meant for the supervisor, not for the nodes

    def __init__(
        self, node_id: int, directory: Path, http_port: int, peer_port: int, options: Mapping[str, str] | None = None
    ) -> None:
        self.directory = directory.absolute()
        super().__init__(node_id, http_port, peer_port, self.directory / "data", self.directory / "keelmqd.log")
        self.options = dict(options or {})
        self.peers: Sequence[LocalNode] = (self,)
        self.join_url: str | None = None
        """URL of a node of the running cluster that this node is added to; `peers` are then not used."""
        self._pid_file = self.directory / "keelmqd.pid"

    def command(self) -> list[str]:
        keelmqd = Path(sys.executable).parent / "keelmqd"
        line = [str(keelmqd), "--node-id", str(self.node_id), "--data-dir", str(self.data_dir)]
        if self.join_url is not None:
            line += ["--join", self.join_url]
            line += ["--http-listen", f"{HOST}:{self.http_port}", "--peer-listen", f"{HOST}:{self.peer_port}"]
        for peer in self.peers if self.join_url is None else ():
            line += ["--peer", peer.peer_option]
        for name, value in self.options.items():
            line += ["--" + name.replace("_", "-"), value]
        return line

    def running_pid(self) -> int | None:
        """Return the process id of this node, whoever started it; None when it does not run."""
        if self.process is not None:
            return self.pid if self.running() else None
        try:
            pid = int(self._pid_file.read_text())
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.data_dir) in arguments else None

    def start(self) -> None:
        """Start the process and return at once. Raises NodeError when it already runs or a port is taken."""
        if self.running_pid() is not None:
            raise NodeError(f"node {self.node_id} is running already (pid {self.running_pid()})")
        for port, variable in ((self.http_port, "CLUSTER_HTTP_PORT"), (self.peer_port, "CLUSTER_PEER_PORT")):
            if not port_is_free(port):
                raise NodeError(
                    f"node {self.node_id}: port {port} of {HOST} is in use by another program; "
                    f"stop it or choose other ports, as in: make cluster {variable}={port + 1000}"
                )
        self.launch(self.command())
        self._pid_file.write_text(f"{self.pid}\n")  # a line, so that `cat node*/keelmqd.pid` gives words

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self.send_signal(signal.SIGKILL)
        self._wait_gone(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Ask the node to hand over and end; send SIGKILL if it has not ended within STOP_TIMEOUT_S."""
        self.send_signal(signal.SIGTERM)
        if not self._wait_gone(STOP_TIMEOUT_S):
            self.kill()
        self._pid_file.unlink(missing_ok=True)

    def not_ready(self) -> str | None:
        """Return why the node is not ready yet, or None when it is. Raises NodeError when its process has ended."""
        if self.running_pid() is None:
            code = self.exit_code()
            end = "does not run" if code is None else f"ended with exit code {code}"
            raise NodeError(f"node {self.node_id} {end}; {self.log_path} says:\n{self.log_tail()}")
        return super().not_ready()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        return "\n".join(f"  {line}" for line in super().log_tail(lines).splitlines()) or "(nothing)"

    def send_signal(self, number: int) -> None:
        pid = self.running_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.running_pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True


def local_nodes(
    directory: Path, http_ports: Sequence[int], peer_ports: Sequence[int], options: Mapping[str, str] | None = None
) -> list[LocalNode]:
    """Return the nodes of one cluster, numbered from 1, without starting them. A missing peer secret is created."""
    ports = zip(http_ports, peer_ports, strict=True)
    secret = make_secret(directory)
    options = {"peer_secret_file": str(secret), **(options or {})}
    nodes = [
        LocalNode(number, directory / f"node{number}", http_port, peer_port, options)
        for number, (http_port, peer_port) in enumerate(ports, start=1)
    ]
    for node in nodes:
        node.peers = nodes
    return nodes


def make_secret(directory: Path) -> Path:
    """Return the file with the peer secret of the cluster in that directory; create it if it is missing."""
    file = (directory / "peer_secret").absolute()
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w") as stream:
            stream.write(secrets.token_hex() + "\n")
    return file


def nodes_on_free_ports(directory: Path, count: int, options: Mapping[str, str] | None = None) -> list[LocalNode]:
    ports = free_ports(2 * count)
    return local_nodes(directory, ports[:count], ports[count:], options)


def wait_ready(nodes: Sequence[LocalNode], timeout_s: float = READY_TIMEOUT_S) -> list[LocalNode]:
    """Wait until every node is ready, and return the nodes without those that were removed from the cluster.

    Removed nodes never become ready. Raises NodeError when a node ends, or is not ready in time.
    """
    deadline = time.monotonic() + timeout_s
    removed: list[LocalNode] = []
    waiting = list(nodes)
    while waiting:
        reasons = {node: node.not_ready() for node in waiting}  # of all: one that ended may be what others wait for
        removed += [node for node, reason in reasons.items() if reason is not None and REMOVED in reason]
        waiting = [node for node, reason in reasons.items() if reason is not None and node not in removed]
        if waiting and time.monotonic() > deadline:
            node = waiting[0]
            raise NodeError(
                f"node {node.node_id} is not ready after {timeout_s:.0f} s: {reasons[node]}\n"
                f"{node.log_path} ends with:\n{node.log_tail()}"
            )
        if waiting:
            time.sleep(POLL_S)
    return [node for node in nodes if node not in removed]


def free_ports(count: int) -> list[int]:
    """Return different ports of the loopback interface that no process listens on now, and that no other call has
    returned, of this process or of another one of this user that lives.

    The kernel does not use them for outgoing connections, so a node that was killed can bind its ports again.
    """
    found: list[int] = []
    ports = ports_of_servers()
    tries = 0
    while len(found) < count:
        port, tries = _random.choice(ports), tries + 1
        if port_is_free(port) and _claimed.claim(port):
            found.append(port)
        elif tries % len(ports) == 0:
            _claimed.forget()
    return found


def ports_of_servers() -> range:
    """Return the ports outside the kernel's range for outgoing connections; all ports if there are too few."""
    try:
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    except (OSError, ValueError):
        return range(SERVER_PORT_MIN, 1 << 16)
    beside = max(range(SERVER_PORT_MIN, first), range(last + 1, 1 << 16), key=len)
    return beside if len(beside) >= SERVER_PORTS_MIN else range(SERVER_PORT_MIN, 1 << 16)


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
