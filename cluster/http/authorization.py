"""Asks for the permission of a route before its handler runs, and writes administrative calls to the audit log."""

import logging
from typing import Final

from aiohttp import web

from cluster.core.core import Core
from cluster.http.routes import Handler, Route
from cluster.problems import problem_of

AUDIT_LOGGER: Final = "keelmq.audit"
"""Name of the logger of administrative calls. Only authenticated principals cause its lines, and none is left out."""

_audit = logging.getLogger(AUDIT_LOGGER)


def authorized(core: Core, route: Route) -> Handler:
    """Return the handler of a route, behind the permission that the route names."""
    control, access, inner = core.access, route.access, route.handler
    is_audited = access.is_audited and route.method != "GET"
    if control.mode == "off" or access.is_public:
        return inner

    async def handler(request: web.Request) -> web.StreamResponse:
        if access.action is None:
            control.require_principal(request)
        else:
            control.require(request, access.action, access.resource(request.match_info.get(access.parameter, "")))
        if not is_audited:
            return await inner(request)
        outcome = "failed"
        try:
            response = await inner(request)
            outcome = str(response.status)
        except Exception as error:
            problem = problem_of(error)
            outcome = problem.code if problem is not None else type(error).__name__
            raise
        finally:
            shown = control.shown_by(request)
            principal = control.principal_of(request).name
            _audit.info("%s %s by %s at %s: %s", request.method, request.path, principal, shown.address, outcome)
        return response

    return handler
