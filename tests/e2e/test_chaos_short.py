"""Runs a short chaos with a fresh seed in every run of the tests; the long ones are `make chaos MINUTES=60`."""

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from tests.e2e.cluster_process import wait_for
from tests.patience import PATIENCE_S, RUN_PATIENCE_S
from tests.requirements import DYING_WITH_PARENT, NAMESPACES

pytestmark = pytest.mark.process

MINUTES = 0.4
EPOCH_MINUTES = 0.2
BROKEN_MINUTES = 3


@pytest.fixture(autouse=True, scope="module")
def nodes_end_with_their_run() -> None:
    DYING_WITH_PARENT.require()


def start(directory: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.chaos", "--directory", str(directory), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def processes_of(directory: Path) -> list[int]:
    """Return the processes whose command line names the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(directory).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_mixed_chaos_breaks_no_promise(tmp_path: Path) -> None:
    seed = secrets.randbelow(1_000_000)
    length = ("--minutes", str(MINUTES), "--epoch-minutes", str(EPOCH_MINUTES))
    print(f"chaos seed {seed}: make chaos MINUTES={MINUTES} SEED={seed} CHAOS_ARGS='--epoch-minutes {EPOCH_MINUTES}'")
    # Evidence has to outlive pytest's own directory.
    process = start(Path(tempfile.gettempdir()), *length, "--seed", str(seed))
    try:
        output, _ = process.communicate(timeout=RUN_PATIENCE_S)
    finally:
        process.kill()
    print(output[-8_000:])
    result = result_of(output)
    assert process.returncode == 0, f"seed {seed}: {result['violations']}"
    assert (result["seed"], result["epochs"]) == (seed, 2)
    assert (result["lost"], result["phantom"], result["duplicated"]) == (0, 0, 0)
    assert result["acked"] > 0, "the load did not get through"
    assert result["consumed"] >= result["acked"] * 0.9, "the group did not read what was sent"
    assert result["transactions"].get("committed", 0) > 0
    assert min(result["handler_calls"], result["commits"]) > 0, "no member of the recorded group came to anything"
    assert sum(result["nemeses"].values()) >= result["epochs"], "an epoch has a round at least"


def test_a_broken_cluster_is_found_guilty(tmp_path: Path) -> None:
    """The leader answers when no other node has the message. The run ends when that is found, mostly in seconds."""
    NAMESPACES.require()
    process = start(tmp_path, "--broken", "acks-alone", "--minutes", str(BROKEN_MINUTES), "--nemesis", "isolate-leader")
    try:
        output, _ = process.communicate(timeout=RUN_PATIENCE_S)
    finally:
        process.kill()
    result = result_of(output)
    assert process.returncode == 0, output[-8_000:]
    assert result["guilty"], output[-8_000:]
    # The first violation is chance: it may also be a consumer that already read past the end of the new leader's queue,
    # or a group whose generations the new leader does not know, or a message given back from a place that is gone.
    signs = {"lost", "conflicting_read", "moved", "duplicated", "unexpected_exit", "log_differs", "contract"}
    signs |= {"state_differs", "not_owner", "offset_went_back", "returned"}
    assert set(result["caught_by"]) & signs, output[-8_000:]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Return a run whose nodes are up and whose faults are on."""
    process = start(tmp_path, "--minutes", "5", "--nemesis", "pause-one,kill-one", "--rate", "200")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "load and faults" in line:
                break
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(running: subprocess.Popen[str], tmp_path: Path, number: signal.Signals) -> None:
    assert len(processes_of(tmp_path)) >= 4, "three nodes and the run itself"
    running.send_signal(number)
    running.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not processes_of(tmp_path), "all processes to be gone")
    assert not [line for line in Path("/proc/mounts").read_text().splitlines() if str(tmp_path) in line]
    if number == signal.SIGKILL:
        # A killed run leaves only files; the next run removes them.
        return
    assert not list(tmp_path.iterdir()), "an interrupted run has no evidence to keep"
    assert running.returncode in (128 + signal.SIGINT, 128 + signal.SIGTERM)


def test_a_wrong_nemesis_is_refused_by_name(tmp_path: Path) -> None:
    process = start(tmp_path, "--nemesis", "earthquake")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert re.search(r"unknown nemesis earthquake; known: .*kill-leader", output)


def test_without_rights_it_runs_what_it_can(tmp_path: Path) -> None:
    """The run stays on loopback, as without namespaces, and names the skipped faults with the reason."""
    environment = {**os.environ, "CHAOS_ISOLATED": "no: forced by a test"}
    command = [sys.executable, "-m", "tests.chaos", "--directory", str(tmp_path), "--minutes", "0.1", "--seed", "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_PATIENCE_S)
    result = result_of(done.stdout)
    assert done.returncode == 0, done.stdout[-8_000:]
    assert {"halves", "disk-full"} <= set(result["skipped"])
    assert re.search(r"skipped .*halves.*: no: forced by a test", done.stdout)
    assert sum(result["nemeses"].values()) >= 1
