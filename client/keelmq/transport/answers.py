"""Reads the errors in the answers of nodes."""

from typing import Any

import msgspec

from keelmq.errors import KeelMQError, Unauthenticated, error_from_problem
from keelmq.transport.credentials import Credentials
from keelmq.transport.http1 import HttpResponse, Origin


def error_of(response: HttpResponse, node: Origin, credentials: Credentials) -> KeelMQError:
    """Return the error with which the node answered; if it lacks a token, with what to do about it."""
    error = error_from_problem(response.status, _problem(response))
    if isinstance(error, Unauthenticated) and (why := credentials.why_none(node)):
        return Unauthenticated(error.code, f"{error.detail}; {why}", status=error.status, extra=error.extra)
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
