"""The request that a log line belongs to: its id, the trace of its client, and what it waited for.

Nothing is read or made before a line or an answer needs it: a request about which nothing is logged costs a small
object and two accesses to a context variable.
"""

import itertools
import re
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
TRACEPARENT_HEADER: Final = "traceparent"
REQUEST_ID_CHARACTERS_MAX: Final = 64
"""Longest request id that is taken from a client."""
TRACEPARENT_CHARACTERS_MAX: Final = 256
"""Longest `traceparent` that is looked at; future versions may be longer than the 55 characters of version 00."""

_REQUEST_ID: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:/+=-]{{0,{REQUEST_ID_CHARACTERS_MAX - 1}}}", re.ASCII)
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_process: Final = secrets.token_hex(4)
_numbers = itertools.count(1)


class RequestScope:
    """One request that is being answered. Use on the event loop only."""

    __slots__ = ("_headers", "_id", "ended", "polled_s", "queued_s", "raft_index", "replicated_s")

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self._id: str | None = None
        self.ended = False
        """Whether it was answered. Tasks that it started may outlive it; their lines are not its own."""
        self.polled_s = 0.0
        """Seconds that it waited, as its client wishes, for something to happen."""
        self.queued_s = 0.0
        """Seconds that it waited for its turn among the requests of all clients."""
        self.raft_index = 0
        """Index of the last entry with a command of the request; 0 without one."""
        self.replicated_s = 0.0
        """Seconds that its commands took to be committed and applied."""

    @property
    def id(self) -> str:
        """The id that the client gave, if it is valid, otherwise one drawn here: a random prefix and a number."""
        if self._id is None:
            self._id = self.given_id or f"{_process}-{next(_numbers):x}"
        return self._id

    @property
    def given_id(self) -> str | None:
        """The request id of the client; None without a valid one."""
        given = self._headers.get(REQUEST_ID_HEADER)
        return given if given is not None and _REQUEST_ID.fullmatch(given) else None

    @property
    def trace_id(self) -> str | None:
        """The trace id of the client's `traceparent` (W3C Trace Context); None without a valid one."""
        given = self._headers.get(TRACEPARENT_HEADER)
        return None if given is None else trace_id_of(given)


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id of a `traceparent`; None when it is too long or not valid by W3C Trace Context."""
    if len(traceparent) > TRACEPARENT_CHARACTERS_MAX:
        return None
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found[1] == "ff" or found[2] == _NO_TRACE or found[3] == _NO_SPAN:
        return None
    if found[1] == "00" and found[4] is not None:  # only later versions may have further fields
        return None
    return found[2]


CURRENT: Final[ContextVar[RequestScope | None]] = ContextVar("request_scope", default=None)


def current() -> RequestScope | None:
    """Return the request that is being answered here; None outside of requests, and after its answer."""
    scope = CURRENT.get()
    return None if scope is None or scope.ended else scope


def note_polled(begun_s: float) -> None:
    """Note that the current request waited since `begun_s` (time.perf_counter) because its client wishes to."""
    scope = CURRENT.get()
    if scope is not None:
        scope.polled_s += time.perf_counter() - begun_s


def note_queued(seconds: float) -> None:
    """Note that the current request waited `seconds` for its turn."""
    scope = CURRENT.get()
    if scope is not None:
        scope.queued_s += seconds


def note_entry(raft_index: int) -> None:
    """Note the entry that has a command of the current request."""
    scope = CURRENT.get()
    if scope is not None:
        scope.raft_index = raft_index


def note_replicated(seconds: float) -> None:
    """Note that commands of the current request took `seconds` to be committed and applied."""
    scope = CURRENT.get()
    if scope is not None:
        scope.replicated_s += seconds
