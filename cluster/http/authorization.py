"""Asks for the permission of a route before its handler runs, and writes administrative calls to the audit log."""

import logging
from typing import Final

from aiohttp import web

from cluster.budgets import time_shares
from cluster.core.core import Core
from cluster.http.routes import Handler, Route
from cluster.problems import Problem, problem_of
from cluster.process.line_pace import AUDIT_LOGGER

_audit = logging.getLogger(AUDIT_LOGGER)
_audit_of_refusals = logging.getLogger(f"{AUDIT_LOGGER}.refused")
"""Its lines are left out beyond the bound of each place: anybody can cause them."""
_REFUSED: Final = frozenset({"unauthenticated", "forbidden"})


def audit(core: Core, request: web.Request, principal: str, outcome: str) -> None:
    """Write an administrative call to the audit log. Calls that were refused for lack of permission are not written
    there, so that nobody without one can fill a disk; they are counted and logged as refusals.
    """
    if outcome not in _REFUSED:
        address = core.access.shown_by(request).address
        _audit.info("%s %s by %s at %s: %s", request.method, request.path, principal, address, outcome)


def authorized(core: Core, route: Route) -> Handler:
    """Return the handler of a route, behind the permission that the route names."""
    control, access, inner = core.access, route.access, route.handler
    writes = route.method != "GET"
    is_audited = access.is_audited and writes
    if control.mode == "off" or access.is_public:
        return inner

    async def handler(request: web.Request) -> web.StreamResponse:
        if access.action is None:
            control.require_principal(request)
        else:
            control.require(request, access.action, access.resource(request.match_info.get(access.parameter, "")))
        if writes and (name := control.proved_name(request)):
            time_shares.send_as(name)
        if not is_audited:
            return await inner(request)
        principal = control.principal_of(request).name  # before the call, which may delete him
        outcome = "failed"
        try:
            response = await inner(request)
            outcome = str(response.status)
        except Exception as error:
            problem = problem_of(error)
            outcome = problem.code if problem is not None else type(error).__name__
            raise
        finally:
            audit(core, request, principal, outcome)
        return response

    return _with_refusals_audited(core, handler) if access.audits_refusals else handler


def _with_refusals_audited(core: Core, inner: Handler) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            return await inner(request)
        except Problem as problem:
            if problem.code in _REFUSED:
                principal, address = core.access.principal_of(request).name, core.access.shown_by(request).address
                _audit_of_refusals.warning(
                    "%s %s by %s at %s: %s", request.method, request.path, principal, address, problem.code
                )
            raise

    return handler
