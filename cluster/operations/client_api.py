"""Shows the clients that are connected to a node."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta

from cluster.budgets.connections import Connection
from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import Natural, Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import Route, json_of
from cluster.limits import CLIENTS_MAX
from cluster.security.access import CLUSTER_DESCRIBED


class ClientsQuery(Request, kw_only=True, frozen=True):
    """Asks for the connections with larger numbers than `after`."""

    limit: Annotated[int, Meta(ge=1, le=CLIENTS_MAX)] = CLIENTS_MAX
    after: Natural = 0


class ConsumedGroup(Response, kw_only=True, frozen=True):
    """A consumer group in which a client consumes: as the member `member_id`, or as a pop consumer without one."""

    group: str
    member_id: str | None


class ClientView(Response, kw_only=True, frozen=True):
    """One connection. `principal` is null while authentication is off, and until the first request. The groups are
    named by the requests on this connection.
    """

    connection: int
    address: str
    principal: str | None
    user_agent: str | None
    connected_ms: int
    requests: int
    in_flight: int
    consumer_groups: list[ConsumedGroup]
    producer_groups: list[str]


class ClientsView(Response, kw_only=True, frozen=True):
    """Connections of this node, in the order of their numbers. `next` is the `after` of the next page."""

    node_id: int
    clients: list[ClientView]
    next: int | None


class ClientApi:
    """Handles /v1/cluster/clients."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/cluster/clients",
                self.show,
                "Show the clients that are connected to this node",
                {200: json_of(ClientsView)},
                query=ClientsQuery,
                access=CLUSTER_DESCRIBED,
            )
        ]

    async def show(self, request: web.Request) -> web.Response:
        query, core = parse_query(ClientsQuery, request.query), self._core
        found = core.connections.after(query.after, query.limit + 1)
        if core.admin_connections is not None:
            found += core.admin_connections.after(query.after, query.limit + 1)
            found.sort(key=lambda each: each.notes.number)
        shown = [self._view(each) for each in found[: query.limit]]
        following = shown[-1].connection if len(shown) < len(found) else None
        return json_response(ClientsView(node_id=self._core.raft.node_id, clients=shown, next=following))

    def _view(self, connection: Connection) -> ClientView:
        notes = connection.notes
        return ClientView(
            connection=notes.number,
            address=connection.peer,
            principal=notes.principal,
            user_agent=notes.agent,
            connected_ms=self._core.connections.age_ms(connection),
            requests=notes.requests,
            in_flight=notes.under_way,
            consumer_groups=[
                ConsumedGroup(group=group, member_id=member_id) for group, member_id in notes.consumer_groups.items()
            ],
            producer_groups=list(notes.producer_groups),
        )
