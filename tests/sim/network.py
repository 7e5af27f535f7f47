"""The simulated network: one connection per pair of nodes, with delay, loss, duplication, reorder, cuts and resets."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .world import MICROSECONDS_PER_SECOND, World


class Endpoint(Protocol):
    """The interface through which the network reaches a running node."""

    @property
    def incarnation(self) -> str:
        """Return the incarnation that a node tells its peers after its disk was replaced `wipes` times."""
        ...

    def receive(self, source: int, message: Any) -> None: ...
    def link_up(self, peer: int) -> None: ...
    def link_down(self, peer: int) -> None: ...


class Wire(Protocol):
    """The interface of the network that nodes use."""

    @property
    def node_ids(self) -> Sequence[int]: ...
    def attach(self, node_id: int, endpoint: Endpoint) -> None: ...
    def detach(self, node_id: int) -> None: ...
    def send(self, source: int, target: int, message: Any, lane: int = 0, size_bytes: int = 0) -> bool: ...


@dataclass(frozen=True)
class LinkProfile:
    """The behaviour of links. With every probability 0, a link is like a TCP connection: messages arrive in order, and
    none is lost while the link stands.
    """

    delay_us_min: int = 100
    delay_us_max: int = 2_000
    slow_probability: float = 0.0  # a message that takes up to `slow_us_max`
    slow_us_max: int = 200_000
    loss_probability: float = 0.0
    duplicate_probability: float = 0.0
    reorder_probability: float = 0.0
    reconnect_us_min: int = 20_000
    reconnect_us_max: int = 500_000
    bytes_per_s: int = 0
    """Bytes per second that a link carries in each direction, both lanes together, in one unlimited queue; 0: any
    number.
    """

    @property
    def is_thin(self) -> bool:
        return self.bytes_per_s > 0


class Network:
    """Carry messages between endpoints. A node that is down has no endpoint and no connection.

    A *reset* ends a connection: messages under way are gone, both ends are told, and it comes back after a while. A
    *cut* is one-way and silent: nobody is told. Messages sent into it are lost on a lossy profile, and held back
    otherwise (TCP would retransmit them).
    """

    def __init__(self, world: World, node_ids: Iterable[int], profile: LinkProfile) -> None:
        self._world = world
        self._random = world.random_of("network")
        self.node_ids = tuple(node_ids)
        self.profile = profile
        self.counts: dict[str, int] = {"sent": 0, "lost": 0, "duplicated": 0, "reordered": 0, "reset": 0, "slow": 0}
        self.bytes_by_lane = [0, 0]
        """Bytes that thin links have carried, by lane."""
        self.on_send: Callable[[int, int, Any], None] | None = None
        self._endpoints: dict[int, Endpoint] = {}
        self._epoch: dict[tuple[int, int], int] = {}  # (low, high) -> number of the standing connection
        self._epochs_used = 0
        self._blocked: set[tuple[int, int]] = set()  # (low, high): no new connection
        self._cuts: set[tuple[int, int]] = set()  # (source, target)
        self._held: dict[tuple[int, int], list[Any]] = {}
        self._drag_us: dict[tuple[int, int], int] = {}
        self._last_arrival_us: dict[tuple[int, int, int], int] = {}  # by source, target and lane
        self._carried_until_us: dict[tuple[int, int], int] = {}  # by thin links

    def attach(self, node_id: int, endpoint: Endpoint) -> None:
        """Connect a node that has started with the running nodes, one by one."""
        self._endpoints[node_id] = endpoint
        for peer in self.node_ids:
            if peer != node_id and peer in self._endpoints:
                self._reconnect_later(node_id, peer, self._random.randint(0, self.profile.reconnect_us_min))

    def detach(self, node_id: int) -> None:
        """End the connections of a node that is down. Its messages on the way are lost too, as in a crash."""
        self._endpoints.pop(node_id, None)
        for peer in self.node_ids:
            if peer != node_id:
                self._disconnect(node_id, peer)

    def endpoint(self, node_id: int) -> Endpoint:
        """Return the running node with that id."""
        return self._endpoints[node_id]

    def connected(self, one: int, other: int) -> bool:
        return _pair(one, other) in self._epoch

    def reset(self, one: int, other: int) -> bool:
        """End the connection of two nodes; it is made again after a random while. False when there is none."""
        if not self.connected(one, other):
            return False
        self._disconnect(one, other)
        self.counts["reset"] += 1
        profile = self.profile
        self._reconnect_later(one, other, self._random.randint(profile.reconnect_us_min, profile.reconnect_us_max))
        return True

    def block(self, one: int, other: int) -> None:
        """End the connection of two nodes and let no new one come up before `unblock`."""
        self._blocked.add(_pair(one, other))
        self._disconnect(one, other)

    def unblock(self, one: int, other: int) -> None:
        self._blocked.discard(_pair(one, other))
        self._reconnect_later(one, other, self._random.randint(0, self.profile.reconnect_us_min))

    def cut(self, source: int, target: int) -> None:
        """Lose every message from `source` to `target` from now on. Neither of them is told."""
        self._cuts.add((source, target))

    def uncut(self, source: int, target: int) -> None:
        self._cuts.discard((source, target))
        for message, lane, size_bytes in self._held.pop((source, target), []):
            self._carry(source, target, message, lane, size_bytes)

    def drag(self, source: int, target: int, drag_us: int) -> None:
        """Delay every message from `source` to `target` by `drag_us` more from now on; 0 ends the delay."""
        self._drag_us[source, target] = drag_us

    def heal(self) -> None:
        """Remove every cut, drag and block; links that are down come up again."""
        self._drag_us.clear()
        for source, target in sorted(self._cuts):
            self.uncut(source, target)
        self._blocked.clear()
        for one in self.node_ids:
            for other in self.node_ids:
                if one < other and not self.connected(one, other):
                    self._reconnect_later(one, other, self._random.randint(0, self.profile.reconnect_us_min))

    def limit_slowness(self, slow_us_max: int) -> None:
        """Deliver slow messages within that time from now on. A message holds up all behind it on its lane."""
        self.profile = replace(self.profile, slow_us_max=min(self.profile.slow_us_max, slow_us_max))

    def send(self, source: int, target: int, message: Any, lane: int = 0, size_bytes: int = 0) -> bool:
        """Send over the standing connection; False when there is none. True promises nothing about arrival.

        What goes by different lanes keeps no order; `size_bytes` tells a thin link for how long it is busy with it.
        """
        if not self.connected(source, target):
            return False
        self.counts["sent"] += 1
        if self.on_send is not None:
            self.on_send(source, target, message)
        if (source, target) in self._cuts:
            if self._lossy:
                self.counts["lost"] += 1
            else:
                self._held.setdefault((source, target), []).append((message, lane, size_bytes))
            return True
        self._carry(source, target, message, lane, size_bytes)
        return True

    @property
    def _lossy(self) -> bool:
        return self.profile.loss_probability > 0

    def _carry(self, source: int, target: int, message: Any, lane: int, size_bytes: int) -> None:
        profile, draw = self.profile, self._random.random
        if profile.loss_probability and draw() < profile.loss_probability:
            self.counts["lost"] += 1
            return
        copies = 1
        if profile.duplicate_probability and draw() < profile.duplicate_probability:
            self.counts["duplicated"] += 1
            copies = 2
        for _ in range(copies):
            self._schedule_delivery(source, target, message, lane, size_bytes)

    def _schedule_delivery(self, source: int, target: int, message: Any, lane: int, size_bytes: int) -> None:
        profile, now_us = self.profile, self._world.now_us
        draw, shortest_us = self._random.random, profile.delay_us_min
        delay_us = shortest_us + int(draw() * (profile.delay_us_max - shortest_us + 1))
        if profile.slow_probability and draw() < profile.slow_probability:
            self.counts["slow"] += 1
            delay_us = self._random.randint(delay_us, profile.slow_us_max)
        if self._drag_us:
            delay_us += self._drag_us.get((source, target), 0)
        arrival_us = self._carried_us(source, target, lane, size_bytes) + delay_us
        if profile.reorder_probability and draw() < profile.reorder_probability:
            self.counts["reordered"] += 1
        else:
            arrival_us = max(arrival_us, self._last_arrival_us.get((source, target, lane), 0))
            self._last_arrival_us[source, target, lane] = arrival_us
        epoch = self._epoch[_pair(source, target)]
        self._world.after(arrival_us - now_us, lambda: self._deliver(source, target, epoch, message))

    def _carried_us(self, source: int, target: int, lane: int, size_bytes: int) -> int:
        """Return the time when the whole message has left: now, unless the link is thin."""
        now_us, profile = self._world.now_us, self.profile
        if not profile.is_thin:
            return now_us
        self.bytes_by_lane[lane] += size_bytes
        begins_us = max(now_us, self._carried_until_us.get((source, target), 0))
        until_us = begins_us + size_bytes * MICROSECONDS_PER_SECOND // profile.bytes_per_s
        self._carried_until_us[source, target] = until_us
        return until_us

    def _deliver(self, source: int, target: int, epoch: int, message: Any) -> None:
        if self._epoch.get(_pair(source, target)) != epoch:
            return
        self._endpoints[target].receive(source, message)

    def _disconnect(self, one: int, other: int) -> None:
        if self._epoch.pop(_pair(one, other), None) is None:
            return
        self._held.pop((one, other), None)
        self._held.pop((other, one), None)
        for node_id, peer in ((one, other), (other, one)):
            endpoint = self._endpoints.get(node_id)
            if endpoint is not None:
                endpoint.link_down(peer)

    def _reconnect_later(self, one: int, other: int, delay_us: int) -> None:
        self._world.after(delay_us, lambda: self._connect(one, other))

    def _connect(self, one: int, other: int) -> None:
        pair = _pair(one, other)
        if pair in self._epoch or pair in self._blocked or not {one, other} <= self._endpoints.keys():
            return
        self._epochs_used += 1
        self._epoch[pair] = self._epochs_used
        for pair_of_ends in ((one, other), (other, one)):
            self._carried_until_us.pop(pair_of_ends, None)
            for lane in (0, 1):
                self._last_arrival_us.pop((*pair_of_ends, lane), None)
        self._world.trace("link", one, other)
        for node_id, peer in ((one, other), (other, one)):
            if pair in self._epoch:  # the first end may have failed on being told
                self._endpoints[node_id].link_up(peer)


def incarnation(node_id: int, wipes: int) -> str:
    """Return the incarnation that a node tells its peers after its disk was replaced `wipes` times."""
    return f"{node_id}.{wipes}"


def _pair(one: int, other: int) -> tuple[int, int]:
    return (one, other) if one < other else (other, one)
