"""Tests a node that cannot start: one line says what to do, the exit code is documented, and there is no traceback."""

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.main import main
from cluster.process.exit_codes import ExitCode
from tests.e2e.cluster_process import ClusterProcess, NodeProcess, wait_for

pytestmark = pytest.mark.process


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[NodeProcess]:
    """Return a node with some data, stopped gracefully; every process that the test starts is ended with it."""
    with ClusterProcess(tmp_path, nodes=1) as cluster:
        node = cluster.wait_leader()
        assert node.request("PUT", "/v1/topics/a", payload={"queues": 1}).status == 201
        for _ in range(20):
            payload = {"messages": [{"body": "x" * 1000}]}
            assert node.request("POST", "/v1/topics/a/messages", payload=payload).status == 200
        assert node.terminate() == ExitCode.STOPPED
        node.log_path.unlink()
        yield node


def ends_with(node: NodeProcess, code: ExitCode, *said: str) -> None:
    node.start()
    assert node.wait_exit() == code
    output = node.output()
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if line.startswith("keelmqd:")]
    for phrase in said:
        assert phrase in line


def replaced(node: NodeProcess, flag: str, value: str) -> list[str]:
    arguments = list(node.arguments)
    arguments[arguments.index(flag) + 1] = value
    return arguments


def test_a_graceful_stop_leaves_an_intact_log_that_starts_again(stopped: NodeProcess) -> None:
    stopped.start()
    wait_for(stopped.ready, "the node to be ready")
    assert stopped.terminate() == ExitCode.STOPPED
    assert "serves http://" in stopped.output()
    assert "case=clean_end" in stopped.output()


def test_a_configuration_that_is_wrong(stopped: NodeProcess) -> None:
    stopped.arguments = replaced(stopped, "--heartbeat-ms", "often")
    ends_with(stopped, ExitCode.BAD_CONFIG, "--heartbeat-ms")


@pytest.mark.parametrize("which", ["http_listen", "peer_listen"])
def test_a_port_in_use(stopped: NodeProcess, which: str) -> None:
    # A node without peers does not listen for peers.
    stopped.arguments += ["--peer", "2=127.0.0.1:1=http://127.0.0.1:1"]
    port = stopped.http_port if which == "http_listen" else stopped.peer_port
    with socket.create_server(("127.0.0.1", port)):
        ends_with(stopped, ExitCode.ADDRESS_UNAVAILABLE, which, str(port), "choose another")


def test_an_address_of_another_machine(stopped: NodeProcess) -> None:
    stopped.arguments += ["--http-listen", f"192.0.2.1:{stopped.http_port}", "--insecure-http"]
    ends_with(stopped, ExitCode.ADDRESS_UNAVAILABLE, "192.0.2.1")


@pytest.mark.parametrize(("flag", "value"), [("--cluster-id", "other"), ("--node-id", "2")])
def test_the_data_of_another_node(stopped: NodeProcess, flag: str, value: str) -> None:
    stopped.arguments = replaced(stopped, flag, value)
    if flag == "--node-id":
        stopped.arguments = [part.replace("1=127", "2=127") for part in stopped.arguments]
    ends_with(stopped, ExitCode.DATA_DIR_UNUSABLE, "belongs to node 1 of cluster 'e2e'", "data_dir")


def test_a_data_directory_in_use(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, nodes=1) as cluster:
        node = cluster.wait_leader()
        second = NodeProcess(1, tmp_path / "second", 1, 1)
        second.arguments = node.arguments
        ends_with(second, ExitCode.DATA_DIR_UNUSABLE, "in use by another process")
        assert node.ready()


def test_a_log_damaged_in_its_synced_part(stopped: NodeProcess) -> None:
    segment = stopped.data_dir / "log" / "00000000000000000000.log"
    with open(segment, "r+b") as file:
        file.seek(3000)
        file.write(b"\xff" * 64)
    ends_with(stopped, ExitCode.LOG_CORRUPT, "segment 00000000000000000000", "position", "replicate")


def test_the_log_of_a_stopped_node_can_be_looked_into(stopped: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    data_dir = ["--data-dir", str(stopped.data_dir)]
    assert main(["log", "dump", *data_dir, "--from-index", "3"]) == ExitCode.STOPPED
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["index", "term", "kind"]
    assert [int(line.split()[0]) for line in lines] == list(range(3, 25))
    assert main(["log", "verify", *data_dir]) == ExitCode.STOPPED
    assert "24 records" in capsys.readouterr().out
    with open(stopped.data_dir / "log" / "00000000000000000000.log", "r+b") as file:
        file.seek(3000)
        file.write(b"\xff" * 64)
    assert main(["log", "verify", *data_dir]) == ExitCode.LOG_CORRUPT
    assert "DAMAGE: 00000000000000000000.log, position" in capsys.readouterr().out
    assert main(["log", "dump", "--data-dir", "/nowhere"]) == ExitCode.DATA_DIR_UNUSABLE
    assert "/nowhere" in capsys.readouterr().err


def test_a_log_that_lost_its_synced_end(stopped: NodeProcess) -> None:
    segment = stopped.data_dir / "log" / "00000000000000000000.log"
    with open(segment, "r+b") as file:
        file.seek(2000)
        file.write(bytes(1 << 20))
    ends_with(stopped, ExitCode.LOG_CORRUPT, "position")


def test_a_damaged_hard_state(stopped: NodeProcess) -> None:
    path = stopped.data_dir / "hard_state"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    ends_with(stopped, ExitCode.LOG_CORRUPT, "hard_state")


def test_an_index_of_a_log_that_is_gone(stopped: NodeProcess) -> None:
    shutil.rmtree(stopped.data_dir / "log")
    ends_with(stopped, ExitCode.LOG_CORRUPT)


def test_a_lost_index_is_built_again(stopped: NodeProcess) -> None:
    shutil.rmtree(stopped.data_dir / "index")
    stopped.start()
    wait_for(stopped.ready, "the node to be ready")
    ranges = stopped.request("GET", "/v1/topics/a").json()["queue_offsets"]
    assert [(each["queue"], each["min_offset"], each["max_offset"]) for each in ranges] == [(0, 0, 20)]
