"""Shows the state of the cluster as this node sees it, and answers probes and scrapes of metrics."""

from collections.abc import Iterator
from typing import Literal, cast

import msgspec
from aiohttp import web
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from cluster import COMMIT, VERSION
from cluster.core.core import Core
from cluster.health.alarms import Alarms, AlarmView, Condition
from cluster.health.index_rebuild import IndexRebuild, IndexRebuildView
from cluster.health.log_front import LogFront, LogHolderView
from cluster.health.readiness import Readiness
from cluster.http.administration import is_administration
from cluster.http.app import json_response
from cluster.http.requests import Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import TEXT, Route, json_of
from cluster.metrics import CONTENT_TYPE, gauge
from cluster.operations.disk_gauges import disk_gauges
from cluster.operations.edge_metrics import edge_metrics
from cluster.operations.feature_api import build_view
from cluster.operations.log_readers import LogReaders, LogReaderView
from cluster.operations.raft_gauges import raft_gauges
from cluster.operations.replica_api import ReplicaView, replica_view
from cluster.operations.snapshot_metrics import snapshot_metrics
from cluster.operations.state_gauges import StateGauges
from cluster.operations.topic_gauges import TopicGauges
from cluster.problems import Problem
from cluster.process.addresses import Address
from cluster.security import permissions
from cluster.security.access import CLUSTER_DESCRIBED, PUBLIC, SIGNED_IN


class ReadyQuery(Request, kw_only=True, frozen=True):
    purpose: Literal["reads", "writes"] = msgspec.field(default="reads", name="for")


Role = Literal["leader", "follower", "candidate"]


class HealthView(Response, kw_only=True, frozen=True):
    status: Literal["ok"]


class NodeView(Response, kw_only=True, frozen=True):
    """A node of the cluster. A `learner` receives the log and does not vote. `connected` means that this node has heard
    it within two election timeouts. The fields about its disk are reported by the node itself; null while unknown.
    """

    node_id: int
    url: str
    connected: bool
    drained: bool
    """True while an operator wants other nodes to lead; false where this is not known."""
    match_index: int
    snapshot_percent: int | None
    peer_address: str
    membership: Literal["voter", "learner"]
    disk_free_bytes: int | None
    disk_is_low: bool | None
    sync_ms: int | None
    version: str | None
    """KeelMQ version of the node; null while it is not connected, as are the feature levels that it knows."""
    commit: str | None
    """Commit that the node's build was made from; also null where it names none: a build of a tree, or one of 0.2.0."""
    feature_level_min: int | None
    feature_level_max: int | None


class CountersView(Response, kw_only=True, frozen=True):
    """Counters of this node since it started. A page of rates costs no scrape of all metrics. `appended_messages` and
    `acknowledged_messages` are of the whole cluster, as this node has applied its log: they grow alike on all nodes,
    and begin anew when the node is filled by a snapshot.
    """

    node_id: int
    produced_messages: int
    produced_bytes: int
    pulled_messages: int
    pulled_bytes: int
    appended_messages: int
    acknowledged_messages: int


class ClusterView(Response, kw_only=True, frozen=True):
    """The cluster as this node sees it. `state_hash` covers all entries up to `hash_index`, and is equal on every node
    that has applied the same entries. `known_committed_index` is the last entry that a leader called committed, even if
    this node does not have it yet. `removed` is true when other nodes report that this node is no longer in the
    cluster. `log_holders` lists the objects for which this node's log is kept, the largest holder first, `log_readers`
    the queries that read it here, for principals who may describe the cluster. `waits_for`
    says why nobody leads: silent voters, voters without a vote, and what holds this node back; null otherwise.
    `index_rebuild` is the progress while the index is rebuilt from the log; null otherwise. `admin_url` is the URL of
    this node's listener for administration; null without one, and without the permission to describe the cluster.
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
    waits_for: str | None
    index_rebuild: IndexRebuildView | None
    replica: ReplicaView
    nodes: list[NodeView]
    log_holders: tuple[LogHolderView, ...]
    log_readers: list[LogReaderView]
    alarms: list[AlarmView]
    version: str
    commit: str | None
    """Commit that this node's build was made from; null for one of a tree."""
    feature_level: int
    """Feature level in force."""
    admin_url: str | None


class ClusterApi:
    """Handles /v1/cluster, /healthz, /readyz and /metrics."""

    def __init__(
        self,
        core: Core,
        alarms: Alarms,
        log_front: LogFront,
        readiness: Readiness,
        index_rebuild: IndexRebuild,
        log_readers: LogReaders,
    ) -> None:
        self._core = core
        self._alarms = alarms
        self._log_front = log_front
        self._readiness = readiness
        self._index_rebuild = index_rebuild
        self._log_readers = log_readers
        self._state_gauges = StateGauges(core)
        self._topic_gauges = TopicGauges(core)
        core.metrics.add_gauges(self._gauges)
        alarms.add(self._conditions)

    def start(self) -> None:
        self._topic_gauges.start()

    async def stop(self) -> None:
        await self._topic_gauges.stop()

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/cluster",
                self.cluster,
                "Show the state of the cluster",
                {200: json_of(ClusterView)},
                access=SIGNED_IN,
            ),
            Route(
                "GET",
                "/v1/cluster/counters",
                self.counters,
                "Show how many messages this node took and handed out, and the cluster stored and acknowledged",
                {200: json_of(CountersView)},
                access=CLUSTER_DESCRIBED,
            ),
            Route(
                "GET",
                "/healthz",
                self.healthz,
                "Tell that the process serves",
                {200: json_of(HealthView)},
                access=PUBLIC,
            ),
            Route(
                "GET",
                "/readyz",
                self.readyz,
                "Tell whether this node should get requests; with `for=writes`, whether it would accept a write now",
                {200: json_of(HealthView)},
                query=ReadyQuery,
                errors=("not_ready",),
                access=PUBLIC,
            ),
            Route(
                "GET",
                "/metrics",
                self.metrics,
                "Show metrics for Prometheus",
                {200: {TEXT: None}},
                access=CLUSTER_DESCRIBED,
            ),
        ]

    async def cluster(self, request: web.Request) -> web.Response:
        sees_all = self._core.access.may(request, "describe", permissions.CLUSTER)
        core, raft = self._core, self._core.raft
        peers, disks = raft.peers, raft.disks.known()
        nodes, leader_url = [], core.leader_url()
        if is_administration(request) and raft.leader_id == raft.node_id:
            leader_url = core.config.advertised_admin_url()  # who asks here may not reach the other listener
        addresses = raft.membership.addresses
        for member in raft.configuration.members:
            node_id = member.node_id
            at = addresses[node_id]
            mine, disk = node_id == raft.node_id, disks.get(node_id)
            build = build_view(core, node_id)
            nodes.append(
                NodeView(
                    node_id=node_id,
                    url=core.url_of(node_id) or "",
                    peer_address=str(Address(at.host, at.port)),
                    membership="voter" if member.voter else "learner",
                    connected=mine or peers[node_id].connected,
                    drained=raft.vital_signs.is_drained(node_id),
                    match_index=raft.durable_index if mine else peers[node_id].match_index,
                    snapshot_percent=raft.receiving_percent if mine else peers[node_id].snapshot_percent,
                    disk_free_bytes=None if disk is None else disk.free_bytes,
                    disk_is_low=None if disk is None else disk.is_low,
                    sync_ms=None if disk is None else disk.sync_ms,
                    version=build.version,
                    commit=build.commit,
                    feature_level_min=build.feature_level_min,
                    feature_level_max=build.feature_level_max,
                )
            )
        return json_response(
            ClusterView(
                cluster_id=core.config.cluster_id,
                node_id=raft.node_id,
                role=cast(Role, raft.role),
                term=raft.term,
                leader_id=raft.leader_id,
                leader_url=leader_url,
                commit_index=raft.commit_index,
                applied_index=raft.applied_index,
                durable_index=raft.durable_index,
                known_committed_index=raft.known_committed_index,
                state_hash=core.state.state_hash,
                hash_index=core.state.applied_index,
                configuration_index=raft.configuration_index,
                removed=raft.removed_by is not None,
                waits_for=raft.vacancy.waits_for(),
                index_rebuild=self._index_rebuild.view,
                replica=replica_view(core),
                nodes=nodes,
                log_holders=self._log_front.holders if sees_all else (),
                log_readers=self._log_readers.views(core.state.applied_index) if sees_all else [],
                alarms=self._alarms.active if sees_all else [_without_names(each) for each in self._alarms.active],
                version=VERSION,
                commit=COMMIT or None,
                feature_level=raft.feature_levels.in_force,
                admin_url=core.config.advertised_admin_url() if sees_all else None,
            )
        )

    async def counters(self, request: web.Request) -> web.Response:
        metrics, state = self._core.metrics, self._core.state
        return json_response(
            CountersView(
                node_id=self._core.raft.node_id,
                produced_messages=metrics.produced_messages.value,
                produced_bytes=metrics.produced_bytes.value,
                pulled_messages=metrics.pulled_messages.value,
                pulled_bytes=metrics.pulled_bytes.value,
                appended_messages=state.appended_messages,
                acknowledged_messages=state.acknowledged_messages,
            )
        )

    async def healthz(self, request: web.Request) -> web.Response:
        return json_response(HealthView(status="ok"))

    async def readyz(self, request: web.Request) -> web.Response:
        query = parse_query(ReadyQuery, request.query)
        readiness = self._readiness
        reason = readiness.reason_for_writes() if query.purpose == "writes" else readiness.reason()
        if reason is not None:
            raise Problem("not_ready", reason)
        return json_response(HealthView(status="ok"))

    def _conditions(self) -> Iterator[Condition]:
        """Yield alarms for a new disk, and for a committed entry that no answering node has."""
        raft = self._core.raft
        if raft.lacks_vote and not raft.replicas.differs:
            nobody_leads = raft.vacancy.waits_for() is not None
            yield Condition(
                "disk_is_new",
                "critical",
                "this node's disk is new to the cluster, or was put back to an earlier state: the node neither votes "
                "nor counts until a leader has filled the disk"
                + (f". No leader is known: {raft.vacancy.next_step()}" if nobody_leads else ""),
            )
        if raft.waits_for is not None:
            term, index = raft.waits_for
            yield Condition(
                "committed_entry_missing",
                "critical",
                f"entry {index} of term {term} is committed, and no node that answers has it: there is no leader until "
                "a node with the entry returns. Start the nodes that are down, with their own disks. If the disks are "
                "lost for good, docs/reliability.md says how to go on without the entries",
            )

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=await self._core.metrics.scrape(), headers={"Content-Type": CONTENT_TYPE})

    def _gauges(self) -> Iterator[Metric | None]:
        core, raft = self._core, self._core.raft
        yield from raft_gauges(core)
        yield gauge("keelmq_in_flight_bytes", "Bytes of writes waiting for their commit", raft.in_flight_bytes)
        yield gauge("keelmq_waiting_pulls", "Long polls that wait for messages", len(core.waiters))
        yield from disk_gauges(core)
        yield from snapshot_metrics(raft)
        yield from edge_metrics(core)
        yield from self._state_gauges.metrics()
        yield from self._topic_gauges.metrics()
        summed = GaugeMetricFamily(
            "keelmq_series_summed",
            "Topics, groups, or queues of groups without a series of their own, which are summed in `(others)`",
            labels=["kind"],
        )
        for kind, count in (self._state_gauges.summed | self._topic_gauges.summed).items():
            summed.add_metric([kind], count)
        yield summed


def _without_names(alarm: AlarmView) -> AlarmView:
    """Return the alarm for a principal who may not describe the cluster: texts name topics, groups and transactions."""
    return msgspec.structs.replace(alarm, detail="", subject="")
