"""The node itself: state of the cluster, probes and metrics."""

from collections.abc import Iterator
from typing import Final, Literal, cast

from aiohttp import web
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster import VERSION
from cluster.alarms import Alarms, AlarmView, Condition
from cluster.api import json_response
from cluster.config import Address
from cluster.core import Core
from cluster.log_front import LogFront
from cluster.loop_watch import STALL_S
from cluster.metrics import CONTENT_TYPE, gauge
from cluster.problems import Problem
from cluster.responses import HealthView, LogHolderView, Response, Role
from cluster.routes import TEXT, Route, json_of
from cluster.snapshot_metrics import snapshot_metrics
from cluster.state_gauges import state_gauges

BEHIND_ENTRIES_MAX: Final = 10_000
"""A node that has more committed entries than this to apply shows a past that is too long ago."""


class NodeView(Response, kw_only=True, frozen=True):
    """A node of the cluster; a `learner` is replicated to and does not vote."""

    node_id: int
    url: str
    connected: bool
    match_index: int
    snapshot_percent: int | None
    peer_address: str
    membership: Literal["voter", "learner"]


class ClusterView(Response, kw_only=True, frozen=True):
    """`state_hash` is that of all entries up to `hash_index`: equal on every node that has applied as far.
    `known_committed_index`: the last entry that a leader called committed, also where this node does not have it yet.
    `removed`: others say that this node is not in the cluster any more. `log_holders` are what this node's log is kept
    for, the one that holds most first.
    """

    cluster_id: str
    node_id: int
    role: Role
    term: int
    leader_id: int | None
    leader_url: str | None
    commit_index: int
    applied_index: int
    durable_index: int
    known_committed_index: int
    state_hash: str
    hash_index: int
    configuration_index: int
    removed: bool
    nodes: list[NodeView]
    log_holders: tuple[LogHolderView, ...]
    alarms: list[AlarmView]
    version: str


class ClusterApi:
    """/v1/cluster, /healthz, /readyz, /metrics"""

    def __init__(self, core: Core, alarms: Alarms, log_front: LogFront) -> None:
        self._core = core
        self._alarms = alarms
        self._log_front = log_front
        self._caught_up = False
        core.metrics.add_gauges(self._gauges)
        alarms.add(self._conditions)

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/cluster", self.cluster, "The cluster as this node sees it", {200: json_of(ClusterView)}),
            Route("GET", "/healthz", self.healthz, "Whether the process serves", {200: json_of(HealthView)}),
            Route(
                "GET",
                "/readyz",
                self.readyz,
                "Whether a leader is known and this node has applied what was committed at its start",
                {200: json_of(HealthView)},
                errors=("not_ready",),
            ),
            Route("GET", "/metrics", self.metrics, "Metrics for Prometheus", {200: {TEXT: None}}),
        ]

    async def cluster(self, request: web.Request) -> web.Response:
        core, raft = self._core, self._core.raft
        peers = raft.peers
        nodes = []
        for member in raft.configuration.members:
            node_id = member.node_id
            mine = node_id == raft.node_id
            nodes.append(
                NodeView(
                    node_id=node_id,
                    url=core.url_of(node_id) or "",
                    peer_address=str(Address(member.host, member.port)),
                    membership="voter" if member.voter else "learner",
                    connected=mine or peers[node_id].connected,
                    match_index=raft.durable_index if mine else peers[node_id].match_index,
                    snapshot_percent=raft.receiving_percent if mine else peers[node_id].snapshot_percent,
                )
            )
        return json_response(
            ClusterView(
                cluster_id=core.config.cluster_id,
                node_id=raft.node_id,
                role=cast(Role, raft.role),
                term=raft.term,
                leader_id=raft.leader_id,
                leader_url=core.leader_url(),
                commit_index=raft.commit_index,
                applied_index=raft.applied_index,
                durable_index=raft.durable_index,
                known_committed_index=raft.known_committed_index,
                state_hash=core.state.state_hash,
                hash_index=core.state.applied_index,
                configuration_index=raft.configuration_index,
                removed=raft.removed_by is not None,
                nodes=nodes,
                log_holders=self._log_front.holders,
                alarms=self._alarms.active,
                version=VERSION,
            )
        )

    async def healthz(self, request: web.Request) -> web.Response:
        return json_response(HealthView(status="ok"))

    async def readyz(self, request: web.Request) -> web.Response:
        reason = self.not_ready_reason()
        if reason is not None:
            raise Problem("not_ready", reason)
        return json_response(HealthView(status="ok"))

    def not_ready_reason(self) -> str | None:
        """Why this node should not be sent requests, or None."""
        core, raft = self._core, self._core.raft
        if raft.removed_by is not None:
            return f"node {raft.removed_by} says that this node was removed from the cluster; stop it"
        if raft.receiving_percent is not None:
            return f"this node is being sent a snapshot: {raft.receiving_percent} %"
        if raft.is_catching_up:
            return f"the log ends at entry {raft.durable_index}, the snapshot at {raft.applied_index}"
        if raft.leader_id is None:
            if not raft.configuration.members:
                return "waiting to be added to the cluster: keelmq cluster add-node"
            return "no leader is known"
        # An applied entry of this term was committed by this term's leader, and everything older with it.
        if core.state.applied_term != raft.term and (raft.role == "leader" or not self._caught_up):
            return f"nothing of term {raft.term} is applied yet"
        if not self._caught_up:
            if raft.applied_index < raft.commit_index:
                return f"applied {raft.applied_index} of {raft.commit_index} entries"
            self._caught_up = True
        if raft.commit_index - raft.applied_index > BEHIND_ENTRIES_MAX:
            return f"applied {raft.applied_index} of {raft.commit_index} committed entries"
        if core.loop_delay_s >= STALL_S:
            return f"the event loop is late: it stood for {core.loop_delay_s:.1f} s until a moment ago"
        return None

    def _conditions(self) -> Iterator[Condition]:
        """For the alarms of the node."""
        raft = self._core.raft
        if raft.lacks_vote:
            yield Condition(
                "disk_is_new",
                "critical",
                "this node's disk is new to the cluster, or was put back to an earlier state: it neither votes nor "
                "counts until a leader has filled it. If no leader is known, start the other nodes",
            )
        if raft.waits_for is not None:
            term, index = raft.waits_for
            yield Condition(
                "committed_entry_missing",
                "critical",
                f"entry {index} of term {term} is committed, and no node that answers has it: there is no leader until "
                "one returns that does. Start the nodes that are down, with their own disks. If those are lost for "
                "good, docs/reliability.md says how to go on without the entries",
            )

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._core.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _gauges(self) -> Iterator[Metric]:
        core, raft = self._core, self._core.raft
        yield gauge("keelmq_raft_term", "Current term", raft.term)
        yield gauge("keelmq_raft_is_leader", "1 while this node leads", raft.role == "leader")
        yield gauge("keelmq_raft_has_leader", "1 while a leader is known", raft.leader_id is not None)
        yield gauge("keelmq_raft_commit_index", "Highest index known committed", raft.commit_index)
        yield gauge("keelmq_raft_applied_index", "Highest index applied", raft.applied_index)
        yield gauge("keelmq_raft_durable_index", "Highest index fsynced here", raft.durable_index)
        yield gauge("keelmq_in_flight_bytes", "Bytes of writes waiting for their commit", raft.in_flight_bytes)
        yield gauge("keelmq_waiting_pulls", "Long polls that wait for messages", len(core.waiters))
        yield gauge("keelmq_disk_free_bytes", "Free space where the log is, up to a second ago", core.disk_free_bytes)
        yield gauge("keelmq_disk_is_low", "1 while writes are refused for want of space", core.disk_is_low)
        connected = GaugeMetricFamily("keelmq_peer_connected", "1 while the peer is connected", labels=["node_id"])
        for node_id, peer in raft.peers.items():
            connected.add_metric([str(node_id)], peer.connected)
        yield connected
        yield from snapshot_metrics(raft)
        yield from state_gauges(core)
