"""Common parts of all requests: their base, the types of common fields, and the decoding of bodies and queries.

The requests of a handler are structs in its module, decoded and validated in one step. Unknown fields, wrong types and
numbers out of range are `invalid_request` problems that name the field. /openapi.json is generated from the same
structs, so the schema always matches the checks.
"""

from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.limits import (
    CLIENT_ID_LENGTH_MAX,
    GROUP_LENGTH_MAX,
    ID_PATTERN,
    INT64_MAX,
    MESSAGE_ID_REGEX,
    NAME_REGEX,
    QUEUES_MAX,
    TAGS_LENGTH_MAX,
    TOPIC_LENGTH_MAX,
    WAIT_MS_MAX,
)
from cluster.problems import Problem
from store.limits import OPERATOR_BYTES_MAX, REASON_BYTES_MAX
from store.messages.topics import DLQ_PREFIX, RETRY_PREFIX

Natural = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Queue = Annotated[int, Meta(ge=0, lt=QUEUES_MAX)]
Id = Annotated[str, Meta(pattern=ID_PATTERN)]
ClientId = Annotated[str, Meta(max_length=CLIENT_ID_LENGTH_MAX)]
Operator = Annotated[str, Meta(max_length=OPERATOR_BYTES_MAX)]
Reason = Annotated[str, Meta(max_length=REASON_BYTES_MAX)]
Tags = Annotated[str, Meta(min_length=1, max_length=TAGS_LENGTH_MAX)]
WaitMs = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]


class Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Base class of all requests."""


class Explained(Request, kw_only=True, frozen=True):
    """Base class of requests that may say who wants something, and why. The audit keeps both."""

    operator: Operator = ""
    reason: Reason = ""


EXPLAINED: Final = web.RequestKey("explained", Explained)
"""Key of a request under which its body or query is kept, if it is an Explained one."""

_Struct = TypeVar("_Struct", bound=msgspec.Struct)


def parse_msgpack(decoder: "msgspec.msgpack.Decoder[_Struct]", body: bytes) -> _Struct:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise Problem("invalid_request", reason_of(error)) from None


def parse_query(kind: type[_Struct], query: Mapping[str, str]) -> _Struct:
    """Decode the query of a URL. Raises Problem invalid_request, also for a parameter that is given twice."""
    values = dict(query)
    if len(values) != len(query):
        raise Problem("invalid_request", "a query parameter is given twice")
    try:
        return msgspec.convert(values, kind, strict=False)
    except ValueError as error:
        raise Problem("invalid_request", reason_of(error)) from None


def check_message_id(message_id: str) -> str:
    """Return the id of a message. Raises Problem invalid_request when it is not valid."""
    if not MESSAGE_ID_REGEX.fullmatch(message_id):
        raise Problem("invalid_request", "message id: 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return message_id


def check_topic(name: str) -> str:
    """Return the topic name. Raises Problem invalid_topic when it is not valid.

    A group's own topic may be longer than other topics: its name is a prefix and the name of the group.
    """
    group = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
    length_max = TOPIC_LENGTH_MAX if group == name else GROUP_LENGTH_MAX + len(name) - len(group)
    if len(name) > length_max or not NAME_REGEX.fullmatch(name):
        raise Problem(
            "invalid_topic",
            f"a topic has 1 to {TOPIC_LENGTH_MAX} characters of % | a-z A-Z 0-9 _ -, not {_shown(name)}",
        )
    return name


def check_group(name: str) -> str:
    if len(name) > GROUP_LENGTH_MAX or not NAME_REGEX.fullmatch(name):
        raise Problem(
            "invalid_group",
            f"a group has 1 to {GROUP_LENGTH_MAX} characters of % | a-z A-Z 0-9 _ -, not {_shown(name)}",
        )
    return name


def check_queue(text: str) -> int:
    """Return the queue number in a path. Raises Problem invalid_request when it is not a valid number."""
    if not text.isascii() or not text.isdigit() or len(text) > len(str(QUEUES_MAX)):
        raise Problem("invalid_request", f"queue: a number from 0 to {QUEUES_MAX - 1}, not {_shown(text)}")
    return int(text)


def _shown(name: str) -> str:
    return repr(name if len(name) <= 40 else name[:40] + "…")


def reason_of(error: Exception) -> str:
    """Return a decoder's error as the detail of a problem."""
    if isinstance(error, RecursionError):
        return "the request is nested too deeply"
    return str(error).replace("$.", "").replace(" - at `$`", "")


def target_of(request: web.Request) -> str:
    """Return the path and the query as they were sent, also of a request that names its whole URL."""
    sent = request.raw_path
    return sent if sent.startswith("/") else request.rel_url.raw_path_qs
