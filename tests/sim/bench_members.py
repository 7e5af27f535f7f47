"""Stock and repaired nodes as members of the bench."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from pysyncobj import FAIL_REASON
from pysyncobj.node import Node as LibraryNode
from pysyncobj.transport import Transport

from raft.config import PeerAddress, RaftConfig
from raft.handlers import SafeRaft
from raft.journal import Journal
from raft.library import LEADER
from store.log.commit_log import CommitLog
from store.log.hard_state import HardState
from store.log.record import KIND_ENTRY, Entry
from store.log.watermarks import Watermarks
from tests.founded import founded
from tests.simdisk import SimDisk
from tests.single_lane import SingleLane

from .bench import ManualNetwork
from .raft_safety import Safety
from .stock import StockReplica
from .world import World

POISON = b"poison"
_STOCK_CONF = {
    "appendEntriesUseBatch": False,
    "raftMinTimeout": 1.0,  # as the repaired node's configuration
    "raftMaxTimeout": 2.0,
    "appendEntriesBatchSizeBytes": 12,  # about two of the short entries of a scenario
    "logCompactionMinEntries": 10**9,
    "logCompactionMinTime": 10**9,
    "logCompactionBatchSize": 64,
}


class Poisoned(Exception):
    """Raised by the state machine of a scenario at the entry meant for it."""


def refuse_poison(node_id: int, payload: bytes) -> None:
    if payload == POISON + b"%d" % node_id:
        raise Poisoned(payload.decode())


class StockMember(StockReplica):
    """A stock node, driven as the library drives itself: an exception of a tick is logged, and life goes on."""

    def __init__(self, world: World, network: ManualNetwork, node_id: int, safety: Safety) -> None:
        super().__init__(world, network, node_id, dict(_STOCK_CONF), safety)
        self.skew_us = 0
        self.apply_hook = lambda command: refuse_poison(node_id, command[1:])

    @property
    def payloads(self) -> list[bytes]:
        return [command[1:] for command, _, _ in self.journal.entries]

    @property
    def applied_payloads(self) -> list[bytes]:
        return [command[1:] for _, _, command in self.applied if command[:1] == b"\0"]

    def submit(self, payload: bytes, on_acknowledged: Callable[[], None]) -> None:
        self.propose(payload, lambda reason: on_acknowledged() if reason == FAIL_REASON.SUCCESS else None)

    def compact(self) -> None:
        self.node.forceLogCompaction()

    def receive(self, source: int, message: Any) -> None:
        with self._world.on_node_with_skew(self.skew_us):
            super().receive(source, message)

    def tick(self) -> None:
        with suppress(Poisoned, ConnectionError), self._world.on_node_with_skew(self.skew_us):
            super().tick()


class _BenchTransport(SingleLane, Transport):  # type: ignore[misc]  # untyped library
    def __init__(self, network: ManualNetwork, node_id: int) -> None:
        super().__init__(None, None, None)
        self._network = network
        self._node_id = node_id
        self.peers = {peer: LibraryNode(peer) for peer in network.node_ids if peer != node_id}

    def send(self, peer: int, message: Any) -> bool:
        return self._network.send(self._node_id, peer, message)

    def destroy(self) -> None:
        pass


class SafeMember:
    """A repaired node over a real commit log on a disk in memory. It stops at any exception, as its contract says."""

    incarnation = ""

    def __init__(self, world: World, network: ManualNetwork, node_id: int, safety: Safety) -> None:
        self.node_id = node_id
        self.skew_us = 0
        self._world = world
        self._network, self._safety = network, safety
        self._disk = SimDisk(Random(node_id))
        self._node: SafeRaft | None = None
        self._applied: list[Entry] = []
        self._term_led = 0

    @property
    def up(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> SafeRaft:
        assert self._node is not None, f"node {self.node_id} is down"
        return self._node

    @property
    def is_leader(self) -> bool:
        return self._node is not None and bool(self._node.state.role == LEADER)

    @property
    def term(self) -> int:
        return int(self.node.state.term)

    @property
    def payloads(self) -> list[bytes]:
        log = self.node.state.log
        return [entry.payload for entry in log.entries(log.first_index, 1 << 30)]

    @property
    def applied_payloads(self) -> list[bytes]:
        return [entry.payload for entry in self._applied if entry.kind == KIND_ENTRY]

    def start(self) -> None:
        log = CommitLog.open(self._disk, "/data/log", segment_bytes=64 * 1024, cache_bytes=1 << 20)
        self._transport = _BenchTransport(self._network, self.node_id)
        address = PeerAddress("bench", 1)
        config = RaftConfig(
            cluster_id="bench",
            node_id=self.node_id,
            listen=address,
            peers={peer: address for peer in self._transport.peers},
        )
        self._applied = []
        watermarks = Watermarks.open(self._disk, "/data")
        journal = Journal(log, HardState(self._disk, "/data/hard_state"), 0, watermarks)
        self._node = SafeRaft(config, journal, self._transport, self._apply, 0, founded(config))
        self._network.attach(self.node_id, self)

    def crash(self) -> None:
        self._node = None
        self._network.detach(self.node_id)

    def tick(self) -> None:
        self._drive(lambda: self.node.step())
        self._drive(lambda: self.node.step())  # what the sync after the first has made possible

    def receive(self, source: int, message: Any) -> None:
        self._drive(lambda: self._transport._onMessageReceived(self._transport.peers[source], message))
        self.tick()

    def link_up(self, peer: int) -> None:
        self._drive(lambda: self._transport._onNodeConnected(self._transport.peers[peer]))

    def link_down(self, peer: int) -> None:
        self._drive(lambda: self._transport._onNodeDisconnected(self._transport.peers[peer]))

    def submit(self, payload: bytes, on_acknowledged: Callable[[], None]) -> None:
        def on_outcome(entry: Entry | None, result: Any) -> None:
            if entry is not None:
                on_acknowledged()

        def propose() -> None:
            self.node.proposing.propose(payload, on_outcome)
            self.node.proposing.send()

        self._drive(propose)

    def compact(self) -> None:
        self.node.state.library.forceLogCompaction()

    def _drive(self, action: Callable[[], Any]) -> None:
        """Run the action as the owner of the handlers does around every event. The disk is fast here."""
        if self._node is None:
            return
        try:
            with self._world.on_node_with_skew(self.skew_us):
                action()
                self._node.state.log.sync()
                self._node.on_synced()
        except (Poisoned, ConnectionError):
            self.crash()
            return
        if self.is_leader and self.term > self._term_led:
            self._term_led = self.term
            self._safety.election.on_leader(self.node_id, self.term)

    def _apply(self, entries: Sequence[Entry], may_go_on: Callable[[], bool]) -> list[Any]:
        for entry in entries:
            refuse_poison(self.node_id, entry.payload)
            self._safety.machine.on_apply(self.node_id, entry.index, entry.term, entry.payload)
            self._applied.append(entry)
        return [None] * len(entries)
