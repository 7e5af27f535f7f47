"""A test bench for hand-made interleavings: the scenario decides which message arrives when, and who ticks.

Links are first in, first out and lose nothing while a connection stands, disks are perfect; so whatever goes wrong here
goes wrong on a faultless machine. The same scenario runs stock and repaired nodes.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

from raft.election.stalls import Stalls

from .checkers.acknowledged_kept import check_acknowledged_kept
from .library import simulated_library
from .network import Endpoint
from .raft_safety import Safety
from .world import World

SECOND_US = 1_000_000
HEARTBEAT_US = 110_000
LEADER_FORGOTTEN_US = 1_200_000  # with timeouts of 1-2 s drawn in the middle: old leader given up, nobody stands yet
IMPATIENCE_US = 3 * SECOND_US  # longer than any election timeout


class Member(Endpoint, Protocol):
    """A node on the bench."""

    node_id: int
    skew_us: int

    @property
    def up(self) -> bool: ...
    @property
    def is_leader(self) -> bool: ...
    @property
    def term(self) -> int: ...
    @property
    def payloads(self) -> list[bytes]: ...
    @property
    def applied_payloads(self) -> list[bytes]: ...
    def start(self) -> None: ...
    def crash(self) -> None: ...
    def tick(self) -> None: ...
    def submit(self, payload: bytes, on_acknowledged: Callable[[], None]) -> None: ...
    def compact(self) -> None: ...


MakeMember = Callable[[World, "ManualNetwork", int, Safety], Member]


class ManualNetwork:
    """A network with one queue per directed pair; nothing moves by itself."""

    def __init__(self, node_ids: Iterable[int]) -> None:
        self._node_ids = tuple(node_ids)
        self.queues: dict[tuple[int, int], deque[Any]] = {}
        self._endpoints: dict[int, Endpoint] = {}
        self._apart: set[frozenset[int]] = set()

    @property
    def node_ids(self) -> Sequence[int]:
        return self._node_ids

    def attach(self, node_id: int, endpoint: Endpoint) -> None:
        self._endpoints[node_id] = endpoint
        for peer in self._node_ids:
            self._connect(node_id, peer)

    def detach(self, node_id: int) -> None:
        del self._endpoints[node_id]
        for peer in self._node_ids:
            self._disconnect(node_id, peer)

    def part(self, node_id: int, *peers: int) -> None:
        """End the connections of `node_id` to these peers; what was under way is lost."""
        for peer in peers:
            self._apart.add(frozenset((node_id, peer)))
            self._disconnect(node_id, peer)

    def join(self, node_id: int, *peers: int) -> None:
        for peer in peers:
            self._apart.discard(frozenset((node_id, peer)))
            self._connect(node_id, peer)

    def send(self, source: int, target: int, message: Any, lane: int = 0, size_bytes: int = 0) -> bool:
        queue = self.queues.get((source, target))
        if queue is None:
            return False
        queue.append(message)
        return True

    def deliver(self, source: int, target: int, count: int = 1, *, twice: bool = False) -> None:
        """Hand over the next messages of one link; fewer if there are fewer. With `twice`, the network duplicates
        them.
        """
        for _ in range(count):
            queue = self.queues.get((source, target))
            if not queue:
                return
            message = queue.popleft()
            for _ in range(1 + twice):
                self._endpoints[target].receive(source, message)

    def _connect(self, one: int, other: int) -> None:
        pair = frozenset((one, other))
        if one == other or pair in self._apart or (one, other) in self.queues or not pair <= self._endpoints.keys():
            return
        self.queues[one, other], self.queues[other, one] = deque(), deque()
        self._endpoints[one].link_up(other)
        self._endpoints[other].link_up(one)

    def _disconnect(self, one: int, other: int) -> None:
        if self.queues.pop((one, other), None) is None:
            return
        del self.queues[other, one]
        for node_id, peer in ((one, other), (other, one)):
            if node_id in self._endpoints:
                self._endpoints[node_id].link_down(peer)


@contextmanager
def bench_world() -> Iterator[World]:
    """Patch the library and draw every election timeout in the middle of its range, so that no node's patience is luck.
    Members only do what a scenario lets them do, and did not stand in between.
    """
    world = World(0)
    with (
        simulated_library(world, draw=lambda: 0.5),
        mock.patch.object(Stalls, "_has_stood_at", return_value=False),
    ):
        yield world


class Bench:
    """A cluster whose every step the scenario takes by hand."""

    def __init__(self, world: World, make_member: MakeMember, node_count: int) -> None:
        self.world = world
        self.network = ManualNetwork(range(1, node_count + 1))
        self.safety = Safety()
        self.members = {
            node_id: make_member(world, self.network, node_id, self.safety) for node_id in self.network.node_ids
        }
        self.acknowledged: list[bytes] = []
        for member in self.members.values():
            member.start()

    def __getitem__(self, node_id: int) -> Member:
        return self.members[node_id]

    def elect(self, candidate: int, *voters: int) -> None:
        """Let only the election timeout of `candidate` pass, and carry its and the voters' messages until it leads."""
        member = self.members[candidate]
        self.world.now_us += LEADER_FORGOTTEN_US
        member.skew_us += IMPATIENCE_US
        for _ in range(40):
            if member.is_leader:
                return
            member.tick()
            self.exchange(candidate, *voters)
            member.skew_us += HEARTBEAT_US
        raise AssertionError(f"node {candidate} does not win the votes of {voters}")

    def submit(self, node_id: int, *payloads: bytes) -> None:
        """Let clients write to that node, one entry each."""
        for payload in payloads:
            self.members[node_id].submit(payload, lambda payload=payload: self.acknowledged.append(payload))  # type: ignore[misc]

    def exchange(self, *node_ids: int, rounds: int = 6) -> None:
        """Deliver what these nodes have for each other, in order, for some rounds."""
        for _ in range(rounds):
            for source in node_ids:
                for target in node_ids:
                    if source != target:
                        self.network.deliver(source, target, len(self.network.queues.get((source, target), ())))

    def run(self, *node_ids: int, heartbeats: int = 10) -> None:
        """Let these nodes tick and exchange messages for `heartbeats` heartbeats. No election timeout passes."""
        for _ in range(heartbeats):
            self.world.now_us += HEARTBEAT_US
            for node_id in node_ids:
                if self.members[node_id].up:
                    self.members[node_id].tick()
            self.exchange(*node_ids, rounds=2)

    def check_acknowledged_in(self, node_id: int) -> None:
        """Check that everything acknowledged is in the log of the leader that the cluster ended with."""
        assert self.members[node_id].is_leader
        check_acknowledged_kept(self.acknowledged, self.members[node_id].payloads)
