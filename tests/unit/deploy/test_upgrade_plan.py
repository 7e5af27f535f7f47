"""`keelmq-deploy upgrade --dry-run`: the plan has what the run does."""

import hashlib
import re
from pathlib import Path

import pytest

from deploy.rollout.rolling import Deployed
from deploy.rollout.verbs import BUNDLE_NAME_CHARACTERS
from tests.unit.deploy.stand_ins import Run
from tests.unit.deploy.test_rollback import Hosts

CONTENT = b"a bundle"
NAME = hashlib.sha256(CONTENT).hexdigest()[:BUNDLE_NAME_CHARACTERS]


@pytest.mark.parametrize("installed", [(), (2,)], ids=["nowhere", "on-one-host"])
def test_nodes_that_get_the_bundle_are_restarted_in_the_plan(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, installed: tuple[int, ...]
) -> None:
    """All run what is current now; the host that has the new release runs that one."""
    Hosts(tmp_path).have(*(NAME if number in installed else "a" for number in (1, 2, 3)))
    monkeypatch.setattr(Deployed, "pid", property(lambda each: 4710 + each.node.id))
    monkeypatch.setattr(Deployed, "is_wanted", True)
    (tmp_path / "new.tar.gz").write_bytes(CONTENT)
    expected = [str(number) for number in (1, 2, 3) if number not in installed]
    code, said = run("upgrade", "--bundle", str(tmp_path / "new.tar.gz"), "--dry-run")
    assert code == 0, said
    for step in ("install new.tar.gz", "configure and check", "restart"):
        assert re.findall(rf"node (\d) \([^)]*\): {step}", said) == expected, said
    assert f'"steps": {3 * len(expected) + 1},' in said
