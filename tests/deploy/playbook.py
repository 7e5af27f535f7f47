"""The playbook of `keelmq-deploy render ansible`, run by Ansible on hosts that ssh and a bundle alone reach, with a
program in place of systemd (tests/deploy/systemctl.py).
"""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.deploy.trial import Trial
from tests.e2e.deployment import load
from tests.patience import RUN_PATIENCE_S
from tests.requirements import ANSIBLE

MACHINES: Final = (7, 8, 9)
"""Hosts on which services can be installed."""
_RECAP: Final = re.compile(r"^(node-\d) +: ok=\d+ +changed=(\d+) +unreachable=0 +failed=0 ", re.MULTILINE)
_RESTARTED: Final = re.compile(r"^TASK \[Restart the node\] \*+\nchanged: \[node-(\d)\]", re.MULTILINE)


class Playbook(Trial):
    """Installs a cluster as services, changes nothing when it is run again, and takes over other options and another
    release node by node, the leader last, under a load of which no call fails.
    """

    name = "playbook"
    places: Mapping[int, int] = dict(enumerate(MACHINES, 1))

    async def run(self) -> dict[str, object]:
        if ANSIBLE.reason is not None:
            return {"playbook": ANSIBLE.reason}
        deployment = self._deployment
        begun_s = time.monotonic()
        first = await self._play(self._bundles.present)
        installed_s = time.monotonic() - begun_s
        await self._done("status")
        assert len(_RESTARTED.findall(first)) >= 1, first
        again = await self._play(self._bundles.present)
        assert set(_changed(again).values()) == {0}, again
        leader = deployment.leader()
        for options in deployment.options.values():
            options["log_level"] = "debug"
        deployment.write()
        async with load(deployment) as acknowledged:
            order = _RESTARTED.findall(await self._play(self._bundles.present))
            assert (sorted(order), order[-1]) == (["1", "2", "3"], str(leader)), order
            order = _RESTARTED.findall(await self._play(self._bundles.another))
            assert sorted(order) == ["1", "2", "3"], order
        await self._done("status")
        return {"playbook_installed_s": round(installed_s, 1), "playbook_acknowledged": len(acknowledged)}

    async def _play(self, bundle: Path) -> str:
        """Render the playbook anew, run it, and return what Ansible printed."""
        rendered = self._deployment.directory / "rendered"
        await self._done("render", "ansible", "--output", str(rendered))
        self._report.step(f"ansible-playbook, with {bundle.name}")
        done = await asyncio.to_thread(_ansible, rendered, bundle)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(_changed(done.stdout)) == len(MACHINES), done.stdout
        return done.stdout


def _ansible(rendered: Path, bundle: Path) -> "subprocess.CompletedProcess[str]":
    command = ["ansible-playbook", "-i", "hosts.yml", "site.yml", "-e", f"keelmq_bundle={bundle}"]
    own = {"HOME": str(rendered.parent), "ANSIBLE_LOCAL_TEMP": str(rendered.parent / "ansible")}
    own |= {"ANSIBLE_NOCOLOR": "1", "ANSIBLE_SSH_ARGS": "-o ControlMaster=no"}  # the connection is there
    environment = {**os.environ, **own}
    return subprocess.run(
        command, cwd=rendered, env=environment, capture_output=True, text=True, timeout=RUN_PATIENCE_S
    )


def _changed(output: str) -> dict[str, int]:
    """Return how many tasks changed something, by host."""
    return {name: int(count) for name, count in _RECAP.findall(output)}
