"""Hosts are worked on side by side: one that fails keeps no other from its end, and the next run does what is left."""

import contextlib
import io
import re
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deploy.reporting.report import Report
from deploy.rollout import __main__
from deploy.rollout.side_by_side import Failed
from deploy.rollout.steps import Step, carry_out, show
from deploy.rollout.transport import Host, HostError
from tests.patience import PATIENCE_S
from tests.unit.deploy.stand_ins import Cluster, Run


def begin_together(barrier: threading.Barrier) -> None:
    barrier.wait(PATIENCE_S)


def test_steps_of_a_stage_are_carried_out_side_by_side_within_the_limit() -> None:
    said, order = io.StringIO(), list[str]()
    report = Report(said)
    pairs = threading.Barrier(2)
    lock, present, most = threading.Lock(), 0, 0

    def install() -> None:
        nonlocal present, most
        with lock:
            present += 1
            most = max(most, present)
        begin_together(pairs)
        with lock:
            present -= 1
            order.append("install")

    steps = [Step("read", lambda: order.append("read"))]
    steps += [Step(f"node {number}: install", install, "install") for number in (1, 2, 3, 4)]
    steps.append(Step("wait", lambda: order.append("wait")))
    show(steps, report, 2)
    carry_out(steps, report, 2, lambda: order.append("done"))
    assert most == 2
    assert [each for each in order if each != "done"] == ["read", *4 * ["install"], "wait"]
    assert order.count("done") == 6
    lines = said.getvalue()
    assert "  6. wait\n" in lines
    assert "     2 to 5 side by side, 2 at a time\n" in lines
    for number in (1, 2, 3, 4):
        assert f" s  {number + 1} of 6: node {number}: install\n" in lines
        assert re.search(rf" s  done in \d+\.\d s: node {number}: install\n", lines)
    assert "4 of 4 hosts are done" in lines


def test_one_that_fails_keeps_no_other_from_its_end() -> None:
    both = threading.Barrier(3)
    after: list[str] = []

    def fail() -> None:
        begin_together(both)
        raise OSError("no space left")

    def install() -> None:
        begin_together(both)
        after.append("installed")

    for failing, error in ((1, OSError), (2, Failed)):
        after.clear()
        said = io.StringIO()
        acts = [*failing * [fail], *(3 - failing) * [install]]
        steps = [Step(f"node {number}: install", act, "install") for number, act in enumerate(acts, 1)]
        steps.append(Step("start", lambda: after.append("started")))
        with pytest.raises(error, match="^" + "\n".join(failing * ["no space left"]) + "$"):
            carry_out(steps, Report(said), 3, lambda: after.append("done"))
        assert sorted(after) == sorted((3 - failing) * ["done", "installed"])
        assert "failed: node 1: install: no space left" in said.getvalue()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster()
    made.inventory(tmp_path)
    yield made
    made.end()


@pytest.fixture
def bootstrap(cluster: Cluster, tmp_path: Path, run: Run) -> Callable[[], tuple[int, str]]:
    """Run the tool with a keelmqd that ends at once, and refuses what `refused` names."""
    program, path = tmp_path / "keelmqd", tmp_path / "cluster.toml"
    program.write_text(
        f'#!/bin/sh\n[ "$3" = --check-config ] || exec touch "$2.started"\n'
        f'if grep -q -f "{tmp_path}/refused" "$2"; then echo "it does not suit" >&2; exit 2; fi\n'
    )
    program.chmod(0o700)
    path.write_text(path.read_text().replace('id = "shop"', f'id = "shop"\nprogram = "{program}"', 1))
    assert cluster.members == [1, 2, 3]

    return partial(run, "bootstrap")


def test_a_bootstrap_that_failed_on_one_host_is_finished_by_the_next(
    bootstrap: Callable[[], tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / "refused").write_text("node_id = 2\n")
    code, said = bootstrap()
    assert code == 1
    assert "node 2 (this machine): prepare: keelmqd --check-config: it does not suit\nWhat is done is kept" in said
    for number in (1, 3):
        assert re.search(rf"done in .* s: node {number} \(this machine\): configure and check", said), said
    assert "1 to 3 of 7: configure and check" in said
    assert not list(tmp_path.glob("hosts/*/etc/*.started")), "none is started before all are checked"
    (tmp_path / "refused").write_text("node_id = 9\n")
    code, said = bootstrap()
    assert code == 0, said
    assert "4 to 6 of 7: start" in said


@pytest.mark.usefixtures("cluster")
def test_preflight_looks_at_all_hosts_at_the_same_time_and_tells_of_them_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Host 3 answers first and host 1 last, each time; hosts 1 and 3 have defects."""
    facts, reach = Host.facts, Host.reach
    barriers = {name: threading.Barrier(3) for name in ("facts", "reach")}
    answered = {(name, number): threading.Event() for name in barriers for number in (1, 2, 3, 4)}
    for name in barriers:
        answered[name, 4].set()

    def in_turn(name: str, number: int) -> None:
        begin_together(barriers[name])
        assert answered[name, number + 1].wait(PATIENCE_S)
        answered[name, number].set()

    def asked_facts(host: Host) -> dict[str, Any]:
        in_turn("facts", host.node.id)
        return {**facts(host), "free_bytes": 0 if host.node.id != 2 else 1 << 40}

    def asked_reach(host: Host, targets: list[list[Any]]) -> list[list[Any]]:
        in_turn("reach", host.node.id)
        if host.node.id == 2:
            raise HostError(host.node, "reach: no answer in time")
        return [*reach(host, targets), ["10.0.0.9", host.node.id, "refused"]]

    monkeypatch.setattr(Host, "facts", asked_facts)
    monkeypatch.setattr(Host, "reach", asked_reach)
    monkeypatch.setattr(Host, "listening", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(sys, "argv", ["keelmq-deploy", "preflight", "-i", str(tmp_path / "cluster.toml")])
    assert __main__.main() == 1
    said = capsys.readouterr().out
    told = ["node 1.*: 0 MiB are free", "node 3.*: 0 MiB are free"]
    told += ["node 1.*10.0.0.9:1 cannot be reached", "node 2.*reach: no answer", "node 3.*10.0.0.9:3 cannot be reached"]
    places = [found.start() for text in told if (found := re.search(text, said)) is not None]
    assert len(places) == len(told), said
    assert places == sorted(places), said
