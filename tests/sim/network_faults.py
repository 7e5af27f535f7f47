"""Partitions of all shapes, links that flap, drag or break."""

from collections import Counter
from collections.abc import Callable, Iterable

from .fault import PAUSE_US_MAX, PAUSE_US_MIN, Action, Fault
from .network import Network
from .world import World

FLAPS_MIN, FLAPS_MAX = 3, 12
FLAP_US_MIN, FLAP_US_MAX = 5_000, 120_000
DRAG_US_CHOICES = (20_000, 150_000, 500_000)

Links = list[tuple[int, int]]


class NetworkFaults:
    """Partition and disturb the network. A cut is silent, as when packets are dropped; only a reset is told to both
    ends. A link that several faults disturb is mended when the last of them is over.
    """

    def __init__(self, world: World, network: Network, may_go_on: Callable[[], bool]) -> None:
        self._world, self._network, self._may_go_on = world, network, may_go_on
        self._nodes = list(network.node_ids)
        self._cuts: Counter[tuple[int, int]] = Counter()
        self._drags: dict[tuple[int, int], list[int]] = {}
        """The delays in us of the faults that slow a link down, by link. The longest holds."""
        self.table: dict[str, Action] = {
            "isolate": self._isolate,
            "halves": self._halves,
            "one_way": self._one_way,
            "bridge": self._bridge,
            "ring": self._ring,
            "flap": self._flap,
            "slow_link": self._slow_link,
            "reset": self._reset,
        }

    def _isolate(self, fault: Fault) -> None:
        """Cut one node off from all others, in both directions, for a while."""
        node_id = fault.random.choice(self._nodes)
        self._part(fault, [node_id], [peer for peer in self._nodes if peer != node_id])

    def _halves(self, fault: Fault) -> None:
        nodes = fault.random.sample(self._nodes, len(self._nodes))
        size = fault.random.randint(1, max(1, len(nodes) - 1))
        self._part(fault, nodes[:size], nodes[size:])

    def _bridge(self, fault: Fault) -> None:
        """Split the nodes into two halves that only one node can both see."""
        nodes = fault.random.sample(self._nodes, len(self._nodes))
        middle = len(nodes) // 2
        self._part(fault, nodes[:middle], nodes[middle + 1 :])

    def _ring(self, fault: Fault) -> None:
        """Let each node see only its two neighbours: with five nodes, each has a majority, and each another one."""
        if len(self._nodes) < 4:
            return
        nodes = fault.random.sample(self._nodes, len(self._nodes))
        places = range(len(nodes))
        apart = [(a, b) for a in places for b in places if (a - b) % len(nodes) not in (0, 1, len(nodes) - 1)]
        self._cut(fault, [(nodes[a], nodes[b]) for a, b in apart], "-".join(map(str, nodes)))

    def _one_way(self, fault: Fault) -> None:
        if len(self._nodes) > 1:
            source, target = fault.random.sample(self._nodes, 2)
            self._cut(fault, [(source, target)], source, target)

    def _part(self, fault: Fault, ones: list[int], others: list[int]) -> None:
        links = _between(ones, others)
        if links:
            self._cut(fault, links, ",".join(map(str, sorted(ones))), ",".join(map(str, sorted(others))))

    def _cut(self, fault: Fault, links: Links, *detail: object) -> None:
        duration_us = fault.random.randint(PAUSE_US_MIN, 2 * PAUSE_US_MAX)
        fault.happened(*detail, duration_us // 1000)
        self._set_cut(links, cut=True)

        def mend() -> None:
            if self._may_go_on():
                fault.is_over()
                self._set_cut(links, cut=False)

        self._world.after(duration_us, mend)

    def _flap(self, fault: Fault) -> None:
        """Make the links between one node and the others come and go."""
        node_id = fault.random.choice(self._nodes)
        links = _between([node_id], [peer for peer in self._nodes if peer != node_id])
        times = fault.random.randint(FLAPS_MIN, FLAPS_MAX)
        if links:
            fault.happened(node_id, times)
            self._flap_on(fault, links, 2 * times)

    def _flap_on(self, fault: Fault, links: Links, changes_left: int) -> None:
        if not self._may_go_on():
            return
        if not changes_left:
            fault.is_over()
            return
        self._set_cut(links, cut=changes_left % 2 == 0)
        pause_us = fault.random.randint(FLAP_US_MIN, FLAP_US_MAX)
        self._world.after(pause_us, lambda: self._flap_on(fault, links, changes_left - 1))

    def _slow_link(self, fault: Fault) -> None:
        if len(self._nodes) < 2:
            return
        source, target = fault.random.sample(self._nodes, 2)
        drag_us = fault.random.choice(DRAG_US_CHOICES)
        duration_us = fault.random.randint(PAUSE_US_MIN, 2 * PAUSE_US_MAX)
        fault.happened(source, target, drag_us // 1000, duration_us // 1000)
        drags = self._drags.setdefault((source, target), [])
        drags.append(drag_us)
        self._network.drag(source, target, max(drags))

        def end() -> None:
            if self._may_go_on():
                fault.is_over()
                drags.remove(drag_us)
                self._network.drag(source, target, max(drags, default=0))

        self._world.after(duration_us, end)

    def _reset(self, fault: Fault) -> None:
        if len(self._nodes) > 1:
            one, other = fault.random.sample(self._nodes, 2)
            if self._network.reset(one, other):
                fault.happened(one, other)

    def _set_cut(self, links: Links, *, cut: bool) -> None:
        for link in links:
            self._cuts[link] += 1 if cut else -1
            if cut:
                self._network.cut(*link)
            elif not self._cuts[link]:
                self._network.uncut(*link)


def _between(ones: Iterable[int], others: Iterable[int]) -> Links:
    pairs = [(one, other) for one in ones for other in others]
    return [*pairs, *((other, one) for one, other in pairs)]
