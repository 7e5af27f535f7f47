"""Answers that are made once for all who take one of a moment ago, such as twenty pages that show the same view.

A client says so with `Cache-Control: max-age=SECONDS`; without it, each answer is made anew. The permission of each
client is asked for before, so routes share their answers that answer all who may use them alike. Lists show what each
client may see: their answers are shared by those who are the same principal, with the same rules.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from aiohttp import web

from cluster.core.core import Core
from cluster.http.routes import AGE_HEADER, APPLIED_INDEX_HEADER, Handler, Route
from cluster.security.principals import Principal

KEPT_MS: Final = 5_000
"""Age beyond which no client gets an answer, whatever age it takes."""
ANSWERS_MAX: Final = 32
BODY_BYTES_MAX: Final = 256 << 10

_MAX_AGE: Final = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})(?:$|[\s,])", re.ASCII | re.IGNORECASE)


_Key = tuple[Principal | None, str]
"""The principal whose answer it is, None where it is the same for all, and the request."""


class _Made(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class _Answer(NamedTuple):
    """An answer that was begun at `begun_ms`, and so shows nothing older. `made` results in None when the answer cannot
    be shared."""

    begun_ms: int
    made: "asyncio.Future[_Made | None]"
    end: asyncio.TimerHandle


class SharedAnswers:
    """Owns the answers of one node's listener. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._answers: dict[_Key, _Answer] = {}

    def shared(self, route: Route) -> Handler:
        """Return a handler of the route that may give the answer of another request."""
        inner = route.handler

        async def handler(request: web.Request) -> web.StreamResponse:
            age_max_ms = _age_max_ms(request)
            if not age_max_ms:
                return await inner(request)
            if route.redirects:
                self._core.require_leader()  # it may have been another one a moment ago
            # A principal is an object of its own after each change of its rules.
            whose = self._core.access.principal_of(request) if route.access.action is None else None
            key = whose, request.path_qs
            found = await self._known(key, age_max_ms)
            if found is not None:
                known, made = found
                return web.Response(body=made.body, headers={**made.headers, AGE_HEADER: str(self._age_ms(known))})
            return await self._make(key, inner, request)

        return handler

    async def _known(self, key: _Key, age_max_ms: int) -> tuple[_Answer, _Made] | None:
        """Return an answer that is young enough; None if there is none, or it is not shared. One that was begun after
        this call is as good as one's own, however long it takes: not each of those who wait makes one.
        """
        arrived_ms = self._now_ms()

        def is_young(answer: _Answer) -> bool:
            return answer.begun_ms >= arrived_ms or self._age_ms(answer) <= age_max_ms

        while (known := self._answers.get(key)) is not None and is_young(known):
            made = await asyncio.shield(known.made)
            if made is None:
                break
            if is_young(known):
                return known, made
        return None

    async def _make(self, key: _Key, inner: Handler, request: web.Request) -> web.StreamResponse:
        core, loop = self._core, asyncio.get_running_loop()
        becoming: asyncio.Future[_Made | None] = loop.create_future()
        end = loop.call_later(KEPT_MS / 1_000, self._forget, key, becoming)
        before = self._answers.pop(key, None)
        while before is not None or len(self._answers) >= ANSWERS_MAX:
            before = before or self._answers.pop(next(iter(self._answers)))
            before.end.cancel()  # which else keeps the body for as long
            before = None
        self._answers[key] = _Answer(self._now_ms(), becoming, end)
        applied_index = core.raft.applied_index
        made: _Made | None = None
        try:
            response = await inner(request)
            response.headers.setdefault(APPLIED_INDEX_HEADER, str(applied_index))
            body = response.body if isinstance(response, web.Response) else None
            if response.status == 200 and isinstance(body, bytes) and len(body) <= BODY_BYTES_MAX:
                made = _Made(body, dict(response.headers))
            response.headers[AGE_HEADER] = "0"
        finally:
            becoming.set_result(made)
            if made is None:
                end.cancel()
                self._forget(key, becoming)
        return response

    def _forget(self, key: _Key, made: "asyncio.Future[_Made | None]") -> None:
        known = self._answers.get(key)
        if known is not None and known.made is made:
            del self._answers[key]

    def _age_ms(self, answer: _Answer) -> int:
        return self._now_ms() - answer.begun_ms

    def _now_ms(self) -> int:
        return int(self._core.raft.clocks.steady_ms())


def _age_max_ms(request: web.Request) -> int:
    """Return how old an answer the client takes, KEPT_MS at most; 0 when it says nothing, or nothing that is clear."""
    given = request.headers.get("Cache-Control")
    found = None if given is None else _MAX_AGE.search(given)
    return 0 if found is None else min(int(found[1]) * 1_000, KEPT_MS)
