"""The listener of administration (`admin_listen`): the routes that it has for itself, and how their clients get there.

It serves every route. The listener of clients then serves those of `clients_may_have` alone, and sends whoever may use
one of the others to this node's own listener of administration. A node names no listener of another node, so nothing
about it is replicated, and each node may be given one at its next start.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import web

from cluster.core.core import Core
from cluster.http.authorization import authorized
from cluster.http.requests import target_of
from cluster.http.routes import CONSOLE_PATH, Handler, Route
from cluster.problems import Problem
from cluster.process.addresses import is_loopback
from cluster.security.permissions import CLUSTER

_WRONG: Final = "this node serves administration, metrics and its console at admin_listen only"

IS_ADMINISTRATION: Final = web.AppKey("is_administration", bool)
"""Key of an application: whether the listener of administration serves it."""


def clients_may_have(route: Route) -> bool:
    """Return whether the listener of clients serves the route, although there is a listener of administration: no route
    that is about the cluster as a whole by its permission, which are administration and metrics; not the console.
    """
    return route.access.kind != "cluster" and not route.path.startswith(CONSOLE_PATH)


def is_administration(request: web.Request) -> bool:
    """Return whether the request came to the listener of administration."""
    return request.app.get(IS_ADMINISTRATION, False)


def handler_of(core: Core, route: Route, *, administers: bool) -> Handler:
    """Return the handler of a route at one of the listeners, behind the permission that the route names."""
    if administers or core.admin_connections is None or clients_may_have(route):
        return authorized(core, route)
    return authorized(core, route._replace(handler=_sent_on(core, route)))


def may_go_to(url: str, client: str) -> bool:
    """Return whether the client at this address means this node by the URL: on another machine, a loopback address
    leads to whatever listens there, and the client would show it its credentials.
    """
    return is_loopback(client) or not is_loopback(urlsplit(url).hostname or "")


def _sent_on(core: Core, route: Route) -> Handler:
    """Return a handler that redirects to the listener of administration. Strangers, who may use public routes, are not
    told where it is; clients who would look for it on their own machine are told, and not redirected.
    """
    url = core.config.advertised_admin_url() or ""

    async def handler(request: web.Request) -> web.StreamResponse:
        if route.redirects:
            core.require_leader()  # a follower names the leader, which sends the client on
        detail, goes = _WRONG, may_go_to(url, request.remote or "")
        if not route.access.is_public or core.access.may(request, "describe", CLUSTER):
            detail += f"; use {url}" + ("" if goes else " on this node's own machine")
        problem = Problem("wrong_listener", detail)
        if route.access.is_public or not goes:
            raise problem
        response = problem.response()
        response.set_status(web.HTTPTemporaryRedirect.status_code)
        response.body = msgspec.json.encode({**problem.document(), "status": response.status})
        response.headers["Location"] = f"{url}{target_of(request)}"
        return response

    return handler
