"""The HTTP side of the node: one middleware, and the application.

Every error of a handler becomes a problem document, a redirect to the leader, or, for a bug, a 500 with a trace in the
log. A client that is slow to send its body gets a 408 and is disconnected; no other client waits for it.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from cluster.budgets import request_deadline, time_shares
from cluster.budgets.connections import Connection, Connections, address_of_request
from cluster.core.core import Core
from cluster.http.administration import IS_ADMINISTRATION, handler_of
from cluster.http.early_answer import answer_early
from cluster.http.json_bodies import parse_json
from cluster.http.metering import metered
from cluster.http.protocol import NOSNIFF
from cluster.http.request_body import hold_of
from cluster.http.request_body import read_body as read_body
from cluster.http.request_guard import RequestGuard, require_media_type
from cluster.http.requests import EXPLAINED, Explained, target_of
from cluster.http.responses import Response, json_body, msgpack_body
from cluster.http.routes import (
    ALWAYS_SERVED,
    APPLIED_INDEX_HEADER,
    AUDIT_PATH,
    CLUSTER_PATH,
    JSON,
    MSGPACK,
    Route,
    needs_the_log,
)
from cluster.http.shared_answers import SharedAnswers
from cluster.http.writer import SMALL_RESPONSE_BYTES, write_large
from cluster.limits import JSON_BYTES_MAX
from cluster.problems import Problem, problem_of
from cluster.process.request_scope import REQUEST_ID_HEADER, current
from cluster.security.client_certificate import certificate_ends_ms
from cluster.security.principals import ANONYMOUS_NAME
from raft.errors import NoLeader, NotLeader
from store.errors import IndexUnreadable
from store.log.errors import DiskFull

logger = logging.getLogger(__name__)

CLIENT_GONE: Final = 499
"""Status of an answer whose client is gone."""

UNKNOWN_HERE: Final = frozenset(
    {
        "topic_not_found",
        "queue_not_found",
        "group_not_found",
        "transaction_not_found",
        "message_not_found",
        "offset_out_of_range",
    }
)
"""Codes with which only an up-to-date leader may answer a read: a replica that lags, or has started again from its last
flushed index, cannot tell that an object does not exist."""

_JSON_HEADERS: Final = {"Content-Type": JSON}
_MSGPACK_HEADERS: Final = {"Content-Type": MSGPACK}

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
Inner = Callable[[web.Request], Awaitable[web.StreamResponse]]


def json_response(response: Response, status: int = 200) -> web.Response:
    return web.Response(body=json_body(response), status=status, headers=_JSON_HEADERS)


def msgpack_response(response: Response, status: int = 200) -> web.Response:
    return web.Response(body=msgpack_body(response), status=status, headers=_MSGPACK_HEADERS)


def media_type(request: web.Request, allowed: tuple[str, ...]) -> str:
    """Return the body's media type. Raises Problem unsupported_media_type when it is not in `allowed`."""
    given = request.headers.get("Content-Type")
    return given if given in allowed else require_media_type(given, allowed)


def wants_msgpack(request: web.Request) -> bool:
    return MSGPACK in request.headers.get("Accept", "")


async def read_json(
    request: web.Request, core: Core, decoder: "msgspec.json.Decoder[_Struct]", *, optional: bool = False
) -> _Struct:
    """Read and decode the JSON body. If it is `optional`, a missing body stands for an empty object.

    Raises as `media_type`, `read_body` and `parse_json` do.
    """
    if optional and not request.can_read_body:
        return decoder.decode(b"{}")
    media_type(request, (JSON,))
    body = parse_json(decoder, await read_body(request, core, JSON_BYTES_MAX))
    said: object = body
    if isinstance(said, Explained):
        request[EXPLAINED] = said
    return body


def make_application(core: Core, routes: Sequence[Route], *, administers: bool = False) -> web.Application:
    """Return the application that serves `routes` at one listener: that of administration, if the node has one and
    `administers` is set. Errors become responses by the table in cluster/problems.py.
    """

    guard = RequestGuard(core)
    connections = (core.admin_connections if administers else None) or core.connections

    @web.middleware
    async def answer(request: web.Request, handler: Inner) -> web.StreamResponse:
        connection = connections.begin(request.protocol)
        address = address_of_request(request) if connection is None else connection.address
        client = time_shares.begin(core.time_shares, address)
        try:
            if connection is not None and connection.in_reserve:
                _require_reserve_for(request)
            request_deadline.begin(request)
            guard.check(request)
            if connection is not None and request.path not in ALWAYS_SERVED and connections.is_look_due(connection):
                _look(core, request, connections, connection)
            with hold_of(request, core, address):
                response = await time_shares.charged(client, _handled(core, request, handler, address))
        except Exception as error:
            if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
                return web.Response(status=CLIENT_GONE)  # nobody reads it; a raised error would be logged as a bug
            response = _answer_error(core, request, error)
        finally:
            connections.end(connection)
        if _is_last(core, request, connection):
            response.force_close()
        if not response.prepared:
            response.headers[NOSNIFF] = "nosniff"
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "other"
        core.metrics.count_request(request.method, route, response.status)
        if connection is not None and response.status < HTTPStatus.MULTIPLE_CHOICES:
            connection.notes.answered(request, route)
        if not response.prepared and not request.content.is_eof():
            scope = current()
            if scope is not None:
                response.headers[REQUEST_ID_HEADER] = scope.id
            await time_shares.charged(client, answer_early(request, response, client))
        return response

    middlewares = [core.request_times.middleware(), answer]
    application = web.Application(middlewares=middlewares, client_max_size=core.config.max_request_bytes)
    application[IS_ADMINISTRATION] = administers
    answers = SharedAnswers(core)
    for described in routes:
        route = described._replace(handler=answers.shared(described)) if described.is_shared else described
        handler = metered(core, route, handler_of(core, route, administers=administers))
        # Not add_get, which adds HEAD: it would run long polls whose answer nobody reads.
        application.router.add_route(route.method, route.path, handler)
    return application


async def _handled(core: Core, request: web.Request, handler: Inner, address: str) -> web.StreamResponse:
    if request.method == "GET" and core.raft.is_catching_up and needs_the_log(request.path):
        core.require_bodies()
    if core.raft.replicas.is_suspect and needs_the_log(request.path):
        core.require_replica()
    applied_index = core.raft.applied_index  # taken before the handler reads: its answer is at least as new
    response = await handler(request)
    if request.method == "GET" and not response.prepared:
        response.headers.setdefault(APPLIED_INDEX_HEADER, str(applied_index))
    if isinstance(response, web.Response) and not response.prepared:
        return await _deliver(core, request, response, address)
    return response


def _is_last(core: Core, request: web.Request, connection: Connection | None) -> bool:
    """Return whether the connection ends with this answer: it is in the reserve, or one more than its principal may
    have, or its client's certificate has expired meanwhile, so that another handshake has to decide.
    """
    has_no_room = connection is not None and (connection.in_reserve or connection.notes.is_beyond)
    return has_no_room or certificate_ends_ms(request) <= core.wall_ms()


def _look(core: Core, request: web.Request, connections: Connections, connection: Connection) -> None:
    """Note who asks, for whom the connection counts from now on. Raises Problem quota_exceeded or overloaded when that
    principal has no room for it, unless the request is for administration.
    """
    name = core.access.principal_of(request).name if core.access.is_on else None
    connection.notes.look(request, name)
    holder = connection.address if name in (None, ANONYMOUS_NAME) else f"{time_shares.PRINCIPAL_SENDER}{name}"
    try:
        beside = core.admin_connections if connections is core.connections else core.connections
        connections.count_for(connection, holder, core.holdings, beside)
    except Problem:
        if not _is_administration(request):
            raise


def _is_administration(request: web.Request) -> bool:
    """Return whether the request is answered on a connection for which there is no room."""
    return request.path in ALWAYS_SERVED or request.path.startswith((CLUSTER_PATH, AUDIT_PATH))


def _require_reserve_for(request: web.Request) -> None:
    """Raise Problem overloaded unless connections in the reserve may serve the request."""
    if not _is_administration(request):
        raise Problem("overloaded", "too many connections, in all or of your address; send it again on another one")


def response_timeout_s(core: Core) -> float:
    """Return the seconds in which a client must read its response; it has the same time to send its request."""
    return core.config.request_timeout_ms / 1000


def note_headers(response: web.Response) -> None:
    """Give a response that is about to be written here, not by the server, the headers that others get afterwards."""
    response.headers[NOSNIFF] = "nosniff"
    scope = current()
    if scope is not None and scope.given_id is not None:
        response.headers[REQUEST_ID_HEADER] = scope.id


async def _deliver(core: Core, request: web.Request, response: web.Response, address: str) -> web.StreamResponse:
    """Return a small response for the server to write; write a large one here, within the budget and the time.

    Raises Problem overloaded or quota_exceeded when the response to a read exceeds the share of the address or of the
    principal, and ConnectionError.
    """
    body = response.body
    if not isinstance(body, bytes) or len(body) <= SMALL_RESPONSE_BYTES:
        return response
    if request.method == "GET":  # the outcome of a write is sent whatever the budget, because the write is done
        core.response_budget.require_room(address, len(body))
        core.holdings.require_room("response_bytes", time_shares.sender(), len(body))
    note_headers(response)
    held = core.holdings.holding("response_bytes", time_shares.sender(), len(body))
    with core.response_budget.holding(address, len(body)), held:
        return await write_large(request, response, body, response_timeout_s(core))


def _answer_error(core: Core, request: web.Request, error: Exception) -> web.StreamResponse:
    if isinstance(error, NotLeader):
        if core.url_of(error.leader_id) is not None:
            return _redirect(core, request, error.leader_id)
        error = NoLeader(f"node {error.leader_id} leads, but this node does not know its address yet")
    problem = problem_of(error)
    if problem is not None and _may_be_unknown_here(problem, request) and not core.is_leader():
        leader_id = core.raft.leader_id
        if leader_id not in (None, core.raft.node_id) and core.url_of(leader_id) is not None:
            return _redirect(core, request, leader_id)
        problem = Problem("no_leader", f"no leader is ready; as far as this node knows, {problem.detail}")
    if problem is None:
        problem = _foreign_problem(error)
    if problem is None:
        problem = _bug(error, request)
    response = problem.response()
    if problem.code in ("request_too_large", "request_timeout") or not request.content.is_eof():
        # The rest of the body is still on its way and is not a request: this connection cannot go on.
        response.force_close()
    if isinstance(error, web.HTTPMethodNotAllowed):
        response.headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return response


def _may_be_unknown_here(problem: Problem, request: web.Request) -> bool:
    """Return whether an up-to-date leader may answer otherwise, because this node may lag."""
    if problem.code in ("unauthenticated", "forbidden"):  # the user may be new, or just have been changed
        return bool(request.headers.get("Authorization")) and request.path.startswith("/v1/")
    return problem.code in UNKNOWN_HERE and request.method == "GET"


def problem_of_part(error: Exception, request: web.Request) -> Problem:
    """Return the problem for one part of a request, whose other parts go on."""
    if isinstance(error, NotLeader):
        return Problem("no_leader", "this node no longer leads; send it again, to the leader")
    return problem_of(error) or _foreign_problem(error) or _bug(error, request)


def _bug(error: Exception, request: web.Request) -> Problem:
    logger.error("%s %s failed", request.method, request.path, exc_info=error)
    if isinstance(error, MemoryError) and request.method == "GET":
        return Problem("overloaded", "this node has too little memory for the answer; ask for less, or again later")
    if isinstance(error, MemoryError):
        return Problem(
            "internal",
            "this node has too little memory; send the request again with the same ids, it may have been carried out",
        )
    return Problem("internal", "a bug of the broker; its log has the trace")


def _foreign_problem(error: Exception) -> Problem | None:
    """Return the problem for an error of the disk or of the HTTP server; None for other errors."""
    if isinstance(error, DiskFull) and error.is_for_want_of_descriptors:
        return Problem("overloaded", f"{error}; raise the limit of open files of the leader")
    if isinstance(error, IndexUnreadable) and error.lacks_descriptor:
        return Problem("overloaded", f"{error}; raise the limit of open files of this node")
    if isinstance(error, IndexUnreadable):
        return Problem("internal", f"{error}; this node ends, ask another one")
    if isinstance(error, DiskFull):
        return Problem("disk_full", f"{error}; make room on the leader's disk")
    if isinstance(error, web.HTTPMethodNotAllowed):
        return Problem("method_not_allowed", f"this path supports {', '.join(sorted(error.allowed_methods))}")
    if isinstance(error, web.HTTPNotFound):
        return Problem("not_found", "no such path; /openapi.json lists them")
    if isinstance(error, web.RequestPayloadError):
        return Problem("invalid_request", "the body ended early or is not encoded as its headers say")
    return None


def _redirect(core: Core, request: web.Request, leader_id: int) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": f"{core.url_of(leader_id)}{target_of(request)}"})
