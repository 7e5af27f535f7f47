"""Process faults: kill -9, freezing, and orderly restarts of one node, a minority, a majority or all."""

import random
from collections.abc import Awaitable, Callable
from functools import partial

from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import Fault, FaultKind, follower_or_any, joined, leader_or_any

Targets = Callable[[ChaosCluster, random.Random], Awaitable[list[int]]]


async def one(cluster: ChaosCluster, rng: random.Random) -> list[int]:
    return [await follower_or_any(cluster, rng)]


async def leader(cluster: ChaosCluster, rng: random.Random) -> list[int]:
    return [await leader_or_any(cluster, rng)]


async def minority(cluster: ChaosCluster, rng: random.Random) -> list[int]:
    return sorted(rng.sample(cluster.ids(), len(cluster.nodes) - cluster.majority))


async def majority(cluster: ChaosCluster, rng: random.Random) -> list[int]:
    return sorted(rng.sample(cluster.ids(), cluster.majority))


async def everyone(cluster: ChaosCluster, rng: random.Random) -> list[int]:
    return cluster.ids()


class Kill:
    """Nodes are killed with SIGKILL; healed by starting them again."""

    def __init__(self, targets: Targets, cluster: ChaosCluster, rng: random.Random) -> None:
        self._targets, self._cluster, self._rng = targets, cluster, rng
        self._chosen: list[int] = []

    async def start(self) -> str:
        self._chosen = await self._targets(self._cluster, self._rng)
        for node_id in self._chosen:
            self._cluster.nodes[node_id].kill()
        return f"kill -9 of {joined(self._chosen)}"

    async def heal(self) -> str:
        self._cluster.start(self._chosen)
        return f"{joined(self._chosen)} started"


class Pause:
    """Nodes are frozen by SIGSTOP: each process keeps its connections and does nothing; healed by SIGCONT."""

    def __init__(self, targets: Targets, cluster: ChaosCluster, rng: random.Random) -> None:
        self._targets, self._cluster, self._rng = targets, cluster, rng
        self._chosen: list[int] = []

    async def start(self) -> str:
        self._chosen = await self._targets(self._cluster, self._rng)
        for node_id in self._chosen:
            self._cluster.nodes[node_id].pause()
        return f"{joined(self._chosen)} frozen"

    async def heal(self) -> str:
        for node_id in self._chosen:
            self._cluster.nodes[node_id].resume()
        return f"{joined(self._chosen)} thawed"


class Stop:
    """Nodes are stopped by SIGTERM, one after the other, so that a leader hands over first; healed by starting them
    again.
    """

    def __init__(self, targets: Targets, cluster: ChaosCluster, rng: random.Random) -> None:
        self._targets, self._cluster, self._rng = targets, cluster, rng
        self._chosen: list[int] = []

    async def start(self) -> str:
        self._chosen = await self._targets(self._cluster, self._rng)
        codes = [await self._cluster.stop(node_id) for node_id in self._chosen]
        return f"{joined(self._chosen)} stopped in order (exit codes {codes})"

    async def heal(self) -> str:
        self._cluster.start(self._chosen)
        return f"{joined(self._chosen)} started"


def _kind(name: str, how: Callable[[Targets, ChaosCluster, random.Random], Fault], whom: Targets) -> FaultKind:
    return FaultKind(name, "process", partial(how, whom))


KINDS = (
    _kind("kill-one", Kill, one),
    _kind("kill-leader", Kill, leader),
    _kind("kill-minority", Kill, minority),
    _kind("kill-majority", Kill, majority),
    _kind("kill-all", Kill, everyone),
    _kind("pause-one", Pause, one),
    _kind("pause-leader", Pause, leader),
    _kind("pause-minority", Pause, minority),
    _kind("pause-majority", Pause, majority),
    _kind("pause-all", Pause, everyone),
    _kind("stop-one", Stop, one),
    _kind("stop-leader", Stop, leader),
    _kind("stop-all", Stop, everyone),
)
