"""The common part of all trials: the tool, run on one deployment, with each call reported."""

import asyncio
import os
import shutil
import signal
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from deploy.reporting.report import Report
from tests.deploy.hosts import Hosts
from tests.e2e.cluster_process import wait_for
from tests.e2e.deployment import Deployment
from tests.patience import RUN_PATIENCE_S
from tests.versions.releases import Release

PLACES: Final = {1: 1, 2: 2, 3: 3}
OTHER_PLACES: Final = {1: 4, 2: 5, 3: 6}
"""The same node ids on other hosts."""

P99_GOAL_MS: Final = 1_000.0
"""Largest 99th percentile of the calls under load, while nodes are restarted and exchanged."""


class Bundles(NamedTuple):
    present: Path
    """Bundle of this tree."""
    another: Path
    """Another release with the same program."""
    former: tuple[Release, Path] | None
    """The last release and its bundle; None where its commit is not in this clone."""


class Sizes(NamedTuple):
    """Logs of the trial `large`, in GiB."""

    restart_gib: float = 2.0
    wiped_gib: float = 1.0


class Trial:
    """One cluster from nothing to its end. A broken promise raises AssertionError."""

    name: str = ""
    places: Mapping[int, int] = PLACES
    """Hosts of its nodes."""

    def __init__(self, report: Report, hosts: Hosts, bundles: Bundles, sizes: Sizes) -> None:
        self._report = report
        self._hosts = hosts
        self._bundles = bundles
        self._sizes = sizes
        self._deployment = hosts.deployment(self.name, self.places)

    async def run(self) -> dict[str, object]:
        """Return the figures of the trial."""
        raise NotImplementedError

    async def _done(self, *arguments: str, at: Deployment | None = None) -> str:
        self._report.step(" ".join(["keelmq-deploy", *arguments]))
        return await asyncio.to_thread((at or self._deployment).done, *arguments, patience_s=RUN_PATIENCE_S)

    async def _destroy(self, at: Deployment | None = None) -> None:
        await self._done("destroy", "--yes", "e2e", at=at)
        assert (at or self._deployment).pids() == {}


def latency_figures(name: str, took_s: list[float]) -> dict[str, object]:
    """Return the latencies of the load's calls for the result, which has those of several trials."""
    ordered = sorted(took_s)
    p99_ms = round(1_000 * ordered[len(ordered) * 99 // 100], 1)
    return {
        f"{name}_sends": len(ordered),
        f"{name}_p99_ms": p99_ms,
        f"{name}_slowest_ms": round(1_000 * ordered[-1], 1),
        f"{name}_p99_goal_met": p99_ms <= P99_GOAL_MS,
    }


def kill_and_wipe(deployment: Deployment, numbers: Iterable[int]) -> None:
    """Kill the nodes, and take everything from their hosts."""
    pids = deployment.pids()
    for number in numbers:
        os.kill(pids[number], signal.SIGKILL)
        wait_for(lambda number=number: number not in deployment.pids(), "the node to be gone")  # type: ignore[misc]
        shutil.rmtree(deployment.root(number))


def another_release(release: Path, path: Path) -> Path:
    """Write a bundle that is another release with the same program: it has one more file."""
    with tarfile.open(release) as archive, tarfile.open(path, "w:gz") as other:
        for member in archive:
            other.addfile(member, archive.extractfile(member) if member.isfile() else None)
        other.addfile(tarfile.TarInfo(f"{Path(archive.getnames()[0]).parts[0]}/ANOTHER"))
    return path
