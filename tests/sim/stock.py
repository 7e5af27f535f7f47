"""A cluster of stock PySyncObj 0.3.17 nodes on perfect disks and loss-free, in-order links.

Nothing here is hostile beyond what the library promises to survive: connections break, nodes crash and come back with
every byte they ever wrote. It exists to be found guilty; a simulation that finds nothing here proves nothing elsewhere.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pysyncobj.syncobj as library
from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf
from pysyncobj.journal import Journal
from pysyncobj.transport import Transport

from .library import SimNode
from .network import LinkProfile, Network, Wire
from .raft_safety import Safety
from .world import World

TICK_US = 20_000
_REGULAR = b"\x00"  # the library's mark of an ordinary command
_FOLLOWER, _CANDIDATE, _LEADER = 0, 1, 2

Entry = tuple[bytes, int, int]  # (command, index, term), as the library stores them


class PerfectJournal(Journal):  # type: ignore[misc]  # untyped library
    """A journal in which every write is durable at once. It belongs to the node's disk: after a crash, the next start
    of the node gets it.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.on_append: Callable[[Entry, int], None] = lambda entry, previous_term: None
        self.on_truncate: Callable[[int], None] = lambda first_index: None
        self._term = 0
        self._voted_for: int | None = None

    def add(self, command: bytes, idx: int, term: int) -> None:
        entry = (command, idx, term)
        self.on_append(entry, self.entries[-1][2] if self.entries else 0)
        self.entries.append(entry)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803  # the library's names
        if entryFrom < len(self.entries):
            self.on_truncate(self.entries[entryFrom][1])
        del self.entries[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803
        del self.entries[:entryTo]

    def clear(self) -> None:
        self.entries.clear()

    def __getitem__(self, item: Any) -> Any:
        return self.entries[item]

    def __len__(self) -> int:
        return len(self.entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        pass  # as the library's own memory journal: the commit index is learnt again after a restart

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        return 1

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N802, N803
        self._term, self._voted_for = term, votedForNodeId

    def getCurrentTerm(self) -> int:  # noqa: N802
        return self._term

    def getVotedForNodeId(self) -> int | None:  # noqa: N802
        return self._voted_for

    def _destroy(self) -> None:
        pass


class SimTransport(Transport):  # type: ignore[misc]  # untyped library
    """The simulated network behind the library's transport interface."""

    def __init__(self, network: Wire, node_id: int) -> None:
        super().__init__(None, None, None)
        self._network = network
        self._node_id = node_id

    def send(self, node: SimNode, message: Any) -> bool:
        return self._network.send(self._node_id, int(node.id), message)

    def destroy(self) -> None:
        pass


class StockSyncObj(SyncObj):  # type: ignore[misc]  # untyped library
    """The stock node with all handlers of the library. Only the body of apply is replaced, to be told of it."""

    def __init__(self, on_apply: Callable[[bytes], Any], *arguments: Any, **keywords: Any) -> None:
        self._on_apply = on_apply  # before the library looks which attributes are its own: the rest goes into dumps
        super().__init__(*arguments, **keywords)

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:  # noqa: N802
        return self._on_apply(command)


class StockReplica:
    """One stock node: its disk, and its process while it is up."""

    def __init__(self, world: World, network: Wire, node_id: int, conf: dict[str, Any], safety: Safety) -> None:
        self.node_id = node_id
        self.journal = PerfectJournal()
        self.applied: list[tuple[int, int, bytes]] = []  # since the last start
        self.apply_hook: Callable[[bytes], Any] = lambda command: None
        self._world, self._network, self._conf, self._safety = world, network, conf, safety
        self._peers = {peer: SimNode(peer) for peer in network.node_ids if peer != node_id}
        self._node: StockSyncObj | None = None
        self._transport: SimTransport | None = None
        self._commit_seen = 0
        self._incarnation = 0
        self.journal.on_append = self._on_append
        self.journal.on_truncate = self._on_truncate

    incarnation = ""

    @property
    def up(self) -> bool:
        return self._node is not None

    @property
    def node(self) -> StockSyncObj:
        assert self._node is not None, f"node {self.node_id} is down"
        return self._node

    @property
    def is_leader(self) -> bool:
        return self.up and bool(self.node._isLeader())

    @property
    def term(self) -> int:
        return int(self.node.raftCurrentTerm)

    @property
    def commit_index(self) -> int:
        return int(self.node.raftCommitIndex)

    def start(self) -> None:
        """Start the process on the journal as it is, and tick it from now on."""
        self._transport = SimTransport(self._network, self.node_id)
        self.applied, self._commit_seen = [], 1
        conf = SyncObjConf(autoTick=False, onStateChanged=self._on_state, **self._conf)
        peers = list(self._peers.values())
        with mock.patch.object(library, "createJournal", return_value=self.journal):
            self._node = StockSyncObj(self._on_apply, SimNode(self.node_id), peers, conf, transport=self._transport)
        self._incarnation += 1
        self._network.attach(self.node_id, self)
        self._tick_later(self._incarnation)

    def crash(self) -> None:
        """Kill the process as kill -9 does: memory is gone, the journal stays."""
        self._node = self._transport = None
        self._network.detach(self.node_id)

    def propose(self, payload: bytes, on_done: Callable[[int], None]) -> None:
        """Hand a command to the node; `on_done` gets the library's FAIL_REASON."""
        self.node._applyCommand(_REGULAR + payload, lambda result, reason: on_done(reason))
        self.tick()

    def tick(self) -> None:
        self.node.doTick(0.0)
        self._observe_commit()

    def receive(self, source: int, message: Any) -> None:
        assert self._transport is not None
        self._transport._onMessageReceived(self._peers[source], message)
        self.tick()

    def link_up(self, peer: int) -> None:
        if self._transport is not None:
            self._transport._onNodeConnected(self._peers[peer])

    def link_down(self, peer: int) -> None:
        if self._transport is not None:
            self._transport._onNodeDisconnected(self._peers[peer])

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index` of the log on disk; None past its end or before its compacted
        beginning.
        """
        at = index - self.journal.entries[0][1]
        return self.journal.entries[at][2] if 0 <= at < len(self.journal.entries) else None

    def _tick_later(self, incarnation: int) -> None:
        def tick() -> None:
            if self._node is not None and self._incarnation == incarnation:
                self.tick()
                self._tick_later(incarnation)

        self._world.after(TICK_US, tick)

    def _on_state(self, old: int, new: int) -> None:
        self._world.trace("state", self.node_id, new, self.term)
        if new == _LEADER:
            self._safety.election.on_leader(self.node_id, self.term)
            self._safety.committed.on_leader(self.node_id, self.term, self.term_at)

    def _on_append(self, entry: Entry, previous_term: int) -> None:
        self._world.trace("append", self.node_id, entry[1], entry[2])
        self._safety.matching.on_append(self.node_id, entry[1], entry[2], previous_term, entry[0])

    def _on_truncate(self, first_index: int) -> None:
        self._world.trace("truncate", self.node_id, first_index)

    def _observe_commit(self) -> None:
        while self._commit_seen < self.commit_index:
            self._commit_seen += 1
            term = self.term_at(self._commit_seen)
            if term is not None:
                self._safety.committed.on_commit(self.node_id, self._commit_seen, term, self.term)

    def _on_apply(self, command: bytes) -> Any:
        index = int(self.node.raftLastApplied) + 1
        term = self.term_at(index)
        assert term is not None
        self._world.trace("apply", self.node_id, index, term)
        self._safety.machine.on_apply(self.node_id, index, term, command)
        self.applied.append((index, term, command))
        return self.apply_hook(command)


class StockCluster:
    """Stock nodes on one simulated network, and the writes acknowledged to their clients."""

    def __init__(self, world: World, node_count: int, conf: dict[str, Any], profile: LinkProfile) -> None:
        self.world = world
        self.network = Network(world, range(1, node_count + 1), profile)
        self.safety = Safety()
        self.replicas = {
            node_id: StockReplica(world, self.network, node_id, conf, self.safety) for node_id in self.network.node_ids
        }
        self.acknowledged: list[bytes] = []
        self.on_acknowledged: Callable[[StockReplica, bytes], None] = lambda replica, payload: None

    def start(self) -> None:
        for replica in self.replicas.values():
            replica.start()

    @property
    def leader(self) -> StockReplica | None:
        """Return the leader of the highest term among the running nodes."""
        leaders = [replica for replica in self.replicas.values() if replica.is_leader]
        return max(leaders, key=lambda replica: replica.term, default=None)

    def propose(self, replica: StockReplica, payload: bytes) -> None:
        """Let a client write to the node that it holds for the leader. Success is remembered as acknowledged."""

        def done(reason: int) -> None:
            if reason == FAIL_REASON.SUCCESS:
                self.world.trace("ack", payload)
                self.acknowledged.append(payload)
                self.on_acknowledged(replica, payload)

        replica.propose(payload, done)

    @property
    def converged(self) -> bool:
        """Return whether all nodes are up and have applied the whole log of a leader."""
        leader = self.leader
        if leader is None or not all(replica.up for replica in self.replicas.values()):
            return False
        last_index = len(leader.journal.entries)
        return all(replica.node.raftLastApplied == last_index for replica in self.replicas.values())
