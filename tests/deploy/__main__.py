"""Run `make deploy-test`: three hosts as network namespaces with an sshd each, which nothing but a bundle reaches.

From nothing to a served message; a closed port that preflight names; a second run that changes nothing. Then, under a
load of which no call may fail and no message be lost: restart, upgrade to another release, rollback, and a wiped host
that is replaced. The last line is `RESULT {json}`.
"""

import argparse
import asyncio
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Final

from deploy.bundle import bundle
from deploy.reporting.report import Report
from deploy.reporting.result import result_of
from tests.chaos.isolation import ISOLATED_VARIABLE, enter_isolation
from tests.chaos.network import Network, host_of
from tests.deploy.hosts import PEER_PORT, SSH, hosts
from tests.e2e.cluster_process import wait_for
from tests.e2e.test_deploy import Deployment, load

NODE_IDS: Final = (1, 2, 3)
SERVED_S_MAX: Final = 60.0
"""Longest time from bare hosts to a message that is served."""
NOT_RUN: Final = 2


def main() -> int:
    parser = argparse.ArgumentParser(prog="make deploy-test", description=__doc__)
    parser.add_argument("--bundle", type=Path, help="File of `make bundle`; without it, one is made.")
    given = parser.parse_args()
    if SSH.reason is not None:
        print(f"deploy-test: {SSH.reason}", file=sys.stderr)
        return NOT_RUN
    report = Report()
    if ISOLATED_VARIABLE not in os.environ and given.bundle is None:
        # Namespaces have no way to an index of packages, so the bundle is made before.
        with tempfile.TemporaryDirectory() as work:
            given.bundle = bundle(Path(work), Path("dist"), report)
    arguments = ["--bundle", str(given.bundle.absolute())]
    if (reason := enter_isolation(arguments, "tests.deploy")) is not None:
        print(f"deploy-test: {reason}", file=sys.stderr)
        return NOT_RUN
    with tempfile.TemporaryDirectory() as directory, hosts(Path(directory), NODE_IDS) as (network, deployment):
        result = asyncio.run(Trial(report, network, deployment, given.bundle).run())
    report.result(result)
    return 0


class Trial:
    """One cluster from nothing to its end. A broken promise raises AssertionError."""

    def __init__(self, report: Report, network: Network, deployment: Deployment, release: Path) -> None:
        self._report = report
        self._network = network
        self._deployment = deployment
        self._a = str(release)
        self._b = str(_another(release, deployment.directory / "b.tar.gz"))

    async def run(self) -> dict[str, object]:
        deployment = self._deployment
        await self._closed_port()
        begun_s = time.monotonic()
        await self._done("bootstrap", "--bundle", self._a)
        before = deployment.pids()
        async with load(deployment) as acknowledged:
            while not acknowledged:
                await asyncio.sleep(0.01)
            served_s = time.monotonic() - begun_s
            assert served_s <= SERVED_S_MAX, served_s
            await self._done("bootstrap")
            assert deployment.pids() == before, "a second run changes nothing"
            await self._done("restart")
            await self._done("upgrade", "--bundle", self._b)
            await self._done("rollback")
            again = await self._done("rollback")
            assert result_of(again)["steps"] <= 1, again  # it waits until all are healthy
            await self._replace(deployment.leader())
        await self._done("status")
        await self._done("destroy", "--yes", "e2e")
        assert deployment.pids() == {}
        return {
            "served_s": round(served_s, 1),
            "acknowledged": len(acknowledged),
            "failed_calls": 0,
            "lost": 0,
        }

    async def _done(self, *arguments: str) -> str:
        self._report.step(" ".join(["keelmq-deploy", *arguments]))
        return await asyncio.to_thread(self._deployment.done, *arguments)

    async def _closed_port(self) -> None:
        await self._network.rules("closed", 2, [f"tcp dport {PEER_PORT} drop"])
        found = await asyncio.to_thread(self._deployment.run, "preflight")
        assert found.returncode == 1, found.stdout
        for number in (1, 3):
            assert f"node {number} (root@{host_of(number)}): {host_of(2)}:{PEER_PORT} cannot be reached" in found.stdout
        await self._network.remove("closed")
        await self._done("preflight")

    async def _replace(self, number: int) -> None:
        self._wipe(number)
        await self._done("replace", str(number), "--bundle", self._a)

    def _wipe(self, number: int) -> None:
        os.kill(self._deployment.pids()[number], signal.SIGKILL)
        wait_for(lambda: number not in self._deployment.pids(), "the node to be gone")
        shutil.rmtree(self._deployment.root(number))


def _another(release: Path, path: Path) -> Path:
    """Write a bundle that is another release with the same program: it has one more file."""
    with tarfile.open(release) as archive, tarfile.open(path, "w:gz") as other:
        for member in archive:
            other.addfile(member, archive.extractfile(member) if member.isfile() else None)
        other.addfile(tarfile.TarInfo(f"{Path(archive.getnames()[0]).parts[0]}/ANOTHER"))
    return path


if __name__ == "__main__":
    sys.exit(main())
