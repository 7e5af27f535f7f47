"""`keelmqd supervise` with nodes that are short programs: by which rules one is started again, ended, or left."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from cluster.process.exit_codes import ExitCode
from cluster.service_manager import supervisor
from cluster.service_manager.rotated_file import RotatedFile
from tests.e2e.cluster_process import wait_for
from tests.requirements import REPOSITORY

SAY: Final = """
import os, socket, sys, time
def say(*lines):
    name = os.environ["NOTIFY_SOCKET"]
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto("\\n".join(lines).encode(), "\\0" + name[1:])
def wait():
    while True: time.sleep(60)
starts = open("starts", "a"); starts.write("x"); starts.close()
number = os.stat("starts").st_size
"""
"""Beginning of a program that stands for a node, which counts its starts."""

IMPATIENT: Final = {"START_S_MAX": 1.0, "STARTS_WITHIN_S": 0.0}
"""A node that did not come to its first line in this time is started again until it did."""

Supervise = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Begin to supervise a program, with constants of the rules changed; the output goes to a file `log`."""
    begun: list[subprocess.Popen[str]] = []

    def begin(node: str, **constants: float) -> subprocess.Popen[str]:
        (tmp_path / "node.py").write_text(SAY + node)
        changed = {"RESTART_PAUSE_S": 0.0, **constants}
        program = f"""
import sys
from pathlib import Path
from cluster.service_manager import rotated_file, supervisor
vars(supervisor).update({changed!r})
output = rotated_file.RotatedFile(Path("log"))
sys.exit(supervisor.Supervisor([sys.executable, "-I", "node.py"], output).run())
"""
        environment = {"PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment, text=True)
        begun.append(process)
        return process

    yield begin
    for process in begun:
        process.terminate()
        process.wait()


def log_of(directory: Path) -> str:
    path = directory / "log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("code", [each for each in ExitCode if each in supervisor.FINAL_CODES])
def test_an_end_that_no_other_start_helps_is_the_last(supervise: Supervise, tmp_path: Path, code: int) -> None:
    assert supervise(f"print('why', flush=True); sys.exit({int(code)})").wait() == code
    assert (tmp_path / "starts").read_text() == "x"
    assert "why\n" in log_of(tmp_path)
    assert f"the node has ended with exit code {int(code)}: it is not started again" in log_of(tmp_path)


@pytest.mark.parametrize("end", ["sys.exit(1)", "sys.exit(3)", "sys.exit(6)", "os.kill(os.getpid(), 9)"])
def test_other_ends_are_followed_by_a_start(supervise: Supervise, tmp_path: Path, end: str) -> None:
    assert supervise(f"{end} if number < 3 else sys.exit(0)").wait() == 0
    assert (tmp_path / "starts").read_text() == "xxx"


def test_a_node_that_fails_again_and_again_is_left(supervise: Supervise, tmp_path: Path) -> None:
    assert supervise("sys.exit(1)").wait() == 1
    assert len((tmp_path / "starts").read_text()) == supervisor.STARTS_MAX
    assert "after 10 starts within 600 s: it is not started again" in log_of(tmp_path)


def test_a_loop_that_stands_is_ended_and_started_anew(supervise: Supervise, tmp_path: Path) -> None:
    assert supervise("if number > 1: sys.exit(0)\nsay('READY=1')\nwait()", WATCHDOG_S=0.01).wait() == 0
    assert "the node has given no sign of life in time: SIGABRT" in log_of(tmp_path)
    assert "the node has ended with signal SIGABRT: it is started again" in log_of(tmp_path)


def test_a_node_that_is_never_ready_is_ended(supervise: Supervise, tmp_path: Path) -> None:
    assert supervise("if number > 1: sys.exit(0)\nwait()", **IMPATIENT).wait() == 0
    assert "the node has not become ready in time: SIGABRT" in log_of(tmp_path)


def test_time_that_a_node_asks_for_is_given(supervise: Supervise, tmp_path: Path) -> None:
    """Also a node that has said how long it gives no sign of life."""
    node = "say('EXTEND_TIMEOUT_USEC=60000000'); say('READY=1'); say('WATCHDOG_USEC=60000000', 'WATCHDOG=1')\n"
    process = supervise(f"{node}print('waits', flush=True)\nwait()", WATCHDOG_S=3600.0)
    wait_for(lambda: "waits" in log_of(tmp_path), "the node")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert "in time" not in log_of(tmp_path)


def test_a_stop_is_passed_on_and_its_code_returned(supervise: Supervise, tmp_path: Path) -> None:
    node = "import signal\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('waits', flush=True)\nwait()"
    process = supervise(node)
    wait_for(lambda: "waits" in log_of(tmp_path), "the node")
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    assert (tmp_path / "starts").read_text() == "x"


def test_a_node_that_does_not_stop_is_killed(supervise: Supervise, tmp_path: Path) -> None:
    node = "import signal\nsignal.signal(15, signal.SIG_IGN)\nprint('waits', flush=True)\nwait()"
    process = supervise(node, STOP_S_MAX=0.01)
    wait_for(lambda: "waits" in log_of(tmp_path), "the node")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGKILL
    assert "the node has not ended in time: SIGKILL" in log_of(tmp_path)


def test_a_hang_up_reaches_a_node_that_has_spoken_alone(supervise: Supervise, tmp_path: Path) -> None:
    """A node that has no handler yet would be ended by it."""
    node = "import signal\nprint('begun', flush=True)\nwhile not os.path.exists('go-on'): pass\n"
    node += "signal.signal(1, lambda *_: print('reads again', flush=True))\nsay('STATUS=there')\nwait()"
    process = supervise(node)
    wait_for(lambda: "begun" in log_of(tmp_path), "the node")
    process.send_signal(signal.SIGHUP)
    (tmp_path / "go-on").touch()

    def reads_again() -> bool:
        process.send_signal(signal.SIGHUP)
        return "reads again" in log_of(tmp_path)

    wait_for(reads_again, "the second signal to arrive")
    assert (tmp_path / "starts").read_text() == "x"


def test_others_say_nothing_for_the_node(supervise: Supervise, tmp_path: Path) -> None:
    node = "if number > 1: sys.exit(0)\nimport multiprocessing\nprint(os.environ['NOTIFY_SOCKET'], flush=True)\n"
    node += "if os.fork() == 0:\n    say('READY=1'); print('said', flush=True); os._exit(0)\nos.wait()\nwait()"
    assert supervise(node, **IMPATIENT).wait() == 0
    assert "said" in log_of(tmp_path)
    assert "the node has not become ready in time" in log_of(tmp_path)


def test_the_rules_are_those_of_the_unit() -> None:
    unit = (REPOSITORY / "deploy" / "systemd" / "keelmqd@.service").read_text()
    rules = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert rules["RestartPreventExitStatus"].split() == [str(int(code)) for code in sorted(supervisor.FINAL_CODES)[1:]]
    assert rules["Restart"] == "on-failure"
    assert rules["WatchdogSignal"] == "SIGABRT"
    same = {
        "RestartSec": supervisor.RESTART_PAUSE_S,
        "StartLimitBurst": supervisor.STARTS_MAX,
        "StartLimitIntervalSec": supervisor.STARTS_WITHIN_S,
        "TimeoutStartSec": supervisor.START_S_MAX,
        "TimeoutStopSec": supervisor.STOP_S_MAX,
        "WatchdogSec": supervisor.WATCHDOG_S,
    }
    assert {name: float(rules[name]) for name in same} == same


# --- the output ----------------------------------------------------------------------------------------------------


def test_full_files_are_put_aside_at_the_end_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    path.chmod(0o600)
    file = RotatedFile(path, bytes_max=10, files=2)
    for content in (
        b"one\ntw",
        b"o\nthree",
        b"\nfour and more\n",
        b"five\n",
        b"six\n",
        b"seven and more\n",
        b"eight\n",
    ):
        file.write(content)
    file.close()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "log": b"eight\n",
        "log.1": b"five\nsix\nseven and more\n",
        "log.2": b"three\nfour and more\n",
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_a_full_disk_does_not_take_is_counted() -> None:
    file = RotatedFile(Path("/dev/full"))
    file.write(b"lost\n")
    file.write(b"too\n")
    assert file.dropped_bytes == 9
    file.close()
