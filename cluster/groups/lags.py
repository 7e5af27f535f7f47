"""Lists groups with their lag for GET /v1/lags, page by page by name, or the ones with the largest lag.

A lag costs a look at each queue that the group has read, and the time since when a message waits one more look at each
queue that lags. All of it is done in slices, between which the loop runs other work. Pages end after LIST_ROWS_MAX
queues or SEARCH_S_MAX. The groups with the largest lag are looked for in all groups, so that is remembered: however
many pages ask, the node looks at most every RANKED_MS, and during 2 % of the time.
"""

import asyncio
import heapq
from collections.abc import Iterator
from contextvars import Context
from typing import Annotated, Final, Literal, NamedTuple

from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.core.waiting import waits_since_ms
from cluster.groups.pause_api import PauseView, pause_view
from cluster.http.app import json_response
from cluster.http.requests import Request, check_topic, parse_query
from cluster.http.responses import Response, or_unset
from cluster.http.routes import Route, json_of
from cluster.limits import LAGS_MAX, LIST_MAX, LIST_ROWS_MAX
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import BY_HANDLER
from store.errors import Refused
from store.messages.topics import DLQ_PREFIX

RANKED_MS: Final = 5_000
RESTS_FOR: Final = 50
"""Multiple of the time of a look at all groups for which nobody looks again."""


class LagsQuery(Request, kw_only=True, frozen=True):
    """Selects groups, by name from `after` on, or by lag. With `topic` only those that read it, and their lag in it."""

    limit: Annotated[int, Meta(ge=1, le=LAGS_MAX)] = LAGS_MAX
    after: str | None = None
    topic: str | None = None
    order: Literal["name", "lag"] = "name"


class GroupLagView(Response, kw_only=True, frozen=True):
    """A group and how far it is behind. `waits_since_ms` is the Unix time at which the first message was stored that
    the group has not committed or acknowledged; absent without such a message, and in the order of lag where it would
    cost too much. `dead_letters` includes replayed dead letters, as long as they are kept.
    """

    group: str
    topics: tuple[str, ...]
    members: int
    lag: int
    waits_since_ms: int | UnsetType = UNSET
    dead_letters: int
    paused: PauseView | None


class LagsView(Response, kw_only=True, frozen=True):
    groups: list[GroupLagView]
    next: str | None


class Lag(NamedTuple):
    """Lag of a group in messages. `rows` counts the rows that were read to find it."""

    messages: int
    waits_since_ms: int | None
    rows: int


class _Ranked(NamedTuple):
    group: str
    messages: int
    waits_since_ms: int | None


class _Ranking:
    """The groups with the largest lag. Use on the event loop only."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._task = core.background.task("lags", "look for the groups with the largest lag", self._renew)
        self._looked: asyncio.Future[None] | None = None
        self._ranked: list[_Ranked] = []
        self._good_until_ms = 0

    async def stop(self) -> None:
        """End the look that is being made."""
        await self._task.stop()

    async def groups(self) -> list[_Ranked]:
        """Return the groups that lag, the largest lag first; LIST_MAX at most. Those who ask meanwhile wait for the
        look that is being made, which goes on when they do not: begun anew by each who asks and leaves, it would never
        end, nor rest.
        """
        if self._looked is None and self._core.steady_ms() >= self._good_until_ms:
            self._looked = asyncio.get_running_loop().create_future()
            Context().run(self._task.spawn, self._renew)  # no client's: its time is the node's own
        if self._looked is not None:
            await asyncio.shield(self._looked)
        return self._ranked

    async def _renew(self) -> None:
        begun_ms = self._core.steady_ms()
        try:
            self._ranked = await self._look()
        finally:
            ended_ms = self._core.steady_ms()
            self._good_until_ms = ended_ms + max(RANKED_MS, RESTS_FOR * (ended_ms - begun_ms))
            if self._looked is not None:
                self._looked.set_result(None)
            self._looked = None

    async def _look(self) -> list[_Ranked]:
        lags: list[tuple[int, str]] = []
        pace, after = Pace(), None
        while names := self._core.state.group_names(after, LIST_MAX):
            for name in names:
                lag = await lag_of(self._core, name, pace, waits=False)
                if lag is not None and lag.messages:
                    lags.append((lag.messages, name))
            after = names[-1]
        largest = heapq.nsmallest(LIST_MAX, lags, key=lambda each: (-each[0], each[1]))
        ranked, rows = [], 0
        for messages, name in largest:
            if rows + self._core.state.queues_read(name, None) > LIST_ROWS_MAX:
                ranked.append(_Ranked(name, messages, None))
                continue
            lag = await lag_of(self._core, name, pace, waits=True)
            if lag is not None:
                rows += lag.rows
                ranked.append(_Ranked(name, messages, lag.waits_since_ms))
        return ranked


async def lag_of(core: Core, group: str, pace: Pace, topic: str | None = None, *, waits: bool) -> Lag | None:
    """Return the lag of a group in a topic or in all of them, of queues as they are when they are looked at; None when
    the group does not exist, or not any more."""
    messages, since_ms, rows = 0, None, 0
    try:
        for offset in core.state.each_offset(group, topic, None):
            messages += offset.lag
            rows += 1
            found = waits_since_ms(core, offset) if waits else None
            if found is not None:
                since_ms = found if since_ms is None else min(since_ms, found)
            await pace.step()
    except Refused:
        return None
    return Lag(messages, since_ms, rows)


class LagLists:
    """Handles GET /v1/lags."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._ranking = _Ranking(core)

    async def stop(self) -> None:
        await self._ranking.stop()

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/lags",
                self.list_all,
                "List groups with their lag, by name page by page, or those with the largest lag",
                {200: json_of(LagsView)},
                query=LagsQuery,
                errors=("invalid_topic",),
                is_shared=True,
                access=BY_HANDLER,
            )
        ]

    async def list_all(self, request: web.Request) -> web.Response:
        """Answer from this node's copy of the state, as lists of groups do."""
        query = parse_query(LagsQuery, request.query)
        topic = None if query.topic is None else check_topic(query.topic)
        if query.order == "lag":
            if query.after is not None or topic is not None:
                raise Problem("invalid_request", "order=lag: gives one page, of all topics; leave out after and topic")
            return json_response(LagsView(groups=await self._largest(request, query.limit), next=None))
        found: list[GroupLagView] = []
        rows, pace, last = 0, Pace(), None
        for name in self._names(topic, query.after):
            await pace.step()
            if not self._may_see(request, name):  # nor may a cursor name it
                continue
            if len(found) >= query.limit or rows >= LIST_ROWS_MAX or (found and pace.is_over):
                return json_response(LagsView(groups=found, next=last))
            lag = await lag_of(self._core, name, pace, topic, waits=True)
            view = None if lag is None else self._view(name, lag.messages, lag.waits_since_ms)
            if lag is not None and view is not None:
                found.append(view)
                rows += 1 + lag.rows
                last = name
        return json_response(LagsView(groups=found, next=None))

    async def _largest(self, request: web.Request, limit: int) -> list[GroupLagView]:
        found: list[GroupLagView] = []
        pace = Pace()
        for each in await self._ranking.groups():
            await pace.step()
            view = self._view(*each) if self._may_see(request, each.group) else None
            if view is not None:
                found.append(view)
                if len(found) == limit:
                    break
        return found

    def _may_see(self, request: web.Request, group: str) -> bool:
        return self._core.access.may(request, "describe", permissions.group(group))

    def _names(self, topic: str | None, after: str | None) -> Iterator[str]:
        if topic is not None:
            yield from (name for name in self._core.state.groups_of(topic) if after is None or name > after)
            return
        while names := self._core.state.group_names(after, LIST_MAX):
            yield from names
            after = names[-1]

    def _view(self, group: str, messages: int, since_ms: int | None) -> GroupLagView | None:
        """Return the group as it is shown; None when it does not exist any more."""
        state = self._core.state
        head = state.group_head(group)
        if head is None:
            return None
        dead = DLQ_PREFIX + group
        ranges = () if state.topic(dead) is None else state.queue_ranges(dead)
        return GroupLagView(
            group=group,
            topics=head.topics,
            members=len(state.member_ids(group) or ()),
            lag=messages,
            waits_since_ms=or_unset(since_ms),
            dead_letters=sum(each.max_offset - each.min_offset for each in ranges),
            paused=pause_view(head.pause),
        )
