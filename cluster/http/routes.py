"""One route of the API: where it is, who handles it, and what the schema says about it.

The same table registers the handlers and makes /openapi.json, so a route cannot be missing from either.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from cluster.http.responses import Response

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
OCTET_STREAM: Final = "application/octet-stream"
TEXT: Final = "text/plain"

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""The header by which a request that is sent again is known."""

CLUSTER_PATH: Final = "/v1/cluster"
"""Below it a cluster is administered: nothing there needs the log, and clients who hold much do not bar it."""

WRITE_ERRORS: Final = (
    "request_timeout",
    "request_too_large",
    "overloaded",
    "no_leader",
    "unknown_outcome",
    "disk_full",
    "feature_not_enabled",
)
"""What every call that goes through the log can be answered with."""


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    responses: Mapping[int, Mapping[str, type[Response] | None]]
    """Media types and their structs by status; None is a body that has no struct, no media type is no body."""
    query: type[Any] | None = None
    body: Mapping[str, type[Any]] = {}
    body_optional: bool = False
    errors: tuple[str, ...] = ()
    """Codes beside those that every route can answer with (cluster/http/openapi.py)."""
    redirects: bool = False
    """Whether a follower answers 307."""
    takes_idempotency_key: bool = False


def json_of(kind: type[Response]) -> Mapping[str, type[Response] | None]:
    return {JSON: kind}
