"""Calls of one run of the tool share a process on each host, and outlive that one."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.rollout import agent_calls
from deploy.rollout.agent_calls import AgentCalls
from deploy.rollout.host_root import MARK
from deploy.rollout.transport import agent_source
from tests.e2e.cluster_process import wait_for
from tests.patience import PATIENCE_S

OWNER = "node 1 of the cluster shop\n"


def call(calls: AgentCalls, command: list[str], action: str, **arguments: object) -> dict[str, Any]:
    request = json.dumps({"action": action, "arguments": arguments}).encode() + b"\n"
    answer: dict[str, Any] = json.loads(calls.call(command, request, PATIENCE_S).output)
    return answer


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Return a command that starts an agent, and notes its process."""
    note = f"import os\nwith open({str(tmp_path / 'started')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    return [sys.executable, "-IS", "-c", note + agent_source()]


def started(directory: Path) -> list[int]:
    return [int(line) for line in (directory / "started").read_text().split()]


def test_calls_of_a_run_share_a_process(command: list[str], tmp_path: Path) -> None:
    calls = AgentCalls()
    with calls.kept():
        for number in range(3):
            assert call(calls, command, "digest", path=str(tmp_path / f"file{number}")) == {"sha256": ""}
        refused = call(calls, command, "set_aside", root=str(tmp_path), owner=OWNER)
        assert "nothing was changed" in refused["error"]
        assert call(calls, command, "logs", root=str(tmp_path), lines=1) == {"lines": []}
        (agent,) = started(tmp_path)
    assert not Path(f"/proc/{agent}").exists()
    call(calls, command, "digest", path=str(tmp_path / "file"))
    assert len(started(tmp_path)) == 2


def test_a_process_that_is_gone_is_replaced(command: list[str], tmp_path: Path) -> None:
    calls = AgentCalls()
    with calls.kept():
        call(calls, command, "digest", path=str(tmp_path / "file"))
        os.kill(started(tmp_path)[0], signal.SIGKILL)
        assert call(calls, command, "digest", path=str(tmp_path / "file")) == {"sha256": ""}
        assert len(started(tmp_path)) == 2


def test_a_connection_that_is_silent_is_replaced(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host was lost since the last call, and nothing told this machine."""
    monkeypatch.setattr(agent_calls, "THERE_S_MAX", 0.01)
    calls = AgentCalls()
    with calls.kept():
        call(calls, command, "digest", path=str(tmp_path / "file"))
        os.kill(started(tmp_path)[0], signal.SIGSTOP)
        assert call(calls, command, "digest", path=str(tmp_path / "file")) == {"sha256": ""}
        assert len(started(tmp_path)) == 2


def test_a_call_ends_at_its_longest_time(command: list[str], tmp_path: Path) -> None:
    calls = AgentCalls()
    request = json.dumps({"action": "hold", "arguments": {}}).encode() + b"\n"
    command[-1] = "import time; time.sleep(1000)"
    with calls.kept(), pytest.raises(TimeoutError):
        calls.call(command, request, 0.01)


def test_what_is_no_answer_is_returned_with_code_and_errors(tmp_path: Path) -> None:
    calls = AgentCalls()
    with calls.kept():
        told = calls.call(["/bin/sh", "-c", "echo Welcome; echo broken >&2; exit 7"], b"{}\n", PATIENCE_S)
        assert told == (7, b"Welcome\n", b"broken\n")
        with pytest.raises(FileNotFoundError):
            calls.call([str(tmp_path / "missing")], b"{}\n", PATIENCE_S)


def test_a_node_that_was_started_is_no_child_of_the_agent(command: list[str], tmp_path: Path) -> None:
    """Nodes that have ended would stay as zombies of the agent."""
    (tmp_path / MARK).write_text(OWNER)
    program = tmp_path / "keelmqd"
    program.write_text(
        f'#!/bin/sh\necho $PPID > "{tmp_path}/parent.new"; mv "{tmp_path}/parent.new" "{tmp_path}/parent"\n'
    )
    program.chmod(0o700)
    calls = AgentCalls()
    with calls.kept():
        given = {"root": str(tmp_path), "program": str(program), "config": "none", "owner": OWNER}
        assert call(calls, command, "start", **given) == {}
        wait_for((tmp_path / "parent").exists, "the node to start")
        assert int((tmp_path / "parent").read_text()) not in started(tmp_path)
