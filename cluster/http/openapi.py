"""Generates /openapi.json from the route table and from the structs that validate requests and build responses."""

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web

from cluster import VERSION
from cluster.budgets.request_deadline import TIMEOUT_HEADER, TIMEOUT_MS_MAX
from cluster.http.administration import clients_may_have
from cluster.http.app import UNKNOWN_HERE
from cluster.http.metering import may_be_charged
from cluster.http.request_guard import METHODS_WITH_BODY
from cluster.http.responses import ProblemDocument
from cluster.http.routes import (
    AGE_HEADER,
    APPLIED_INDEX_HEADER,
    IDEMPOTENCY_KEY,
    JSON,
    WRITE_ERRORS,
    Route,
    needs_the_log,
)
from cluster.problems import KINDS, PROBLEM_JSON
from cluster.security.access import PUBLIC

PATH: Final = "/openapi.json"
ALWAYS_POSSIBLE: Final = ("invalid_request", "cross_origin", "unknown_host", "overloaded", "internal")
OF_PRINCIPALS: Final = ("unauthenticated", "forbidden", "signing_key_awaited")
"""Codes with which every route that is not public may answer when authentication is on."""

_PARAMETER: Final = re.compile(r"{(\w+)}")
_REF_TEMPLATE: Final = "#/components/schemas/{name}"

Json = dict[str, Any]


class OpenApi:
    """Serves the OpenAPI document of the given routes, and of its own route."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [
            *routes,
            Route(
                "GET",
                PATH,
                self.show,
                "Return this OpenAPI document",
                {200: {JSON: None}},
                access=PUBLIC,
            ),
        ]

    def routes(self) -> list[Route]:
        return self._routes

    @functools.cached_property
    def _body(self) -> bytes:
        """The encoded document, generated at the first request: generating it takes longer than the rest of a start."""
        return msgspec.json.encode(describe(self._routes))

    async def show(self, request: web.Request) -> web.Response:
        return web.Response(body=self._body, headers={"Content-Type": JSON})


def describe(routes: Sequence[Route]) -> Json:
    """Return the OpenAPI 3.1 document of the routes."""
    schemas = _Schemas(routes)
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "KeelMQ",
            "version": VERSION,
            "description": "A replicated message broker that does not lose a message. Times are Unix milliseconds.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """Holds the JSON schemas of all structs that the routes use."""

    def __init__(self, routes: Sequence[Route]) -> None:
        bodies: dict[type[Any], None] = {ProblemDocument: None}
        queries: dict[type[Any], None] = {}
        for route in routes:
            bodies.update(dict.fromkeys(route.body.values()))
            for media in route.responses.values():
                bodies.update(dict.fromkeys(kind for kind in media.values() if kind is not None))
            if route.query is not None:
                queries[route.query] = None
        references, self.components = msgspec.json.schema_components(list(bodies), ref_template=_REF_TEMPLATE)
        self._references = dict(zip(bodies, references, strict=True))
        query_references, definitions = msgspec.json.schema_components(list(queries), ref_template="{name}")
        self._queries = {
            kind: definitions[reference["$ref"]] for kind, reference in zip(queries, query_references, strict=True)
        }

    def of(self, kind: type[Any] | None) -> Json:
        return {} if kind is None else self._references[kind]

    def query_parameters(self, kind: type[Any]) -> list[Json]:
        schema = self._queries[kind]
        required = schema.get("required", ())
        return [
            {"name": name, "in": "query", "required": name in required, "schema": described}
            for name, described in schema["properties"].items()
        ]


def _operation(route: Route, schemas: _Schemas) -> Json:
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(route.path)
    ]
    if route.query is not None:
        parameters.extend(schemas.query_parameters(route.query))
    if route.takes_idempotency_key:
        parameters.append({"name": IDEMPOTENCY_KEY, "in": "header", "required": False, "schema": {"type": "string"}})
    if route.is_shared:
        parameters.append({"name": "Cache-Control", "in": "header", "required": False, "schema": {"type": "string"}})
    if set(WRITE_ERRORS) <= set(route.errors):
        milliseconds = {"type": "integer", "minimum": 1, "maximum": TIMEOUT_MS_MAX}
        parameters.append({"name": TIMEOUT_HEADER, "in": "header", "required": False, "schema": milliseconds})
    operation: Json = {
        "operationId": f"{route.handler.__self__.__class__.__name__}.{route.handler.__name__}",  # type: ignore[attr-defined]
        "summary": route.summary,
        "parameters": parameters,
        "responses": _responses(route, schemas),
    }
    if not route.access.is_public:
        operation["security"] = [{"token": []}, {}]  # or none, while authentication is off
        operation["description"] = f"Permission: {route.access.in_words()}."
    if route.body:
        operation["requestBody"] = {
            "required": not route.body_optional,
            "content": {media: {"schema": schemas.of(kind)} for media, kind in route.body.items()},
        }
    return operation


def _responses(route: Route, schemas: _Schemas) -> Json:
    responses: Json = {}
    for status, media in route.responses.items():
        content = {name: {"schema": schemas.of(kind)} for name, kind in media.items()}
        described: Json = {"description": route.summary, **({"content": content} if content else {})}
        if headers := _headers(route):
            described["headers"] = headers
        responses[str(status)] = described
    if route.redirects or needs_the_log(route.path) or _asks_leader(route) or not route.access.is_public:
        responses["307"] = {"description": "Another node leads: send the same request to Location"}
    for status, codes in _codes_by_status(codes_of(route)).items():
        responses[str(status)] = {
            "description": "; ".join(f"{code}: {KINDS[code].title}" for code in codes),
            "content": {
                PROBLEM_JSON: {
                    "schema": {
                        "allOf": [schemas.of(ProblemDocument), {"properties": {"code": {"enum": codes}}}],
                    }
                }
            },
        }
    return responses


def codes_of(route: Route) -> tuple[str, ...]:
    """Return the codes of all problems with which the route may answer."""
    errors = route.errors
    if needs_the_log(route.path) or _asks_leader(route):
        errors = (*errors, "no_leader")
    if not route.access.is_public:
        errors = (*errors, *OF_PRINCIPALS)
    if may_be_charged(route):
        errors = (*errors, "quota_exceeded")
    if not clients_may_have(route):
        errors = (*errors, "wrong_listener")
    if route.method in METHODS_WITH_BODY:
        errors = (*errors, "unsupported_media_type")
    return tuple(dict.fromkeys((*errors, *ALWAYS_POSSIBLE)))


def _asks_leader(route: Route) -> bool:
    return route.method == "GET" and not UNKNOWN_HERE.isdisjoint(route.errors)


def _headers(route: Route) -> Json:
    of_reads = (APPLIED_INDEX_HEADER,) if route.method == "GET" else ()
    of_shared = (AGE_HEADER,) if route.is_shared else ()
    return {name: {"schema": {"type": "string"}} for name in (*of_reads, *of_shared, *route.answer_headers)}


def _codes_by_status(codes: Sequence[str]) -> Mapping[int, list[str]]:
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(KINDS[code].status, []).append(code)
    return by_status
