"""`keelmq-deploy` while a host or a node does not answer: it says which one it waits for, and how long it will."""

import fcntl
import io
import re
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deploy.reporting.report import Report
from deploy.rollout import awaited
from deploy.rollout.awaited import Awaited, at_most
from deploy.rollout.inventory import read_inventory
from tests.patience import PATIENCE_S
from tests.unit.deploy.stand_ins import Cluster, Run

SSH = """#!{python}
import fcntl, signal, sys
signal.alarm({patience_s})
with open({lock!r}) as stream:
    fcntl.flock(stream, fcntl.LOCK_SH)
sys.exit("Connection timed out")
"""
"""An ssh to hosts that do not answer: it ends once the lock is let go."""
VERBS: tuple[tuple[str, ...], ...] = (
    *(("preflight",), ("status",), ("logs",), ("bundle",), ("destroy", "--yes", "shop"), ("restore", "--backup", "x")),
    *(("bootstrap",), ("restart",), ("upgrade",), ("upgrade", "--dry-run"), ("rollback",), ("certs",)),
    *((verb, "2") for verb in ("drain", "undrain", "add", "remove", "replace", "recover")),
)

Tell = Callable[[Callable[[str], object]], None]


@pytest.fixture
def on_words(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Return a function that has something done with the words of what is waited for, which come at once here."""
    for name in ("SILENCE_S", "CALL_S_MIN", "TICK_S"):
        monkeypatch.setattr(awaited, name, 0.001)
    event = Report.event

    def on(act: Callable[[str], object]) -> None:
        def say(report: Report, text: str, kind: str = "") -> None:
            event(report, text, kind)
            if text.startswith("waiting for "):
                act(text)

        monkeypatch.setattr(Report, "event", say)

    return on


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], object]]:
    """Write the inventory of a cluster of which no node runs and no host answers; return what has ssh give up."""
    made = Cluster()
    made.down = {1, 2, 3}
    path = made.inventory(tmp_path, ssh="deploy@10.0.0.9")
    path.write_text(path.read_text().replace('id = "shop"', 'id = "shop"\ntls = "peers"', 1))
    for name in ("x", "lock"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "bin"
    directory.mkdir()
    program = SSH.format(python=sys.executable, patience_s=round(PATIENCE_S), lock=str(tmp_path / "lock"))
    (directory / "ssh").write_text(program)
    (directory / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)
    made.end()


@pytest.mark.parametrize("verb", VERBS, ids="-".join)
def test_every_verb_says_which_hosts_it_waits_for(
    run: Run, on_words: Tell, stopped: Callable[[], object], verb: tuple[str, ...]
) -> None:
    on_words(lambda _: stopped())
    code, said = run(*verb, "--timeout-s", "0.1")
    assert code == 0 if verb == ("bundle",) else code in (1, 3), said
    wanted = r"waiting for .*node \d \(deploy@10\.0\.0\.9\): \w+ for 0 s, ssh waits at most 10 s for a connection"
    assert re.search(wanted, said), said


def test_a_node_that_takes_connections_and_does_not_answer_is_named(run: Run, on_words: Tell, tmp_path: Path) -> None:
    cluster = Cluster()
    path = cluster.inventory(tmp_path)
    silent = socket.create_server(("127.0.0.1", 0))
    path.write_text(path.read_text().replace(cluster.urls()[3], f"http://127.0.0.1:{silent.getsockname()[1]}"))
    on_words(lambda text: silent.close() if "node 3" in text else None)  # what waits there is reset
    code, said = run("status")
    cluster.end()
    assert code == 1
    assert re.search(r"waiting for .*node 3 \(this machine\): its health for 0 s, at most 6 s", said), said


def test_what_was_said_is_not_said_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    nodes = read_inventory(cluster.inventory(tmp_path)).nodes
    cluster.end()
    calls, said = Awaited(), io.StringIO()
    monkeypatch.setattr(awaited, "CALL_S_MIN", 0.0)
    with calls.call(nodes[0], "facts", at_most(9.0)):
        assert calls.text() == "waiting for node 1 (this machine): facts for 0 s, at most 9 s"
        assert calls.text() == ""
        with calls.call(nodes[1], "logs", at_most(8.0)):
            both = "waiting for node 1 (this machine): facts for 0 s, at most 9 s; node 2 (this machine): logs"
            assert calls.text().startswith(both), "another one is worth a word"
        monkeypatch.setattr(awaited, "AGAIN_S", 0.0)
        assert calls.text()
    assert calls.text() == ""
    with calls.told(Report(said)):
        pass
    assert said.getvalue() == ""
