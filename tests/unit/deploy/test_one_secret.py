"""`keelmq-deploy bootstrap` makes a peer secret for a new cluster only, not for one made elsewhere."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deploy.local_nodes import free_ports
from deploy.rollout.host_root import MARK
from tests.unit.deploy.stand_ins import Run

Bootstrap = Callable[[], tuple[int, str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return the root of a node whose keelmqd is there, and refuses every configuration."""
    root = tmp_path / "hosts" / "node1"
    (root / "etc").mkdir(parents=True)
    (root / MARK).write_text("node 1 of the cluster shop\n")
    program = root / "releases" / "a" / "bin" / "keelmqd"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho checked >&2\nexit 2\n")
    program.chmod(0o700)
    (root / "current").symlink_to(program.parent.parent)
    return root


@pytest.fixture
def bootstrap(tmp_path: Path, run: Run) -> Bootstrap:
    inventory = tmp_path / "cluster.toml"
    peer, url = free_ports(2)
    inventory.write_text(
        f'[cluster]\nid = "shop"\nroot = "{tmp_path}/hosts"\n'
        f'[[node]]\nid = 1\npeer = "127.0.0.1:{peer}"\nurl = "http://127.0.0.1:{url}"\n'
    )

    return partial(run, "bootstrap")


def test_the_secret_of_another_machine_is_not_replaced(root: Path, bootstrap: Bootstrap, tmp_path: Path) -> None:
    secret, own = root / "etc" / "peer_secret", tmp_path / "cluster.toml.secret"
    secret.write_text("secret of the nodes that run")
    code, said = bootstrap()
    assert code == 3
    assert f"copy {secret} to {own}" in said
    assert secret.read_text() == "secret of the nodes that run"
    assert not own.exists()
    own.write_text("secret of the nodes that run")
    assert "checked" in bootstrap()[1]
    assert secret.read_text() == "secret of the nodes that run"


def test_a_new_cluster_gets_one(root: Path, bootstrap: Bootstrap, tmp_path: Path) -> None:
    assert "checked" in bootstrap()[1]
    assert (root / "etc" / "peer_secret").read_text() == (tmp_path / "cluster.toml.secret").read_text()
