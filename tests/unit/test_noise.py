"""Neighbours that keep cores and the disk busy work, end, and leave nothing."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster_process import wait_for
from tests.patience import PATIENCE_S

CORES = 2


def command(directory: Path, seconds: float) -> list[str]:
    fixed = ["--cores", str(CORES), "--directory", str(directory)]
    return [sys.executable, "-m", "tests.noise", "--seconds", str(seconds), *fixed]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_it_ends_by_itself_and_leaves_no_file(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, 0.5), capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    said = done.stdout.split()
    assert int(said[1]) > 0
    assert said[3:6] == ["on", str(CORES), "cores,"]
    assert int(said[-2]) > 0
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_each_core_has_a_process_that_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(command(tmp_path, 3_600), stderr=subprocess.PIPE, text=True) as process:
        try:
            pids = wait_for(lambda: busy if len(busy := children(process.pid)) == CORES else None, "a process per core")
            process.send_signal(number)
            _, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert errors == ""
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "its processes to end")
    assert list(tmp_path.iterdir()) == []
