"""Routes of the API: each has a method and a path, a handler, and its description in the schema.

The same table registers the handlers and generates /openapi.json, so a route cannot be missing from either.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from cluster.http.responses import Response
from cluster.security.access import Access

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

JSON: Final = "application/json"
MSGPACK: Final = "application/msgpack"
OCTET_STREAM: Final = "application/octet-stream"
TEXT: Final = "text/plain"

IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""Header that identifies a request that is sent again."""

APPLIED_INDEX_HEADER: Final = "KeelMQ-Applied-Index"
"""Header of the answer to a `GET`: index of an entry that this node had applied before it began to answer; with the
offsets of a group, of the last entry of which they may show something."""
AGE_HEADER: Final = "KeelMQ-Age-Ms"
"""Header of an answer that may be one of a moment ago: for how many milliseconds it has been made."""

CONSOLE_PATH: Final = "/console"
"""Path of the console and prefix of its files, which are the same for everybody."""
CLUSTER_PATH: Final = "/v1/cluster"
"""Prefix of nearly all administration paths: they do not need the log, and budgets used up by clients do not block
them."""
AUDIT_PATH: Final = "/v1/audit"
"""Path of this node's audit. Its calls do not need the log either, and budgets of clients do not block them."""

ALWAYS_SERVED: Final = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are also served on a connection in the reserve, in addition to all paths below CLUSTER_PATH, and that no
quota limits."""

WRITE_ERRORS: Final = (
    "request_timeout",
    "request_too_large",
    "overloaded",
    "no_leader",
    "unknown_outcome",
    "disk_full",
    "feature_not_enabled",
)
"""Codes with which every request that proposes a command may be answered."""


class Route(NamedTuple):
    method: str
    path: str
    handler: Handler
    summary: str
    responses: Mapping[int, Mapping[str, type[Response] | None]]
    """Media types and their structs by status. None stands for a body without a struct, no media type for no body."""
    access: Access
    """The permission that the route wants. It has no default, so that nobody forgets it."""
    query: type[Any] | None = None
    body: Mapping[str, type[Any]] = {}
    body_optional: bool = False
    errors: tuple[str, ...] = ()
    """Codes in addition to those with which every route may answer (cluster/http/openapi.py)."""
    redirects: bool = False
    """True when a follower answers with 307."""
    answer_headers: tuple[str, ...] = ()
    """Headers of a successful answer, with which a client goes on."""
    takes_idempotency_key: bool = False
    is_shared: bool = False
    """True when the answer is the same for all who may use the route: requests that accept an answer made moments ago
    share it."""
    keeps_session: bool = False
    """True when a client without an answer loses what it holds: a quota refuses such requests last."""


def json_of(kind: type[Response]) -> Mapping[str, type[Response] | None]:
    return {JSON: kind}


def needs_the_log(path: str) -> bool:
    """Return whether a node answers the path only while its log and its state are as the others': otherwise it
    redirects to the leader.
    """
    return path.startswith("/v1/") and not path.startswith((CLUSTER_PATH, AUDIT_PATH))
