"""Network faults: partitions of all shapes, links that work one way or intermittently, losses, resets, bottlenecks."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from tests.chaos.cluster import ChaosCluster
from tests.chaos.nemeses.fault import Fault, FaultKind, follower_or_any, joined, leader_or_any
from tests.chaos.network import Network, host_of

FLAP_S: Final = (0.05, 0.6)
LOSS_PERCENT: Final = (5, 40)
SLOW_KBIT_PER_S: Final = (256, 4_096)
SLOW_QUEUE_MS: Final = (50, 400)
THIN_KBIT_PER_S: Final = 8_000


class NetworkFault:
    """Base of the network faults: each fault has a name of its own for its rules, so that faults can be combined."""

    _counter = 0

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        assert cluster.network is not None, "network faults are chosen only where there are namespaces"
        NetworkFault._counter += 1
        self.cluster = cluster
        self.rng = rng
        self.network: Network = cluster.network
        self.rules_of = f"fault{NetworkFault._counter}"

    async def heal(self) -> str:
        await self.network.remove(self.rules_of)
        return "the network is whole"

    async def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Make node a hear nothing of node b, for all pairs (a, b)."""
        by_node: dict[int, set[str]] = {}
        for hears, source in pairs:
            by_node.setdefault(hears, set()).add(host_of(source))
        for node_id, sources in by_node.items():
            await self.network.drop(self.rules_of, node_id, sources)

    async def split(self, one: Iterable[int], other: Iterable[int]) -> None:
        pairs = [(a, b) for a in one for b in other]
        await self.cut([*pairs, *((b, a) for a, b in pairs)])


class Halves(NetworkFault):
    """A partition with a majority on one side and the rest on the other; clients reach both."""

    async def start(self) -> str:
        order = self.rng.sample(self.cluster.ids(), len(self.cluster.nodes))
        one, other = order[: self.cluster.majority], order[self.cluster.majority :]
        await self.split(one, other)
        return f"partition: {joined(sorted(one))} | {joined(sorted(other))}"


class Isolate(NetworkFault):
    """Cut one node off from its peers, and with `clients` from the clients as well."""

    def __init__(self, leader: bool, clients: bool, cluster: ChaosCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        self._leader, self._clients = leader, clients

    async def start(self) -> str:
        choose = leader_or_any if self._leader else follower_or_any
        alone = await choose(self.cluster, self.rng)
        await self.split([alone], [node_id for node_id in self.cluster.nodes if node_id != alone])
        if self._clients:
            await self.network.drop(self.rules_of, alone, [self.cluster.client_host])
        return f"node {alone} isolated{' from clients too' if self._clients else ''}"


class OneWay(NetworkFault):
    """A node hears no peer but is heard by all (`deaf`), or hears all and is heard by none."""

    def __init__(self, deaf: bool, cluster: ChaosCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        self._deaf = deaf

    async def start(self) -> str:
        node = await (leader_or_any if self.rng.random() < 0.6 else follower_or_any)(self.cluster, self.rng)
        others = [node_id for node_id in self.cluster.nodes if node_id != node]
        await self.cut([(node, each) if self._deaf else (each, node) for each in others])
        return f"node {node} hears no peer" if self._deaf else f"node {node} is heard by no peer"


class Bridge(NetworkFault):
    """Two sides do not reach each other, and one node reaches both."""

    async def start(self) -> str:
        middle, *rest = self.rng.sample(self.cluster.ids(), len(self.cluster.nodes))
        half = len(rest) // 2
        await self.split(rest[:half], rest[half:])
        return f"bridge: {joined(sorted(rest[:half]))} and {joined(sorted(rest[half:]))} meet only at node {middle}"


class Ring(NetworkFault):
    """Let every node reach only its two neighbours, so that every majority overlaps another one."""

    async def start(self) -> str:
        order = self.rng.sample(self.cluster.ids(), len(self.cluster.nodes))
        size = len(order)
        far = [(a, b) for a in range(size) for b in range(size) if (a - b) % size not in (0, 1, size - 1)]
        await self.cut([(order[a], order[b]) for a, b in far])
        return f"ring: {order}"


class Loss(NetworkFault):
    """Lose every packet between peers with one probability, drawn per fault."""

    async def start(self) -> str:
        percent = self.rng.randint(*LOSS_PERCENT)
        for node_id in self.cluster.nodes:
            hosts = ", ".join(host_of(each) for each in self.cluster.nodes if each != node_id)
            rule = f"ip saddr {{ {hosts} }} numgen random mod 100 < {percent} drop"
            await self.network.rules(self.rules_of, node_id, [rule])
        return f"{percent} % of the packets between peers are lost"


class Blackhole(NetworkFault):
    """Drop every packet that arrives at any node, from nodes and from clients."""

    async def start(self) -> str:
        for node_id in self.cluster.nodes:
            await self.network.rules(self.rules_of, node_id, ['iifname "eth0" drop'])
        return "blackhole: no packet arrives anywhere"


class Reset(NetworkFault):
    """Connections to and from one node are reset as soon as they are used."""

    async def start(self) -> str:
        node = await (leader_or_any if self.rng.random() < 0.6 else follower_or_any)(self.cluster, self.rng)
        await self.network.rules(self.rules_of, node, ["meta l4proto tcp reject with tcp reset"])
        return f"connections of node {node} are reset"


class Flap(NetworkFault):
    """Pull the cable of one node out and put it in, many times."""

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        self._task: asyncio.Task[None] | None = None
        self._node = 0

    async def start(self) -> str:
        self._node = await (leader_or_any if self.rng.random() < 0.6 else follower_or_any)(self.cluster, self.rng)
        self._task = asyncio.create_task(self._flap())
        return f"the link of node {self._node} flaps"

    async def heal(self) -> str:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            await self.network.link(self._node, up=True)
        return f"the link of node {self._node} is up"

    async def _flap(self) -> None:
        up = True
        while True:
            up = not up
            await self.network.link(self._node, up=up)
            await asyncio.sleep(self.rng.uniform(*FLAP_S))


class Slow(NetworkFault):
    """Make one node's incoming link a bottleneck with little bandwidth and a long queue. Packets that do not fit into
    the queue are lost.
    """

    def __init__(self, cluster: ChaosCluster, rng: random.Random) -> None:
        super().__init__(cluster, rng)
        self._node = 0

    async def start(self) -> str:
        node = await (leader_or_any if self.rng.random() < 0.6 else follower_or_any)(self.cluster, self.rng)
        rate, queue_ms = self.rng.randint(*SLOW_KBIT_PER_S), self.rng.randint(*SLOW_QUEUE_MS)
        await self.network.slow(node, rate, queue_ms)
        self._node = node
        return f"the link to node {node} has {rate} kbit/s and a queue of {queue_ms} ms"

    async def heal(self) -> str:
        if self._node:
            await self.network.fast(self._node)
        return f"the link to node {self._node} is fast"


class ThinLinks(NetworkFault):
    """Limit the links of all nodes to 1 MB/s at once: a large entry is under way for seconds."""

    async def start(self) -> str:
        queue_ms = self.rng.randint(*SLOW_QUEUE_MS)
        for node in self.cluster.ids():
            await self.network.slow(node, THIN_KBIT_PER_S, queue_ms)
        return f"the links to all nodes have {THIN_KBIT_PER_S} kbit/s and queues of {queue_ms} ms"

    async def heal(self) -> str:
        for node in self.cluster.ids():
            with contextlib.suppress(RuntimeError):  # it was never slow, or another fault has ended
                await self.network.fast(node)
        return "the links to all nodes are fast"


def _kind(name: str, make: Callable[[ChaosCluster, random.Random], Fault], nodes_min: int = 3) -> FaultKind:
    return FaultKind(name, "network", make, nodes_min)


KINDS = (
    _kind("halves", Halves),
    _kind("isolate-one", partial(Isolate, False, False)),
    _kind("isolate-leader", partial(Isolate, True, False)),
    _kind("cut-leader", partial(Isolate, True, True)),
    _kind("deaf", partial(OneWay, True)),
    _kind("mute", partial(OneWay, False)),
    _kind("bridge", Bridge),
    _kind("ring", Ring, nodes_min=5),
    _kind("loss", Loss),
    _kind("blackhole", Blackhole),
    _kind("reset", Reset),
    _kind("flap", Flap),
    _kind("slow-link", Slow),
    _kind("slow-links", ThinLinks),
)
