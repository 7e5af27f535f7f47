"""`keelmq-deploy restore` of a backup from which the same hosts were restored before."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout import __main__
from deploy.rollout.host_data import RESTORE_NOTE
from deploy.rollout.host_root import MARK

BACKUP = b"a backup"
NODES = (1, 2, 3)

Plan = Callable[[], tuple[int, str]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Return a function that has the tool print its plan."""
    ports = free_ports(2 * len(NODES))
    text = f'[cluster]\nid = "shop"\nroot = "{tmp_path}/hosts"\n'
    for number in NODES:
        text += f'[[node]]\nid = {number}\npeer = "127.0.0.1:{ports.pop()}"\nurl = "http://127.0.0.1:{ports.pop()}"\n'
        write_restored(tmp_path / "hosts" / f"node{number}", number)
    (tmp_path / "cluster.toml").write_text(text)
    (tmp_path / "shop.backup").write_bytes(BACKUP)

    def run() -> tuple[int, str]:
        arguments = ["restore", "--backup", str(tmp_path / "shop.backup"), "--dry-run"]
        monkeypatch.setattr(sys, "argv", ["keelmq-deploy", *arguments, "-i", str(tmp_path / "cluster.toml")])
        code = __main__.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def write_restored(root: Path, number: int) -> None:
    (root / "data").mkdir(parents=True)
    (root / "data" / "identity").touch()
    (root / MARK).write_text(f"node {number} of the cluster shop\n")
    note = {"restore_id": "drill", "backup": hashlib.sha256(BACKUP).hexdigest(), "finished": True}
    (root / RESTORE_NOTE).write_text(json.dumps(note))


def lose_data(root: Path) -> None:
    (root / "data" / "identity").unlink()


def test_nothing_is_done_again_while_the_hosts_have_the_data(plan: Plan) -> None:
    code, said = plan()
    assert code == 0
    assert "all nodes were restored from shop.backup before" in said


def test_hosts_that_have_lost_all_data_since_are_restored_again(plan: Plan, tmp_path: Path) -> None:
    for number in NODES:
        lose_data(tmp_path / "hosts" / f"node{number}")
    code, said = plan()
    assert code == 0
    assert said.count(": restore\n") == len(NODES)


def test_what_is_left_of_the_data_is_not_lost_with_the_rest(plan: Plan, tmp_path: Path) -> None:
    lose_data(tmp_path / "hosts" / "node1")
    code, said = plan()
    assert code == 3
    assert "node 2 (this machine), node 3 (this machine) has data" in said


def test_a_restore_that_goes_on_elsewhere_gets_no_second_secret(plan: Plan, tmp_path: Path) -> None:
    """Nodes that run already have the first one, and would refuse those that start with another."""
    root = tmp_path / "hosts" / "node1"
    note = json.loads((root / RESTORE_NOTE).read_text())
    for number in NODES:
        (tmp_path / "hosts" / f"node{number}" / RESTORE_NOTE).write_text(json.dumps(note | {"finished": False}))
    lose_data(tmp_path / "hosts" / "node2")
    (root / "etc").mkdir()
    secret = root / "etc" / "peer_secret"
    secret.write_text("secret of the nodes that run")
    code, said = plan()
    assert code == 3
    assert f"copy {secret} to {tmp_path / 'cluster.toml.secret'}" in said
    (tmp_path / "cluster.toml.secret").write_text("secret of the nodes that run")
    assert plan()[0] == 0
