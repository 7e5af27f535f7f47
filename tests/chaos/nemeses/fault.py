"""The interface of a fault, which starts, holds for a while, and is healed."""

import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tests.chaos.cluster import ChaosCluster


class Fault(Protocol):
    """One injected fault. `start` and `heal` return a description for the record.

    `heal` is called once, also when `start` failed half-way, and leaves the effects of other faults alone. It undoes
    everything that this fault did, and starts nodes that ended because of it.
    """

    async def start(self) -> str: ...

    async def heal(self) -> str: ...


class FaultKind(NamedTuple):
    """An entry of the catalogue. `make` gets the cluster and a source of choices that depends on the seed only."""

    name: str
    family: str
    make: Callable[[ChaosCluster, random.Random], Fault]
    nodes_min: int = 3


def joined(node_ids: list[int]) -> str:
    """Return text such as `node 2` or `nodes 1, 3`."""
    return ("node " if len(node_ids) == 1 else "nodes ") + ", ".join(map(str, node_ids))


async def leader_or_any(cluster: ChaosCluster, rng: random.Random) -> int:
    """Return the leader, if there is one at the moment; otherwise the seed chooses a node."""
    any_node = rng.choice(cluster.ids())
    return await cluster.known_leader() or any_node


async def follower_or_any(cluster: ChaosCluster, rng: random.Random) -> int:
    order = rng.sample(cluster.ids(), len(cluster.nodes))
    leader = await cluster.known_leader()
    return next(node_id for node_id in order if node_id != leader)
