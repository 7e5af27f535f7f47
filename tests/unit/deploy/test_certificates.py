"""Certificates of a deployment, made by a tool that may be killed at any moment."""

from pathlib import Path

import pytest

from deploy.rollout.certificates import CertificateError, Certificates
from deploy.rollout.inventory import read_inventory

INVENTORY = """
[cluster]
id = "shop"
root = "/var/nowhere"
tls = "all"
[[node]]
id = 1
peer = "127.0.0.1:7091"
url = "https://127.0.0.1:7081"
"""


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    path = tmp_path / "cluster.toml"
    path.write_text(INVENTORY)
    return Certificates(read_inventory(path))


def test_what_a_killed_tool_was_making_is_made_by_the_next_one(certificates: Certificates) -> None:
    """A kill may leave an authority that is not whole, in a directory of its own, and the key of a node alone."""
    directory = certificates.directory
    left = directory.with_name(f".{directory.name}.making-left")
    (left / "pki").mkdir(parents=True)
    (left / "pki" / "ca.key").write_text("never used")
    certificates.make_authority()
    assert sorted(path.name for path in directory.parent.iterdir()) == ["cluster.toml", directory.name]
    (node,) = certificates._inventory.nodes
    certificates.make(node)
    key = (directory / "node-1.key").read_bytes()
    (directory / "node-1.crt").unlink()
    assert not certificates.has(node)
    certificates.make(node)
    assert (directory / "node-1.key").read_bytes() == key
    assert sorted(path.name for path in directory.iterdir()) == ["ca.crt", "ca.key", "node-1.crt", "node-1.key"]


def test_an_authority_that_is_not_whole_is_the_operators(certificates: Certificates) -> None:
    """The key in it may have signed what is in use."""
    certificates.directory.mkdir()
    (certificates.directory / "ca.key").write_text("in use")
    with pytest.raises(CertificateError, match="is there without ca"):
        certificates.make_authority()
    assert (certificates.directory / "ca.key").read_text() == "in use"
    assert [path.name for path in certificates.directory.parent.glob(".*")] == []
