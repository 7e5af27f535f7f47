"""`keelmq-deploy rollback` after an installation that did not reach all hosts: none goes further back than another."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout import __main__
from deploy.rollout.host_releases import point, release_at
from deploy.rollout.host_root import MARK
from deploy.rollout.rolling import Deployed
from deploy.rollout.verbs import Verbs
from tests.unit.deploy.stand_ins import Run

NODES = (1, 2, 3)


class Hosts:
    """Three hosts on which no node runs, and a tool that restarts none. A release is current, and perhaps one before:
    "b<a" is b, and a before.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports = free_ports(2 * len(NODES))
        self.inventory = directory / "cluster.toml"
        text = f'[cluster]\nid = "shop"\nroot = "{directory}/hosts"\n'
        for number in NODES:
            peer, url = ports.pop(), ports.pop()
            text += f'[[node]]\nid = {number}\npeer = "127.0.0.1:{peer}"\nurl = "http://127.0.0.1:{url}"\n'
        self.inventory.write_text(text)

    def root(self, number: int) -> Path:
        return self._directory / "hosts" / f"node{number}"

    def have(self, *releases: str) -> None:
        for number, text in zip(NODES, releases, strict=True):
            root = self.root(number)
            root.mkdir(parents=True)
            (root / MARK).write_text(f"node {number} of the cluster shop\n")
            for name, link in zip(text.split("<"), ("current", "previous"), strict=False):
                program = root / "releases" / name / "bin" / "keelmqd"
                program.parent.mkdir(parents=True, exist_ok=True)
                program.write_text('#!/bin/sh\necho "keelmqd 1 (feature level 1)"\n')
                program.chmod(0o700)
                point(root / link, root / "releases" / name)

    def releases(self) -> list[str]:
        return [
            "<".join(filter(None, (release_at(self.root(number) / link) for link in ("current", "previous"))))
            for number in NODES
        ]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setattr(Verbs, "_roll", lambda *_, **__: None)
    return Hosts(tmp_path)


Rollback = Callable[[], tuple[int, str]]


@pytest.fixture
def rollback(hosts: Hosts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rollback:
    def run() -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", "rollback", "-i", str(hosts.inventory)])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("c<b", "c<b", "c<b"), ["b", "b", "b"]),
        (("c<b", "b<a", "b<a"), ["b", "b", "b"]),
        (("b<b", "b<a", "b<a"), ["b", "b", "b"]),
        (("c<b", "b<b", "b<a"), ["b", "b", "b"]),
        (("c<b", "b", "b<a"), ["b", "b", "b"]),
        (("b", "c<b", "c<b"), ["b", "b", "b"]),
    ],
    ids=["all", "first-host", "first-host-killed", "second-host-killed", "new-host", "rollback-killed"],
)
def test_all_hosts_have_the_release_from_before_the_last_installation(
    hosts: Hosts, rollback: Rollback, before: tuple[str, ...], after: list[str]
) -> None:
    hosts.have(*before)
    for _ in range(2):  # the second one finds nothing
        code, said = rollback()
        assert code == 0, said
        assert hosts.releases() == after


@pytest.mark.parametrize(("runs", "is_kept"), [(False, False), (True, True)], ids=["none-left", "one-left"])
def test_a_restart_that_was_not_finished_is_forgotten_with_the_last_of_its_processes(
    hosts: Hosts, rollback: Rollback, monkeypatch: pytest.MonkeyPatch, runs: bool, is_kept: bool
) -> None:
    """Otherwise the next restart, weeks later, would restart nothing and call that success."""
    hosts.have("b", "b", "b")
    note = hosts.inventory.with_name("cluster.toml.restart")
    note.write_text(json.dumps(["1:4711", "2:4712", "3:4713"]))
    monkeypatch.setattr(Deployed, "pid", property(lambda each: 4710 + each.node.id if runs else 1))
    code, said = rollback()
    assert code == 0, said
    assert note.exists() == is_kept


@pytest.mark.parametrize(
    ("age_s", "skipped"), [(None, []), (7200.0, []), (-60.0, []), (60.0, [1])], ids=["former", "old", "later", "recent"]
)
def test_a_restart_goes_on_with_a_recent_one_alone_and_says_what_it_skips(
    hosts: Hosts, run: Run, monkeypatch: pytest.MonkeyPatch, age_s: float | None, skipped: list[int]
) -> None:
    hosts.have("b", "b", "b")
    before = ["1:1", "2:4712", "3:4713"]
    note = before if age_s is None else {"made_s": time.time() - age_s, "processes": before}
    hosts.inventory.with_name("cluster.toml.restart").write_text(json.dumps(note))
    chosen: list[int] = []
    monkeypatch.setattr(Deployed, "pid", property(lambda each: 4710 + each.node.id))
    monkeypatch.setattr(Deployed, "is_wanted", True)
    monkeypatch.setattr(Verbs, "_roll", lambda _, __, rolled: chosen.extend(each.node.id for each in rolled))
    code, said = run("restart")
    assert code == 0, said
    assert chosen == [number for number in (1, 2, 3) if number not in skipped]
    assert f'"nodes_skipped": {json.dumps(skipped)}' in said
    assert said.count("skipped, as it was restarted then") == len(skipped)


def test_hosts_that_do_not_tell_are_left_alone(hosts: Hosts, rollback: Rollback) -> None:
    before = ("a<b", "b<a", "b<a")
    hosts.have(*before)
    code, said = rollback()
    assert code == 1
    assert "which of two releases was installed last" in said
    assert hosts.releases() == list(before)
