"""Nodes start and stop on one machine: the owner of a process, the free ports, and the texts of errors."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.claimed_ports import ClaimedPorts
from deploy.local_cluster import ADDED_PORTS, main
from deploy.local_nodes import (
    HOST,
    LocalNode,
    NodeError,
    free_ports,
    local_nodes,
    nodes_on_free_ports,
    port_is_free,
    wait_ready,
)
from tests.port_runs import run_of_free_ports
from tests.unit.cluster.conftest import node_config, running_node


@pytest.fixture
def node(tmp_path: Path) -> LocalNode:
    node = nodes_on_free_ports(tmp_path, 1)[0]
    node.directory.mkdir(parents=True)
    return node


@pytest.fixture
def stand_in(node: LocalNode) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that names the node's data directory on its command line, as keelmqd does, and waits to be
    killed.
    """
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, "--data-dir", str(node.data_dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # its command line is visible from now on
        yield process
        process.kill()


def pid_file(node: LocalNode) -> Path:
    return node.directory / "keelmqd.pid"


def test_every_node_is_told_about_all_nodes(tmp_path: Path) -> None:
    nodes = local_nodes(tmp_path, [7081, 7082, 7083], [7091, 7092, 7093], {"check_immunity_ms": "50"})
    command = nodes[1].command()
    assert command[1:5] == ["--node-id", "2", "--data-dir", str(tmp_path / "node2" / "data")]
    assert command.count("--peer") == 3
    assert "3=127.0.0.1:7093=http://127.0.0.1:7083" in command
    assert command[-2:] == ["--check-immunity-ms", "50"]


def test_a_pid_file_of_another_process_is_not_the_node(node: LocalNode) -> None:
    pid_file(node).write_text(str(os.getpid()))
    assert node.running_pid() is None


@pytest.mark.parametrize("content", ["", "no number", "-1", "99999999"])
def test_a_useless_pid_file_is_no_node(node: LocalNode, content: str) -> None:
    pid_file(node).write_text(content)
    assert node.running_pid() is None


def test_a_node_that_another_command_started_is_found_and_stopped(
    node: LocalNode, stand_in: subprocess.Popen[bytes]
) -> None:
    pid_file(node).write_text(str(stand_in.pid))
    assert node.running_pid() == stand_in.pid
    with pytest.raises(NodeError, match=r"running already \(pid"):
        node.start()
    node.stop()
    assert node.running_pid() is None
    assert stand_in.wait() != 0
    assert not pid_file(node).exists()


def test_a_taken_port_is_named_with_the_way_out(node: LocalNode) -> None:
    with socket.create_server((HOST, node.peer_port)), pytest.raises(NodeError) as caught:
        node.start()
    assert f"port {node.peer_port} of {HOST} is in use" in str(caught.value)
    assert "CLUSTER_PEER_PORT=" in str(caught.value)
    assert node.running_pid() is None


def test_a_node_that_ended_at_its_start_shows_its_log(node: LocalNode) -> None:
    node.log_path.write_text("first\nkeelmqd: the data directory is locked\n")
    with pytest.raises(NodeError, match="the data directory is locked"):
        node.not_ready()


def test_a_node_that_ended_is_not_waited_for_behind_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, ended = nodes_on_free_ports(tmp_path, 2)
    ended.directory.mkdir(parents=True)
    monkeypatch.setattr(waiting, "not_ready", lambda: "no leader")
    ended.launch([sys.executable, "-c", "import sys; sys.exit('keelmqd: no such option')"])
    ended.wait_exit()
    with pytest.raises(NodeError, match=r"(?s)node 2 ended with exit code 1; .*keelmqd: no such option"):
        wait_ready([waiting, ended], timeout_s=0.0)


def test_free_ports_are_free_and_distinct() -> None:
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert all(map(port_is_free, ports))


def test_a_port_is_chosen_once_by_all_processes_that_live(tmp_path: Path) -> None:
    """Two clusters that chose a port before either listened on it had one node less."""
    claimed, port = ClaimedPorts(tmp_path / "ports"), 10_001
    assert claimed.claim(port)
    assert not claimed.claim(port)
    assert claims_of_another_process(tmp_path / "ports", 10_001, 10_002) == [False, True]
    assert claimed.claim(10_002), "whose process has ended"
    claimed.forget()
    assert claimed.claim(port)


def test_the_last_process_that_ends_removes_the_file_of_claims(tmp_path: Path) -> None:
    path = tmp_path / "ports"
    claimed = ClaimedPorts(path)
    assert claimed.claim(10_001)
    assert claims_of_another_process(path, 10_002) == [True]
    assert path.exists(), "this process still has a claim"
    claimed.end()
    assert not path.exists()
    assert claimed.claim(10_001), "it begins anew"
    assert claims_of_another_process(path, 10_001) == [False]
    claimed.end()
    assert not path.exists()


def test_claims_outlive_the_file(tmp_path: Path) -> None:
    """Whoever removes it may have seen no lock: this process had opened the file and claimed nothing yet."""
    path = tmp_path / "ports"
    claimed = ClaimedPorts(path)
    assert claimed.claim(10_001)
    path.unlink()
    assert claimed.claim(10_002)
    assert claims_of_another_process(path, 10_001, 10_002, 10_003) == [False, False, True]
    claimed.end()


def claims_of_another_process(path: Path, *ports: int) -> list[bool]:
    program = "import json, sys; from pathlib import Path; from deploy.claimed_ports import ClaimedPorts\n"
    program += "claimed = ClaimedPorts(Path(sys.argv[1]))\n"
    program += "print(json.dumps([claimed.claim(int(port)) for port in sys.argv[2:]]))"
    command = [sys.executable, "-c", program, str(path), *map(str, ports)]
    claims: list[bool] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return claims


def test_ports_are_chosen_where_no_file_can_be(tmp_path: Path) -> None:
    claimed = ClaimedPorts(tmp_path / "missing" / "ports")
    assert claimed.claim(10_001)
    assert not claimed.claim(10_001)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--peer-port", "7083"], "overlap"),
        (["--nodes", "0"], "not between 1 and 9"),
        (["--http-port", "70000"], "not a port"),
        (["--http-port", "http"], "invalid"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    arguments: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["local_cluster", "start", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert complaint in capsys.readouterr().err


def test_stopping_what_does_not_run_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["local_cluster", "stop", "--data", str(tmp_path)])
    assert main() == 0
    assert "not running" in capsys.readouterr().out


def added_port() -> int:
    """Return a first port of a cluster of one whose added node finds its port free too."""
    while True:
        (port,) = free_ports(1)
        if (added := port + ADDED_PORTS + 2) < 1 << 16 and port_is_free(added):
            return port


@pytest.mark.process
async def test_adding_a_node_that_the_cluster_refuses_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    http_port, peer_port, data = added_port(), added_port(), tmp_path / "local"
    taken = f"{HOST}:{peer_port + ADDED_PORTS + 2}"
    (data / "node1").mkdir(parents=True)
    fatal: list[str] = []
    async with running_node(node_config(tmp_path, http_listen=f"{HOST}:{http_port}"), fatal) as founder:
        other = {"node_id": 9, "peer_address": taken, "http_address": "http://127.0.0.1:1"}

        async def is_added() -> bool:  # once the feature level is raised, which is a change too
            added = await founder.call("POST", "/v1/cluster/members", other)
            assert added.status == 200 or added.body["code"] == "change_in_progress"
            return added.status == 200

        await founder.wait(is_added)
        flags = ["--nodes", "1", "--http-port", str(http_port), "--peer-port", str(peer_port), "--data", str(data)]
        monkeypatch.setattr(sys, "argv", ["local_cluster", "add", *flags])
        assert await asyncio.to_thread(main) == 1
    said = capfd.readouterr().err
    assert "has that address already" in said
    assert "node 2 was not added" in said
    assert "is removed again" in said
    assert {path.name for path in data.iterdir()} == {"node1", "peer_secret"}
    assert port_is_free(peer_port + ADDED_PORTS + 2), "it does not run"
    assert not fatal


@pytest.mark.process
def test_a_cluster_starts_again_without_the_node_that_was_removed(tmp_path: Path) -> None:
    http_port, peer_port = run_of_free_ports(3), run_of_free_ports(3)
    flags = ["--nodes", "3", "--http-port", str(http_port), "--peer-port", str(peer_port), "--data", str(tmp_path)]

    def run(action: str) -> str:
        command = [sys.executable, "-m", "deploy.local_cluster", action, *flags]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    try:
        run("start")
        keelmq = [str(Path(sys.executable).parent / "keelmq"), "cluster", "remove-node", "1"]
        subprocess.run([*keelmq, "--servers", f"http://{HOST}:{http_port + 1}"], check=True, stdout=subprocess.DEVNULL)
        run("stop")
        assert "node 1 was removed from the cluster, and stops" in run("start")
        nodes = local_nodes(tmp_path, [1] * 3, [1] * 3)  # known by their directories
        assert [node.running_pid() is not None for node in nodes] == [False, True, True]
    finally:
        run("stop")
