"""Runs a few real power losses in every test run, with a fresh seed; `make powerloss` runs many (docs/powerloss.md)."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.reporting.result import result_of
from tests.e2e.cluster_process import wait_for
from tests.patience import RUN_PATIENCE_S
from tests.requirements import POWER_LOSS, may_skip, skip

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
CYCLES = 6
INTERRUPTED = 130


class Run:
    """One harness process with a temporary directory of its own."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.powerloss", *arguments]
        environment = os.environ | {"TMPDIR": str(directory)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=subprocess.STDOUT)

    def result(self) -> tuple[int, dict[str, Any], str]:
        """Return exit status, RESULT, and everything printed. Skips where the machine does not allow the run."""
        output = self.process.communicate(timeout=RUN_PATIENCE_S)[0].decode()
        figures = result_of(output)
        if "skipped" in figures:
            skip(f"no real power loss here: {figures['skipped']}")
        return self.process.returncode, figures, output

    def end(self) -> None:
        """Kill the run, so that nothing is left running, whatever the test did."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    assert not [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]


def started(directory: Path, *arguments: str) -> Run:
    """Return a run whose disks are mounted and whose nodes are started."""
    POWER_LOSS.require()
    run = Run(directory, *arguments)

    def nodes_started() -> bool:
        if run.process.poll() is not None:
            run.result()
        return bool(list(directory.glob("keelmq-powerloss-*/node1.out")))

    wait_for(nodes_started, "the nodes of the run")
    return run


def test_nothing_acknowledged_is_lost_when_the_power_fails(directory: Path) -> None:
    run = Run(directory, "--cycles", str(CYCLES))
    try:
        status, figures, output = run.result()
    finally:
        run.end()
    assert status == 0, output
    assert [figures[key] for key in ("lost", "phantom", "other_violations")] == [0, 0, 0], output
    assert figures["cycles"] == CYCLES
    assert figures["acked"] > 0
    assert figures["transactions"] > 0
    assert figures["segments_removed"] > 0
    assert figures["nodes_without_power"].keys() | figures["skipped_filesystems"].keys() == {"ext4", "xfs"}
    assert figures["skipped_filesystems"] == {} or may_skip(), output
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize(
    ("broken", "retention", "accusation"),
    [("no_fsync", "never", "lost"), ("no_index_flush", "always", "other_violations")],
)
def test_a_broker_that_does_not_sync_is_found_guilty(
    broken: str, retention: str, accusation: str, directory: Path
) -> None:
    """The harness can fail: it does so with nodes whose fdatasync does nothing, or whose flush of the index before
    segments of the log are removed.
    """
    run = Run(directory, "--cycles", str(CYCLES), "--retention", retention, "--broken", broken)
    try:
        status, figures, output = run.result()
    finally:
        run.end()
    assert status == 1, output
    assert figures[accusation] > 0, output
    assert list(directory.iterdir()) == []


def test_an_interrupted_run_leaves_nothing_behind(directory: Path) -> None:
    run = started(directory, "--cycles", "100")
    try:
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(RUN_PATIENCE_S) == INTERRUPTED
    finally:
        run.end()
    assert list(directory.iterdir()) == []


def test_the_next_run_removes_what_a_killed_one_left(directory: Path) -> None:
    killed = started(directory, "--cycles", "100")
    killed.end()
    assert list(directory.iterdir())
    status, _, output = Run(directory, "--cycles", "0").result()
    assert status == 0, output
    assert list(directory.iterdir()) == []
