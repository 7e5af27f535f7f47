"""Shows the audit of the node that is asked: who changed what, and who was denied."""

from typing import Annotated

from aiohttp import web
from msgspec import Meta

from cluster.audit.page import CURSOR_PATTERN, Shown
from cluster.audit.record import TEXT_CHARACTERS_MAX, AuditFilter, Outcome
from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import Natural, Request, parse_query
from cluster.http.responses import Response
from cluster.http.routes import AUDIT_PATH, Route, json_of
from cluster.limits import AUDIT_RECORDS_MAX
from cluster.process.request_scope import REQUEST_ID_CHARACTERS_MAX
from cluster.security.access import ADMINISTRATION
from cluster.security.access_control import AuthMode
from cluster.security.permissions import Action

RECORDS_DEFAULT = 100
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)]


class AuditQuery(Request, kw_only=True, frozen=True):
    """Asks for records that match all that is given: with `since_ms` <= time < `until_ms`, and with `route` as a part
    of method and path. `after` is the `next` of the page before.
    """

    principal: Text | None = None
    outcome: Outcome | None = None
    action: Action | None = None
    route: Text | None = None
    request_id: Annotated[str, Meta(min_length=1, max_length=REQUEST_ID_CHARACTERS_MAX)] | None = None
    since_ms: Natural | None = None
    until_ms: Natural | None = None
    limit: Annotated[int, Meta(ge=1, le=AUDIT_RECORDS_MAX)] = RECORDS_DEFAULT
    after: Annotated[str, Meta(pattern=CURSOR_PATTERN)] | None = None


class AuditRecordView(Response, kw_only=True, frozen=True):
    """One call. `id` is unique at its node. `code` is the code of the error, `action` the action of the permission that
    the call needs, `resource` the resource for which it was denied; `permitted` is true when a denied call went on
    (auth permissive); `raft_index` is the last entry that it put into the log; `operator` and `reason` are copied from
    the request. Each is null or false if there is none. `missing_before` is the number of records before this one that
    could not be kept.
    """

    id: str
    at_ms: int
    principal: str
    address: str
    method: str
    path: str
    route: str
    outcome: Outcome
    code: str | None
    action: str | None
    resource: str | None
    permitted: bool
    request_id: str | None
    trace_id: str | None
    raft_index: int | None
    detail: str | None
    operator: str | None
    reason: str | None
    missing_before: int


class AuditView(Response, kw_only=True, frozen=True):
    """Records of this node, the newest first. `auth` is its mode: while it is `off`, changes are recorded as changes of
    `anonymous`. `next` is the `after` of the next page; a page that ends early has read all that one page may. Of the
    part that was read, `unreadable` lines or files could not be.
    """

    node_id: int
    auth: AuthMode
    records: list[AuditRecordView]
    next: str | None
    unreadable: int


class AuditApi:
    """Handles /v1/audit, for the node that is asked."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                AUDIT_PATH,
                self.show,
                "Show the audit of this node, the newest record first",
                {200: json_of(AuditView)},
                query=AuditQuery,
                access=ADMINISTRATION,
            )
        ]

    async def show(self, request: web.Request) -> web.Response:
        query, core = parse_query(AuditQuery, request.query), self._core
        wanted = AuditFilter(
            principal=query.principal,
            outcome=query.outcome,
            action=query.action,
            route=query.route,
            request_id=query.request_id,
            since_ms=query.since_ms,
            until_ms=query.until_ms,
        )
        page = await core.audit.read(wanted, query.limit, query.after)
        return json_response(
            AuditView(
                node_id=core.raft.node_id,
                auth=core.access.mode,
                records=[_view(each) for each in page.records],
                next=page.next,
                unreadable=page.unreadable,
            )
        )


def _view(shown: Shown) -> AuditRecordView:
    record = shown.record
    return AuditRecordView(
        id=shown.id,
        at_ms=record.at_ms,
        principal=record.principal,
        address=record.address,
        method=record.method,
        path=record.path,
        route=record.route,
        outcome=record.outcome,
        code=record.code or None,
        action=record.action or None,
        resource=record.resource or None,
        permitted=record.permitted,
        request_id=record.request_id or None,
        trace_id=record.trace_id or None,
        raft_index=record.raft_index or None,
        detail=record.detail or None,
        operator=record.operator or None,
        reason=record.reason or None,
        missing_before=record.missing_before,
    )
