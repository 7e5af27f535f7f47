"""`keelmq cluster status --watch` and `keelmq top` as processes: in a pipe, on a terminal, and at Ctrl-C."""

import contextlib
import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from keelmq.cli.app import app
from tests.e2e.cluster_process import STEADY, ClusterProcess
from tests.e2e.fixtures import KEELMQ, Shell, shared_cluster
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.process

STATUS: Final = [*KEELMQ, "cluster", "status", "--watch"]
TOP: Final = [*KEELMQ, "top", "--interval", "0.1"]
CLEAR: Final = b"\x1b[2J"
UP: Final = b"\x1b[1A"
HIDE_CURSOR, SHOW_CURSOR = b"\x1b[?25l", b"\x1b[?25h"

cluster = shared_cluster(options=STEADY)


@contextlib.contextmanager
def watching(
    shell: Shell, *arguments: str, stdout: int = subprocess.PIPE, command: Sequence[str] = STATUS
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command; at the end of the block interrupt it, and check that it ends as it promises."""
    environment = {**os.environ, **shell.environment, "TERM": "xterm"}
    process = subprocess.Popen([*command, *arguments], env=environment, stdout=stdout, stderr=subprocess.PIPE)
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
        assert b"Traceback" not in errors
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the command has ended"
    return line.decode()


def test_json_has_a_line_for_each_look(shell: Shell, cluster: ClusterProcess) -> None:
    def look() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(line_of(process))
        return found

    with watching(shell, "0.1", "--json") as process:
        while not (found := look())["healthy"]:
            pass
        assert [node["node_id"] for node in found["nodes"]] == [1, 2, 3]
        follower = cluster.follower()
        follower.kill()
        while [node["url"] for node in look()["nodes"] if "error" in node] != [follower.url]:
            pass  # another node may be slow to answer
        follower.start()
        while not look()["healthy"]:
            pass


def test_a_pipe_gets_one_view_after_another(shell: Shell) -> None:
    with watching(shell, "0.1") as process:
        shown = ""
        while shown.count("UTC, every 0.1 s: healthy\n") < 3:
            shown += line_of(process)
    assert shown.count(", leader http://") >= 2
    assert "\x1b" not in shown


def test_a_terminal_is_drawn_anew(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    try:
        with watching(shell, "0.1", stdout=theirs):
            shown = b""
            while shown.count(CLEAR) < 3:
                shown += os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    before, *views = shown.split(CLEAR)
    assert before.strip(b"\x1b[H") == b""
    assert all(b" UTC, every 0.1 s: " in view and b", leader http://" in view for view in views[:2])


def test_top_draws_its_table_in_place_on_a_terminal(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    try:
        with watching(shell, stdout=theirs, command=TOP) as process:
            shown = b""
            while not any(_is_whole(table) for table in shown.split(b"commit p99")[2:]):
                assert process.poll() is None, shown
                shown += os.read(ours, 65_536)
        os.set_blocking(ours, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                shown += os.read(ours, 65_536)
    finally:
        os.close(ours)
        os.close(theirs)
    first, *others = shown.split(b"commit p99")
    assert HIDE_CURSOR in first
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)
    assert len(others) >= 2
    assert UP not in first, "the first table has nothing above it"
    assert all(UP in table for table in others[:2]), "each further table takes the place of the one before"


def _is_whole(table: bytes) -> bool:
    """Return whether all nodes have answered in time for the table, as those of a busy machine need not."""
    return b"leader" in table and table.count(b"follower") == 2


def test_top_gives_a_pipe_plain_columns(shell: Shell) -> None:
    with watching(shell, command=TOP) as process:
        shown = ""
        while shown.count("leader") < 2:
            shown += line_of(process)
    assert "\x1b" not in shown


@pytest.mark.parametrize("arguments", [("5",), ("--watch", "0"), ("--watch", "nan"), ("--watch", "3601")], ids=" ".join)
def test_other_seconds_are_wrong_usage(arguments: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["cluster", "status", *arguments])
    assert done.exit_code == 2
    assert "SECONDS" in done.stderr


def test_without_seconds_it_waits_for_two(shell: Shell) -> None:
    with watching(shell) as process:
        assert " UTC, every 2 s: " in line_of(process)
