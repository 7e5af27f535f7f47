"""The deadline of a write, given by its client: nothing is proposed for a client that has given up.

The header is optional. The limit `request_timeout_ms` holds without it, and when the header names a longer time.
"""

import asyncio
import re
from contextvars import ContextVar
from typing import Final

from aiohttp import web

from cluster.problems import Problem

TIMEOUT_HEADER: Final = "KeelMQ-Timeout-Ms"
TIMEOUT_MS_MAX: Final = 3_600_000

_MILLISECONDS: Final = re.compile(r"[0-9]{1,7}", re.ASCII)
_deadline_s: ContextVar[float | None] = ContextVar("request_deadline_s", default=None)


def begin(request: web.Request) -> None:
    """Note the deadline of a request that has just arrived; reads have none. Raises Problem invalid_request when the
    header is not a number of milliseconds within the limits.
    """
    given = None if request.method == "GET" else request.headers.get(TIMEOUT_HEADER)
    if given is None:
        _deadline_s.set(None)
        return
    if not _MILLISECONDS.fullmatch(given) or not 1 <= int(given) <= TIMEOUT_MS_MAX:
        raise Problem("invalid_request", f"{TIMEOUT_HEADER}: a whole number from 1 to {TIMEOUT_MS_MAX}")
    _deadline_s.set(asyncio.get_running_loop().time() + int(given) / 1000)


def remaining_s(limit_s: float) -> float:
    """Return the seconds until the client of the current request gives up, at most `limit_s`; 0 if it has given up."""
    deadline_s = _deadline_s.get()
    if deadline_s is None:
        return limit_s
    return max(min(limit_s, deadline_s - asyncio.get_running_loop().time()), 0.0)
