"""The comparison of two trees, `make bench BENCH_ARGS='--beside TREE'`, of this tree with itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from tests.bench.beside_worker import LOADS
from tests.e2e.cluster_process import wait_for
from tests.patience import RUN_PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def command(directory: Path, other: Path, *arguments: str) -> list[str]:
    fixed = ["--beside", str(other), "--directory", str(directory), "--restart-gib", "0"]
    return [sys.executable, "-m", "tests.bench", *fixed, *arguments]


def nodes_below(directory: Path) -> list[int]:
    """Return the process ids whose command lines name the directory, this benchmark's own included."""
    name = str(directory).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue  # it has just ended
        if name in line and entry.parent.name != str(os.getpid()):
            found.append(int(entry.parent.name))
    return found


def test_each_load_is_measured_in_both_trees_and_no_node_stays(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(ROOT)
    arguments = command(tmp_path, other, "--rounds", "1", "--seconds", "0.02")
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = result_of(done.stdout)["figures"]
    assert figures.keys() == LOADS.keys()
    assert all(figure["ratio"] > 0 for figure in figures.values())
    assert not nodes_below(tmp_path)


def test_a_benchmark_that_is_terminated_stops_its_nodes(tmp_path: Path) -> None:
    arguments = command(tmp_path, ROOT, "--seconds", "600")
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("round 1 of" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        assert process.wait(RUN_PATIENCE_S) == 128 + signal.SIGTERM
    wait_for(lambda: not nodes_below(tmp_path), "the nodes to end")


def test_a_tree_that_is_not_set_up_is_told(tmp_path: Path) -> None:
    arguments = command(tmp_path, tmp_path)
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    assert done.returncode == 1
    assert "run `make setup` there first" in done.stderr
