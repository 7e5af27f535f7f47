"""Charges requests to the quota of their principal, before anything of them is read (cluster/budgets/quotas.py)."""

from aiohttp import web

from cluster.budgets.client_budget import address_of
from cluster.budgets.quotas import Quota, Quotas
from cluster.core.core import Core
from cluster.http.routes import ALWAYS_SERVED, CLUSTER_PATH, CONSOLE_PATH, Handler, Route
from cluster.security.principals import ADMINISTRATOR_NAME, ANONYMOUS_NAME


def is_free(route: Route) -> bool:
    """Return whether the route is never charged, because it has to work whatever clients do: health, metrics and
    administration; and the files of the console, of which a page needs all.
    """
    paths = (CLUSTER_PATH, CONSOLE_PATH)
    return route.path in ALWAYS_SERVED or route.path.startswith(paths) or route.access.action == "admin"


def may_be_charged(route: Route) -> bool:
    """Return whether a request for the route may be refused because of a quota. Free ones that want a permission are
    charged to strangers, who would otherwise try tokens there without a bound.
    """
    return not (is_free(route) and route.access.is_public)


def metered(core: Core, route: Route, handler: Handler) -> Handler:
    """Return the handler of a route behind the quotas; the handler itself when the node has none."""
    quotas, free = core.quotas, is_free(route)
    if quotas is None or not may_be_charged(route) or (free and core.access.mode != "enforce"):
        return handler

    async def charged(request: web.Request) -> web.StreamResponse:
        quota = None if quotas.is_unlimited else _quota_of(core, quotas, request, free=free)
        if quota is None:
            return await handler(request)
        in_bytes = request.content_length
        # No more than a body may have: an announcement costs its sender nothing, and an address has neighbours.
        charged_bytes = min(in_bytes or 0, core.config.max_request_bytes)
        quota.begin(quotas.steady_s(), charged_bytes, keeps_session=route.keeps_session)
        try:
            response = await handler(request)
        finally:
            if in_bytes is None and request.content.total_bytes:  # a chunked body announces no length
                quota.received(quotas.steady_s(), request.content.total_bytes)
        quota.sent(quotas.steady_s(), _size_bytes(response))
        return response

    return charged


def _quota_of(core: Core, quotas: Quotas, request: web.Request, *, free: bool) -> Quota | None:
    """Return the quota of who sends the request; None for the built-in administrator, and at a `free` route for all who
    show valid credentials.
    """
    name = core.access.principal_of(request).name
    if name == ANONYMOUS_NAME:
        return quotas.of_address(address_of((request.remote or "",)))
    return None if free or name == ADMINISTRATOR_NAME else quotas.of_user(name)


def _size_bytes(response: web.StreamResponse) -> int:
    body = response.body if isinstance(response, web.Response) else None
    return len(body) if isinstance(body, bytes | bytearray) else 0
