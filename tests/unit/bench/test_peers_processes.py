"""Processes of the comparison with peers: paused outside their turns, and gone with the benchmark, however it ends."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.peers.fetch import Cache, FetchError
from tests.bench.peers.processes import ROOT, Guard, Sessions, in_sessions, read_stat
from tests.e2e.cluster_process import wait_for

SERVER = "sleep 600 & exec sleep 600"
"""A server of two processes, as those that are started by scripts."""
BENCHMARK = """
import sys, time
from pathlib import Path
from tests.bench.peers.processes import Guard, Sessions, in_sessions
with Guard() as guard:
    servers = Sessions(guard)
    for _ in range(2):
        servers.add(guard.start(["sh", "-c", sys.argv[1]], Path(sys.argv[2]) / "log").pid)
    while len(in_sessions(servers.numbers)) < 4:  # a shell that is paused starts nothing more
        time.sleep(0.01)
    servers.pause()
    print(*servers.numbers, flush=True)
    time.sleep(600)
"""


def states_of(sessions: set[int]) -> list[str]:
    return [stat.state for stat in in_sessions(sessions).values()]


@pytest.fixture
def benchmark_process(tmp_path: Path) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-c", BENCHMARK, SERVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_paused_servers_end_with_a_benchmark_that_is_ended_by(
    number: signal.Signals, benchmark_process: "subprocess.Popen[str]"
) -> None:
    assert benchmark_process.stdout is not None
    sessions = {int(word) for word in benchmark_process.stdout.readline().split()}
    wait_for(lambda: len(states_of(sessions)) == 4, "two servers of two processes")
    benchmark_process.send_signal(number)
    wait_for(lambda: not in_sessions(sessions), "the servers to end")


def test_servers_are_paused_and_go_on_with_all_their_processes(tmp_path: Path) -> None:
    with Guard() as guard:
        servers = Sessions(guard)
        servers.add(guard.start(["sh", "-c", SERVER], tmp_path / "log").pid)
        wait_for(lambda: len(states_of(servers.numbers)) == 2, "both processes")
        servers.pause()
        wait_for(lambda: states_of(servers.numbers) == ["T", "T"], "both to stop")
        servers.resume()
        wait_for(lambda: "T" not in states_of(servers.numbers), "both to go on")
        ended = set(servers.numbers)
    assert not in_sessions(ended)


def test_processor_time_counts_the_children_that_have_ended(tmp_path: Path) -> None:
    work = f"{sys.executable} -c 'for _ in range(3000000): pass'; echo done; exec sleep 600"
    with Guard() as guard:
        servers = Sessions(guard)
        servers.add(guard.start(["sh", "-c", work], tmp_path / "log").pid)
        wait_for(lambda: "done" in (tmp_path / "log").read_text(), "the child to end")
        assert servers.cpu_s() > 0.02


def test_a_process_that_is_gone_has_no_state() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert read_stat(process.pid) is None
    own = read_stat(os.getpid())
    assert own is not None
    assert own.session == os.getsid(0)


def test_what_was_fetched_is_not_fetched_again_and_a_fetch_that_failed_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    cache = Cache(tmp_path, said.append)
    made = cache._made("thing", lambda into: (into / "file").touch())
    assert cache._made("thing", lambda into: pytest.fail("fetched again")) == made

    def fail(into: Path) -> None:
        (into / "half").write_text("")
        cache._run(["sh", "-c", "echo some error; exit 3"])

    with pytest.raises(FetchError, match="sh failed: some error"):
        cache._made("other", fail)
    assert not (tmp_path / "other").exists()
    assert said == ["fetching thing", "fetching other"]
    with pytest.raises(FetchError, match="no-such-program is not installed"):
        cache._run(["no-such-program"])
