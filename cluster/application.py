"""The services of a node, wired over one core: the HTTP application, check-backs, consumer groups, background work.

The module uses no sockets and no files: the broker serves the application on the network, and the simulation serves it
on a network of its own.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from aiohttp import web

from cluster.background.retention_service import RetentionService
from cluster.background.timer_service import TimerService
from cluster.console.console_api import ConsoleApi
from cluster.core.core import Core
from cluster.groups.api import GroupCoordinator
from cluster.groups.lags import LagLists
from cluster.groups.pause_api import PauseApi
from cluster.groups.pop_api import PopApi
from cluster.groups.retry_api import RetryApi
from cluster.health.address_guard import AddressGuard
from cluster.health.alarms import Alarms
from cluster.health.background_alarm import BackgroundAlarm
from cluster.health.block_alarm import BlockAlarm
from cluster.health.clock_guard import ClockGuard
from cluster.health.index_rebuild import IndexRebuild
from cluster.health.leadership_guard import LeadershipGuard
from cluster.health.peer_alarms import PeerAlarms
from cluster.health.readiness import Readiness
from cluster.health.security_alarm import SecurityAlarm
from cluster.http.app import make_application
from cluster.http.openapi import OpenApi
from cluster.http.routes import Route
from cluster.messages.caused_api import CausedApi
from cluster.messages.message_api import MessageApi
from cluster.messages.produce import ProduceApi, QueueChooser
from cluster.messages.pull import PullApi
from cluster.messages.purge_api import PurgeApi
from cluster.messages.scheduled_api import ScheduledApi
from cluster.messages.topic_api import TopicApi
from cluster.operations.audit_api import AuditApi
from cluster.operations.backup_api import BackupApi
from cluster.operations.client_api import ClientApi
from cluster.operations.cluster_api import ClusterApi
from cluster.operations.drain_api import DrainApi
from cluster.operations.feature_api import FeatureApi
from cluster.operations.join_api import JoinApi
from cluster.operations.log_api import LogApi
from cluster.operations.log_readers import LogReaders
from cluster.operations.member_api import MemberApi
from cluster.operations.node_api import LogLevelApi, NodeConfigApi
from cluster.operations.quota_api import QuotaApi
from cluster.operations.replica_api import ReplicaApi
from cluster.operations.settings_api import SettingsApi
from cluster.operations.user_api import UserApi
from cluster.transactions.api import TransactionApi
from cluster.transactions.batch_api import TransactionBatchApi
from cluster.transactions.check_api import CheckApi
from cluster.transactions.webhooks import Webhooks

HTTP_SHUTDOWN_TIMEOUT_S: Final = 2.0
"""Seconds that requests under way may still take once the node has handed over leadership."""


class Service(Protocol):
    """A part of a node with background work."""

    def start(self) -> None: ...
    async def stop(self) -> None: ...


class Services:
    """Owns the services and the HTTP application. Call `start` once the Raft node runs; `leave` stops both."""

    def __init__(self, core: Core, webhooks: Webhooks, rebuild: Callable[[bool], None]) -> None:
        """Wire all services. `rebuild(joins)` discards this node's copy of the data (cluster/process/rebuild.py)."""
        self.core = core
        self._replica = ReplicaApi(core, rebuild)
        core.raft.on_applied(core.waiters.wake)
        core.raft.on_applied(lambda: core.waiters.entries.reached(core.raft.applied_index))
        self.alarms = Alarms(core)
        self._checks = CheckApi(core, webhooks)
        self.groups = GroupCoordinator(core)
        self._pops = PopApi(core)
        self._backups = BackupApi(core)
        self._lags = LagLists(core)
        self._timers = TimerService(core)
        self._retention = RetentionService(core)
        self.alarms.add(self._retention.log_front.conditions)
        self._leadership_guard = LeadershipGuard(core)
        self._index_rebuild = IndexRebuild(core)
        self.readiness = Readiness(core, self._index_rebuild)
        self._log_readers = LogReaders()
        self._cluster = ClusterApi(
            core, self.alarms, self._retention.log_front, self.readiness, self._index_rebuild, self._log_readers
        )
        for source in (
            BackgroundAlarm(core),
            ClockGuard(core),
            PeerAlarms(core),
            AddressGuard(core),
            self.readiness,
            self._replica,
            BlockAlarm(core),
            SecurityAlarm(core),
        ):
            self.alarms.add(source.conditions)
        self.at_work: Final[Sequence[Service]] = (
            self._checks,
            self._pops,
            self.groups,
            self._timers,
            self._retention,
            self._index_rebuild,
            self._cluster,
            self._leadership_guard,
            self.alarms,
        )
        """All that has background work, in the order in which it starts. It stops the other way round, and the checks,
        which are the first, after the Raft node.
        """
        self.routes = self._routes()
        self.application = make_application(core, self.routes)
        self.administration = (
            None if core.admin_connections is None else make_application(core, self.routes, administers=True)
        )
        """The application of the listener of administration; None without one."""

    def _routes(self) -> list[Route]:
        """Return every route of the API, including the route of the OpenAPI description."""
        chooser = QueueChooser()
        routes = [
            # The router tries routes with the same prefix in this order, so the busiest come first.
            *ProduceApi(self.core, chooser).routes(),
            *PullApi(self.core).routes(),
            *TopicApi(self.core).routes(),
            *PurgeApi(self.core).routes(),
            *MessageApi(self.core).routes(),
            *CausedApi(self.core).routes(),
            *ScheduledApi(self.core).routes(),
            *TransactionApi(self.core, chooser).routes(),
            *TransactionBatchApi(self.core, chooser).routes(),
            *self._checks.routes(),
            *self.groups.routes(),
            *RetryApi(self.core).routes(),
            *PauseApi(self.core).routes(),
            *self._lags.routes(),
            *self._pops.routes(),
            *self._cluster.routes(),
            *MemberApi(self.core).routes(),
            *JoinApi(self.core).routes(),
            *self._replica.routes(),
            *FeatureApi(self.core, self.alarms).routes(),
            *DrainApi(self.core, self.alarms).routes(),
            *LogApi(self.core, self._log_readers).routes(),
            *self._backups.routes(),
            *SettingsApi(self.core).routes(),
            *QuotaApi(self.core).routes(),
            *ClientApi(self.core).routes(),
            *LogLevelApi(self.core).routes(),
            *NodeConfigApi(self.core).routes(),
            *AuditApi(self.core).routes(),
            *UserApi(self.core).routes(),
            *ConsoleApi().routes(),
        ]
        return OpenApi(routes).routes()

    def make_runner(self, application: web.Application | None = None) -> web.AppRunner:
        """Return a runner that serves the application, by default that of clients. The caller sets it up, passes it
        connections by HttpProtocol, and cleans it up.
        """
        return web.AppRunner(
            application or self.application, handler_cancellation=True, shutdown_timeout=HTTP_SHUTDOWN_TIMEOUT_S
        )

    def start(self) -> None:
        for service in self.at_work:
            service.start()

    async def leave(self) -> None:
        """Stop background work, hand leadership over, then answer every waiting request."""
        for service in reversed(self.at_work[1:]):
            await service.stop()
        await self.core.raft.stop()
        await self._checks.stop()
        self._backups.stop()
        await self._lags.stop()
        self.core.waiters.close()
