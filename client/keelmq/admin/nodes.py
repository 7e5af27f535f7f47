"""Administration calls about the node that is asked, and their answers: its clients, its log level, whether it is
drained, its audit.
"""

import msgspec

from keelmq.admin.audit import AuditFilter, AuditPage
from keelmq.admin.calls import AdminCalls, query_of
from keelmq.admin.cluster import ClusterStatus
from keelmq.admin.requests import Drain, SetLogLevel
from keelmq.admin.view import View
from keelmq.limits import CLIENTS_MAX
from keelmq.transport.connection import Connection


class ConsumedGroup(View, frozen=True, kw_only=True):
    """A consumer group in which a client consumes: as the member `member_id`, or as a pop consumer without one."""

    group: str
    member_id: str | None = None


class ConnectedClient(View, frozen=True, kw_only=True):
    """One connection of a node. `principal` is None while authentication is off, and until the first request."""

    connection: int
    address: str
    principal: str | None
    user_agent: str | None
    connected_ms: int
    requests: int
    in_flight: int
    consumer_groups: list[ConsumedGroup]
    producer_groups: list[str]


class LogLevel(View, frozen=True, kw_only=True):
    """Lowest severity that a node logs, lowest severity by its configuration, and levels of the loggers that have their
    own. Changes end with the process of the node, and with its next SIGHUP.
    """

    node_id: int
    level: str
    configured: str
    loggers: dict[str, str]


class NodeOption(View, frozen=True, kw_only=True):
    """The value of an option of a node, without credentials, and where it comes from; `default` if it was not given."""

    value: bool | int | float | str | list[str] | None
    source: str


class NodeConfig(View, frozen=True, kw_only=True):
    """All options that a node has run with since its start, by name."""

    node_id: int
    version: str
    options: dict[str, NodeOption]


class NodeDrain(View, frozen=True, kw_only=True):
    """State of a node's drain: an operator wants other nodes to lead. It `leads` all the same while none could take
    over.
    """

    node_id: int
    drained: bool
    leads: bool = False


class NodeCalls:
    """Asks one node about itself, and never another one. The caller owns `connection`, which knows this node alone."""

    def __init__(self, connection: Connection) -> None:
        self._calls = AdminCalls(connection)

    async def clients(self) -> list[ConnectedClient]:
        """Return the connections of the node, the oldest first. Needs the permission `describe` on the cluster."""
        return await self._calls.pages(
            ConnectedClient, "/v1/cluster/clients", "clients", {"limit": CLIENTS_MAX}, anywhere=True
        )

    async def config(self) -> NodeConfig:
        """Return the options of the node. Needs the permission `describe` on the cluster."""
        return await self._calls.view(NodeConfig, "GET", "/v1/node/config", anywhere=True)

    async def metrics(self) -> str:
        """Return the metrics of the node as text. Needs the permission `describe` on the cluster, unless the node shows
        them to everybody.
        """
        answer = await self._calls.connection.call("GET", "/metrics", accept="text/plain", anywhere=True)
        return answer.body.decode(errors="replace")

    async def status(self) -> ClusterStatus:
        """Return the state of the cluster as this node sees it."""
        return await self._calls.view(ClusterStatus, "GET", "/v1/cluster", anywhere=True)

    async def log_level(self) -> LogLevel:
        """Return what the node logs. Needs the permission `describe` on the cluster."""
        return await self._calls.view(LogLevel, "GET", "/v1/cluster/log-level", anywhere=True)

    async def set_log_level(self, level: str | None, *, logger: str | None = None) -> LogLevel:
        """Set the lowest severity that the node logs, or that of one logger and those below it; None has that logger
        follow the node again. Needs the permission `admin` on the cluster.
        """
        body = SetLogLevel(level, logger)
        return await self._calls.view(LogLevel, "PUT", "/v1/cluster/log-level", body, anywhere=True)

    async def drain(self) -> NodeDrain:
        """Have other nodes lead in place of this one, until `undrain` or its next start; a leader hands over. Needs the
        permission `admin` on the cluster.
        """
        return await self._calls.view(NodeDrain, "PUT", "/v1/cluster/drain", Drain(True), anywhere=True)

    async def undrain(self) -> NodeDrain:
        """Let this node lead again. Needs the permission `admin` on the cluster."""
        return await self._calls.view(NodeDrain, "PUT", "/v1/cluster/drain", Drain(False), anywhere=True)

    async def drained(self) -> NodeDrain:
        """Return whether this node is drained. Needs the permission `describe` on the cluster."""
        return await self._calls.view(NodeDrain, "GET", "/v1/cluster/drain", anywhere=True)

    async def audit(
        self, wanted: AuditFilter | None = None, *, limit: int | None = None, after: str | None = None
    ) -> AuditPage:
        """Return a page of the audit of the node, the newest record first; `limit` is 1 to 500. Needs the permission
        `admin` on the cluster.
        """
        given = query_of({**msgspec.structs.asdict(wanted or AuditFilter()), "limit": limit, "after": after})
        path = "/v1/audit"
        return await self._calls.view(AuditPage, "GET", f"{path}?{given}" if given else path, anywhere=True)
