"""What a node does for its clients, put together over one core: the HTTP application, checks, consumer groups.

Knows no sockets and no files: the broker serves the application on the network, the simulation on its own.
"""

from typing import Final

from aiohttp import web

from cluster.alarms import Alarms
from cluster.api import KEEPALIVE_TIMEOUT_S, LINGER_S, make_application
from cluster.check_api import CheckApi
from cluster.check_service import CheckService
from cluster.clock_guard import ClockGuard
from cluster.cluster_api import ClusterApi
from cluster.core import Core
from cluster.group_coordinator import GroupCoordinator
from cluster.log_api import LogApi
from cluster.member_api import MemberApi
from cluster.message_api import MessageApi
from cluster.openapi import OpenApi
from cluster.pop_api import PopApi
from cluster.produce import ProduceApi, QueueChooser
from cluster.pull import PullApi
from cluster.retention_service import RetentionService
from cluster.retry_api import RetryApi
from cluster.routes import Route
from cluster.scheduled_api import ScheduledApi
from cluster.settings_api import SettingsApi
from cluster.timer_service import TimerService
from cluster.topic_api import TopicApi
from cluster.transaction_api import TransactionApi
from cluster.transaction_batches import TransactionBatchApi
from cluster.webhooks import Webhooks

HTTP_SHUTDOWN_TIMEOUT_S: Final = 2.0
"""How long requests under way may take once the node has handed over."""


class Services:
    """`start` once the Raft node runs; `leave` stops both."""

    def __init__(self, core: Core, webhooks: Webhooks) -> None:
        self.core = core
        core.raft.on_applied(core.waiters.wake)
        self.alarms = Alarms(core)
        self._checks = CheckApi(core, webhooks)
        self._groups = GroupCoordinator(core)
        self._timers = TimerService(core)
        self._retention = RetentionService(core)
        self.alarms.add(self._retention.log_front.conditions)
        self._clock_guard = ClockGuard(core)
        self.alarms.add(self._clock_guard.conditions)
        self.application = make_application(core, self._routes())

    @property
    def check_service(self) -> CheckService:
        return self._checks.service

    @property
    def checks_at_webhooks(self) -> int:
        return self._checks.checks_at_webhooks

    def _routes(self) -> list[Route]:
        """Every route of the API, the one of its own description included."""
        chooser = QueueChooser()
        routes = [
            # The router tries routes with the same beginning in this order: the busiest first.
            *ProduceApi(self.core, chooser).routes(),
            *PullApi(self.core).routes(),
            *TopicApi(self.core).routes(),
            *MessageApi(self.core).routes(),
            *ScheduledApi(self.core).routes(),
            *TransactionApi(self.core, chooser).routes(),
            *TransactionBatchApi(self.core, chooser).routes(),
            *self._checks.routes(),
            *self._groups.routes(),
            *RetryApi(self.core).routes(),
            *PopApi(self.core).routes(),
            *ClusterApi(self.core, self.alarms, self._retention.log_front).routes(),
            *MemberApi(self.core).routes(),
            *LogApi(self.core).routes(),
            *SettingsApi(self.core).routes(),
        ]
        return OpenApi(routes).routes()

    def make_runner(self) -> web.AppRunner:
        """What serves the application; the caller sets it up, gives it connections, and cleans it up."""
        return web.AppRunner(
            self.application,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_TIMEOUT_S,
            lingering_time=LINGER_S,
            shutdown_timeout=HTTP_SHUTDOWN_TIMEOUT_S,
        )

    def start(self) -> None:
        self._checks.start()
        self._groups.start()
        self._timers.start()
        self._retention.start()
        self._clock_guard.start()
        self.alarms.start()

    async def leave(self) -> None:
        """Hand leadership over, then answer everybody who waits."""
        await self.alarms.stop()
        await self._clock_guard.stop()
        await self._retention.stop()
        await self._timers.stop()
        await self._groups.stop()
        await self.core.raft.stop()
        await self._checks.stop()
        self.core.waiters.close()
