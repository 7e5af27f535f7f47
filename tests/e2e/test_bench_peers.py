"""`make bench-peers` itself, with KeelMQ alone: its figures, what is missing, and its end."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.reporting.result import result_of
from tests.e2e.cluster_process import wait_for
from tests.e2e.test_bench_beside import nodes_below
from tests.patience import RUN_PATIENCE_S

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


def command(directory: Path, *arguments: str) -> list[str]:
    (directory / "nodes").mkdir()
    fixed = ["--directory", str(directory / "nodes"), "--output", str(directory / "output"), "--sizes", "1024"]
    return [sys.executable, "-m", "tests.bench.peers", *fixed, "--cache", str(directory / "cache"), *arguments]


def test_each_load_is_measured_and_no_process_stays(tmp_path: Path) -> None:
    limits = (
        "--strangers-percent",
        "100",
        "--rounds",
        "1",
        "--seconds",
        "0.3",
        "--warm-up-s",
        "0.1",
        "--strace-s",
        "0",
    )
    loads = ("--peers", "keelmq", "--rows", "one,senders,batches,transactions,end-to-end")
    done = subprocess.run(
        command(tmp_path, *limits, *loads), cwd=ROOT, capture_output=True, text=True, timeout=RUN_PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_of(done.stdout)
    names = [
        "one 1024",
        "senders 1024",
        "batches 1024",
        "transactions-64 1024",
        "transactions-256 1024",
        "end-to-end 1024",
    ]
    assert list(result["rows"]) == names
    for row in result["rows"].values():
        assert row["keelmq"]["per_second"] > 0
        assert 0 < row["keelmq"]["p50_ms"] <= row["keelmq"]["p99_ms"]
        assert row["keelmq"]["server_us"] > 0
    assert result["variants"]["keelmq"]["ack"] == "not counted: switched off"
    written = json.loads((tmp_path / "output/result.json").read_text())
    assert written["rows"]["one 1024"]["keelmq"]["latency_ms"][-1][1] == 1.0
    assert (tmp_path / "output/throughput-1024.svg").exists()
    assert not nodes_below(tmp_path)


def test_a_peer_that_cannot_be_had_is_reported_as_missing(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("not a folder")
    limits = ("--strangers-percent", "100", "--rounds", "1", "--seconds", "0.2", "--strace-s", "0", "--rows", "one")
    done = subprocess.run(
        command(tmp_path, *limits, "--peers", "nats"), cwd=ROOT, capture_output=True, text=True, timeout=RUN_PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    row = result_of(done.stdout)["rows"]["one 1024"]
    assert "missing" in row["nats"]
    assert row["keelmq"]["per_second"] > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_nodes_end_with_a_comparison_that_is_ended_by(number: signal.Signals, tmp_path: Path) -> None:
    arguments = command(tmp_path, "--peers", "keelmq", "--seconds", "600", "--strace-s", "0", "--rows", "one")
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("round 1 of" in line for line in process.stdout)
        process.send_signal(number)
        expected = -signal.SIGKILL if number is signal.SIGKILL else 128 + number
        assert process.wait(RUN_PATIENCE_S) == expected
    wait_for(lambda: not nodes_below(tmp_path), "the nodes to end")
