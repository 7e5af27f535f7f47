"""Polls every node all the time: who leads, in which term, and whether equal prefixes have equal state."""

import asyncio
from collections import OrderedDict
from typing import Any, Final

from tests.chaos.cluster import ChaosCluster
from tests.chaos.violations import Kind

POLL_INTERVAL_S: Final = 0.2
HASHES_KEPT: Final = 20_000


class NodeView:
    """The state that a node last reported."""

    def __init__(self) -> None:
        self.state = "starting"
        self.term = 0
        self.applied_index = 0
        self.commit_index = 0
        self.starts = 0
        self.disks_lost = 0


class Observer:
    """Polls the nodes and checks invariants at every poll: one leader per term; a node's term never goes back, also
    over restarts, unless its disk was lost; nodes that applied the same index have the same state hash.
    """

    def __init__(self, cluster: ChaosCluster) -> None:
        self.views = {node_id: NodeView() for node_id in cluster.nodes}
        self.leaders: dict[int, int] = {}  # term -> node
        self._cluster = cluster
        self._hashes: OrderedDict[int, str] = OrderedDict()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.gather(*(self.poll(node_id) for node_id in self.views))
            await asyncio.sleep(POLL_INTERVAL_S)

    async def poll(self, node_id: int) -> dict[str, Any] | None:
        """Ask one node, judge its answer, return it."""
        node, view = self._cluster.nodes[node_id], self.views[node_id]
        if not node.running() or node.paused:
            view.state = "paused" if node.running() else "down"
            return None
        starts, disks_lost = node.starts, node.disks_lost
        answer: dict[str, Any] | None = await self._cluster.ask(node_id)
        if answer is None:
            view.state = "unreachable"
            return None
        self.judge(node_id, answer, starts, disks_lost)
        return answer

    def judge(self, node_id: int, answer: dict[str, Any], starts: int, disks_lost: int = 0) -> None:
        """Judge an answer of the node from its start number `starts`, after it had lost `disks_lost` disks."""
        view = self.views[node_id]
        term = answer["term"]
        # A late answer of an earlier start is no evidence; a new disk knows no term.
        if term < view.term and starts >= view.starts and disks_lost == view.disks_lost:
            self._cluster.violations.add(
                Kind.TERM_WENT_BACK, f"node {node_id} was in term {view.term} and is in term {term}"
            )
        view.state, view.term, view.starts, view.disks_lost = answer["role"], term, starts, disks_lost
        view.applied_index, view.commit_index = answer["applied_index"], answer["commit_index"]
        if answer["role"] == "leader":
            self._saw_leader(term, node_id)
        self._saw_hash(node_id, answer["hash_index"], answer["state_hash"])

    def _saw_leader(self, term: int, node_id: int) -> None:
        if term not in self.leaders:
            self._cluster.history.write("leader", term=term, node=node_id)
        known = self.leaders.setdefault(term, node_id)
        if known != node_id:
            self._cluster.violations.add(Kind.TWO_LEADERS, f"nodes {known} and {node_id} both led term {term}")
        if term >= max(self.leaders):
            self._cluster.leader_id = node_id

    def _saw_hash(self, node_id: int, index: int, state_hash: str) -> None:
        known = self._hashes.setdefault(index, state_hash)
        if known != state_hash:
            self._cluster.violations.add(
                Kind.STATE_DIFFERS, f"node {node_id} has another state than a peer after entry {index}"
            )
        if len(self._hashes) > HASHES_KEPT:
            self._hashes.popitem(last=False)
