"""Notices of nodes to the service manager, heard at a real datagram socket, and the effect of SIGHUP."""

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from deploy.bundle import UNITS
from tests.e2e.cluster_process import ClusterProcess, wait_for
from tests.requirements import REPOSITORY, Requirement

SYSTEMD_ANALYZE = Requirement("systemd-analyze")


class Manager:
    """The socket of a service manager, and everything that it has heard."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def listen(self) -> list[str]:
        """Take what has arrived; return all lines heard so far."""
        while True:
            try:
                self.heard += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self.heard

    def wait(self, line: str) -> None:
        wait_for(lambda: any(each.startswith(line) for each in self.listen()), f"{line} among {self.heard}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    with Manager(str(tmp_path / "notify") if request.param == "path" else f"@keelmq-test-{os.getpid()}") as made:
        yield made


def test_a_node_is_ready_once_a_leader_is_there_and_says_what_it_does(tmp_path: Path, manager: Manager) -> None:
    cluster = ClusterProcess(tmp_path, nodes=3)
    first, *others = cluster.nodes.values()
    first.environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "2000000"}
    try:
        first.start()
        manager.wait("STATUS=not ready: ")
        manager.wait("EXTEND_TIMEOUT_USEC=")
        manager.wait("WATCHDOG=1")
        assert "READY=1" not in manager.heard
        for other in others:
            other.start()
        manager.wait("READY=1")
        leader = cluster.wait_leader()
        manager.wait("STATUS=leader of term " if leader is first else "STATUS=follower of term ")
        assert first.terminate() == 0
        manager.wait("STOPPING=1")
        assert manager.heard.count("READY=1") == 1
        assert "STOPPING=1" not in manager.heard[: manager.heard.index("READY=1")]
    finally:
        cluster.stop()


def test_a_loop_that_stands_gives_no_sign_of_life(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, nodes=1)
    (node,) = cluster.nodes.values()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with Manager(str(tmp_path / "notify")) as manager:
        node.module = "tests.e2e.standing_node"
        node.environment = {
            "NOTIFY_SOCKET": manager.address,
            "WATCHDOG_USEC": "300000",
            "STANDING_PIPE": str(pipe),
        }
        try:
            node.start()
            manager.wait("READY=1")
            node.send_signal(signal.SIGUSR1)
            writer = wait_for(lambda: _writer(pipe), "the loop to stand")
            manager.listen().clear()
            # Another thread of the node sees it, so the process lives all the time.
            wait_for(lambda: "the event loop has stood for" in node.output(), "the log to say it")
            assert "WATCHDOG=1" not in manager.listen()
            os.close(writer)
            manager.wait("WATCHDOG=1")
        finally:
            cluster.stop()


def _writer(pipe: Path) -> int | None:
    """Return the writing end of the pipe once somebody waits at its other end."""
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"NOTIFY_SOCKET": "vsock:2:1"}, "is neither a path nor an abstract name"),
        ({"NOTIFY_SOCKET": "/nowhere/notify"}, "the service manager cannot be told"),
        ({"NOTIFY_SOCKET": "/" + "x" * 200}, "the service manager cannot be told"),
        ({"NOTIFY_SOCKET": "/nowhere/notify", "WATCHDOG_USEC": "soon"}, "is not a number of microseconds"),
    ],
)
def test_a_node_serves_whatever_its_manager_gave_it(tmp_path: Path, variables: dict[str, str], line: str) -> None:
    with ClusterProcess(tmp_path, nodes=1, environment=variables) as cluster:
        (node,) = cluster.nodes.values()
        wait_for(lambda: line in node.output(), line)
        assert node.ready()


def test_a_hang_up_takes_over_the_log_level_and_refuses_a_mistake(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path, nodes=1)
    (node,) = cluster.nodes.values()
    file = tmp_path / "node.toml"
    file.write_text('log_level = "error"\n')
    node.arguments += ["--config", str(file)]
    try:
        node.start()
        cluster.wait_leader()
        assert " INFO " not in node.output()
        file.write_text('log_level = "loud"\n')
        node.send_signal(signal.SIGHUP)
        wait_for(lambda: "SIGHUP: the configuration is not used" in node.output(), "the refusal")
        file.write_text('log_level = "info"\n')
        node.send_signal(signal.SIGHUP)
        wait_for(lambda: "SIGHUP: the log level is info" in node.output(), "the new level")
        assert node.terminate() == 0
        assert " INFO " in node.output()
    finally:
        cluster.stop()


def test_the_units_are_some_that_systemd_understands(tmp_path: Path) -> None:
    SYSTEMD_ANALYZE.require()
    units = []
    for name in UNITS:
        text = (REPOSITORY / "deploy" / "systemd" / name).read_text()
        units.append(tmp_path / name)
        units[-1].write_text(re.sub(r"/opt/keelmq/current/bin/\w+", "/bin/true", text))
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, ""), done.stderr
