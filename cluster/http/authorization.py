"""Asks for the permission of a route before its handler runs, and audits administrative calls: by a line on standard
error, and by a record in the files of the node.
"""

import logging
from http import HTTPStatus
from typing import Final

from aiohttp import web

from cluster.audit.record import Outcome
from cluster.budgets import time_shares
from cluster.core.core import Core
from cluster.http.requests import EXPLAINED
from cluster.http.routes import Handler, Route
from cluster.problems import Problem, problem_of
from cluster.process.line_pace import AUDIT_LOGGER
from cluster.security.principals import ANONYMOUS_NAME
from raft.errors import NotLeader

_audit = logging.getLogger(AUDIT_LOGGER)
_audit_of_refusals = logging.getLogger(f"{AUDIT_LOGGER}.refused")
"""Lines that anybody can cause: beyond the bound of each place they are left out."""
_REFUSED: Final = frozenset({"unauthenticated", "forbidden"})
_UNKNOWN: Final = "unknown_outcome"
_GIVEN_UP: Final = "given up before the answer: the client went away, or the node stopped"
REMARK: Final = web.RequestKey("remark", str)
"""Key of a request under which its handler leaves what the audit's record has to tell beside the path."""


def audit_force(core: Core, request: web.Request, transaction_id: str) -> None:
    """Audit a decision by force that is about to be proposed."""
    name, remark = core.access.principal_of(request).name, f"{transaction_id} by force"
    _audit_line(core, request, name, remark)
    core.audit.note(request, name, "begun", action="admin", detail=remark, said=request.get(EXPLAINED))


def _audit_call(
    core: Core, route: Route, request: web.Request, principal: str, answer: web.StreamResponse | Exception | None
) -> None:
    """Audit an administrative call that ended with this answer; None if it was given up, whatever became of it. Calls
    that were refused for lack of permission are recorded where they are refused, and have no line: anybody can cause
    them.
    """
    outcome: Outcome = "failed"
    told, code, detail = "failed", "", request.get(REMARK, "")
    if isinstance(answer, web.StreamResponse):
        told = str(answer.status)
        if answer.status < HTTPStatus.BAD_REQUEST:
            outcome = "done" if answer.status < HTTPStatus.MULTIPLE_CHOICES else "redirected"
    elif answer is not None:
        problem = problem_of(answer)
        told = problem.code if problem is not None else type(answer).__name__
        if isinstance(answer, NotLeader):
            outcome = "redirected"
        else:
            code = problem.code if problem is not None else "internal"
    else:  # it may have been carried out all the same
        told = code = _UNKNOWN
        detail = detail or _GIVEN_UP
    if told in _REFUSED:
        return
    _audit_line(core, request, principal, told)
    action, said = route.access.action or "", request.get(EXPLAINED)
    core.audit.note(request, principal, outcome, code=code, action=action, detail=detail, said=said)


def _audit_line(core: Core, request: web.Request, principal: str, told: str) -> None:
    if not core.access.is_on:  # anybody could fill the disk with lines, which have no bound, as the files have
        return
    address = core.access.shown_by(request).address
    _audit.info("%s %s by %s at %s: %s", request.method, request.path, principal, address, told)


def authorized(core: Core, route: Route) -> Handler:
    """Return the handler of a route, behind the permission that the route names."""
    control, access, inner = core.access, route.access, route.handler
    writes = route.method != "GET"
    is_audited = (access.is_audited or access.is_audited_with_reason) and writes
    if access.is_public or not (control.is_on or is_audited):
        return inner

    async def handler(request: web.Request) -> web.StreamResponse:
        if access.action is None:
            principal = control.require_principal(request).name
        else:
            resource = access.resource(request.match_info.get(access.parameter, ""))
            principal = control.require(request, access.action, resource).name
        if principal != ANONYMOUS_NAME:
            time_shares.send_as(principal)
        if not is_audited:
            return await inner(request)
        answer: web.StreamResponse | Exception | None = None
        try:
            answer = response = await inner(request)
        except Exception as error:
            answer = error
            raise
        finally:
            said = request.get(EXPLAINED)
            if access.is_audited or (said is not None and (said.operator or said.reason)):
                _audit_call(core, route, request, principal, answer)
        return response

    return _with_refusals_audited(core, handler) if access.audits_refusals and control.is_on else handler


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
