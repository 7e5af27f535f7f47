"""Tests that a forked node is a process like one that was started by its command."""

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.process.exit_codes import ExitCode
from deploy.local_nodes import free_ports
from tests.e2e.cluster_process import ClusterProcess, NodeProcess
from tests.e2e.node_template import TEMPLATES, ForkedProcess, template_of

pytestmark = pytest.mark.process


def ended(single: ClusterProcess, tmp_path: Path, option: str, environment: dict[str, str]) -> NodeProcess:
    """Return a node that has ended with the exit code of a mistake in its configuration."""
    node = NodeProcess(1, tmp_path, *free_ports(2))
    node.arguments, node.environment = [*single.nodes[1].arguments, option], environment
    node.start()
    assert isinstance(node.process, ForkedProcess)
    assert node.wait_exit() == ExitCode.BAD_CONFIG
    assert node.exit_code() == ExitCode.BAD_CONFIG
    return node


def test_it_has_its_own_arguments_and_output(single: ClusterProcess, tmp_path: Path) -> None:
    node = ended(single, tmp_path, "--no-such-option", {})
    assert "unrecognized arguments: --no-such-option" in node.output()


def test_it_has_its_own_environment(single: ClusterProcess, tmp_path: Path) -> None:
    node = ended(single, tmp_path, "--http-listen=127.0.0.1:0", {"KEELMQ_NO_SUCH_OPTION": "1"})
    assert "KEELMQ_NO_SUCH_OPTION" in node.output()


def test_a_signal_that_ends_it_is_told(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, nodes=1) as cluster:
        node = cluster.nodes[1]
        assert isinstance(node.process, ForkedProcess)
        with pytest.raises(subprocess.TimeoutExpired):
            node.process.wait(0)
        assert node.running()
        node.kill()
        assert node.exit_code() == -signal.SIGKILL
        node.start()
        cluster.wait_ready()
        assert node.terminate() == 0


def test_a_node_whose_interpreter_starts_otherwise_is_not_forked(single: ClusterProcess, tmp_path: Path) -> None:
    node = NodeProcess(1, tmp_path, *free_ports(2))
    node.arguments, node.environment = [*single.nodes[1].arguments, "--no-such-option"], {"PYTHONHASHSEED": "1"}
    node.start()
    assert isinstance(node.process, subprocess.Popen)
    assert node.wait_exit() == ExitCode.BAD_CONFIG


def test_its_end_is_told_to_every_thread(tmp_path: Path) -> None:
    with ClusterProcess(tmp_path, nodes=1) as cluster, ThreadPoolExecutor() as threads:
        node = cluster.nodes[1]
        waiting = [threads.submit(node.wait_exit) for _ in range(8)]
        node.kill()
        assert [each.result() for each in waiting] == [-signal.SIGKILL] * 8


def test_the_nodes_of_a_cluster_have_hash_seeds_of_their_own() -> None:
    assert len({template_of(node_id) for node_id in (1, 2, 3)}) == TEMPLATES
