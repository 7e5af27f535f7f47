"""Reads the errors in the answers of nodes."""

import re
from typing import Any, Final

import msgspec

from keelmq.errors import BrokerFault, KeelMQError, Unauthenticated, error_from_problem
from keelmq.transport.credentials import Credentials
from keelmq.transport.http1 import HttpResponse, Origin

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._:/+=-]{1,64}", re.ASCII)


def error_of(response: HttpResponse, node: Origin, credentials: Credentials) -> KeelMQError:
    """Return the error with which the node answered; if it lacks a token, with what to do about it, and if it is a bug
    of the broker, with the place of its trace.
    """
    error = error_from_problem(response.status, _problem(response))
    request_id = response.headers.get("x-request-id", "")
    known_id = request_id if _REQUEST_ID.fullmatch(request_id) else None  # it is shown on terminals
    hint = ""
    if isinstance(error, Unauthenticated):
        hint = credentials.why_none(node) or ""
    elif isinstance(error, BrokerFault) and known_id is not None:
        hint = f"request {known_id} in the log of {node.url}"
    if hint:
        error = type(error)(error.code, f"{error.detail}; {hint}", status=error.status, extra=error.extra)
    error.request_id = known_id
    return error


def retry_after_s(response: HttpResponse) -> float:
    """Return the seconds after which the node wants to be asked again; 0 when it does not say."""
    value = response.headers.get("retry-after", "")
    return float(value) if value.isdecimal() else 0.0


def _problem(response: HttpResponse) -> dict[str, Any]:
    try:
        problem = msgspec.json.decode(response.body)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}
