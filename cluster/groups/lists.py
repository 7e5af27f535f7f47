"""Lists groups, members and offsets for GET /v1/groups, page by page.

No page costs more than LIST_MAX entries and about LIST_ROWS_MAX rows. Only the offsets of a group are returned as a
whole when the request names no limit: to a consumer, a missing offset is one that was never committed. They are read
in steps, and the event loop runs other work after each step.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final

from aiohttp import web
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.core.waiting import waits_since_ms
from cluster.groups.pause_api import PauseView, pause_view
from cluster.http.app import json_response
from cluster.http.requests import Request, check_group, check_topic, parse_query
from cluster.http.responses import Response, as_encoded, as_view, json_items
from cluster.http.routes import APPLIED_INDEX_HEADER, Route, json_of
from cluster.limits import LIST_MAX, LIST_ROWS_MAX
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import BY_HANDLER, of_group
from store.commands.groups import AssignedQueue
from store.commands.views import GroupOffset, GroupView, MemberView
from store.errors import GROUP_NOT_FOUND, Refused


class AssignedQueueView(Response, kw_only=True, frozen=True):
    topic: str
    queue: int


OFFSETS_PER_STEP: Final = 512
WAITS_PER_STEP: Final = 32
"""Number of offsets in one step of the loop when waiting messages are asked for: each takes the look-up of a row."""

Limit = Annotated[int, Meta(ge=1, le=LIST_MAX)]


class GroupsQuery(Request, kw_only=True, frozen=True):
    limit: Limit = LIST_MAX
    after: str | None = None


class GroupOffsetsQuery(Request, kw_only=True, frozen=True):
    """Selects offsets of a group. Without `limit` the answer has all of them. With `waits` it tells since when their
    messages wait."""

    topic: str | None = None
    limit: Limit | None = None
    after: str | None = None
    waits: bool = False


class GroupMemberView(Response, kw_only=True, frozen=True):
    member_id: str
    client_id: str
    session_timeout_ms: int
    joined_at_ms: int
    assignment: tuple[AssignedQueueView, ...]


class GroupOffsetView(Response, kw_only=True, frozen=True):
    """Committed offset of a group in a queue. `waits_since_ms` is the Unix time at which the first message was stored
    that the group has not committed or acknowledged; absent without such a message, and unless it is asked for.
    """

    topic: str
    queue: int
    offset: int
    max_offset: int
    lag: int
    held: int
    waits_since_ms: int | UnsetType = UNSET


class GroupDetail(Response, kw_only=True, frozen=True):
    group: str
    generation: int
    topics: tuple[str, ...]
    tags: dict[str, str]
    filters: dict[str, str]
    members: list[GroupMemberView]
    members_next: str | None
    """Cursor with which GET …/members continues; null when `members` is complete. `offsets_next` is the same for
    `offsets`."""
    offsets: list[GroupOffsetView]
    offsets_next: str | None
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]
    paused: PauseView | None


class GroupsView(Response, kw_only=True, frozen=True):
    groups: list[GroupDetail]
    next: str | None


class GroupMembersView(Response, kw_only=True, frozen=True):
    members: list[GroupMemberView]
    next: str | None


class GroupOffsetsView(Response, kw_only=True, frozen=True):
    offsets: list[GroupOffsetView]
    next: str | None


class GroupLists:
    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        group = "/v1/groups/{group}"
        return [
            Route(
                "GET",
                "/v1/groups",
                self.list_all,
                "List the groups by name, page by page",
                {200: json_of(GroupsView)},
                query=GroupsQuery,
                access=BY_HANDLER,
            ),
            Route(
                "GET",
                group,
                self.show,
                "Show the generation, the settings, and the first members and offsets of a group",
                {200: json_of(GroupDetail)},
                errors=("invalid_group", "group_not_found", "no_leader"),
                redirects=True,
                is_shared=True,
                access=of_group("describe"),
            ),
            Route(
                "GET",
                f"{group}/members",
                self.members,
                "List the members of a group by id, page by page",
                {200: json_of(GroupMembersView)},
                query=GroupsQuery,
                errors=("invalid_group", "group_not_found", "no_leader"),
                redirects=True,
                access=of_group("describe"),
            ),
            Route(
                "GET",
                f"{group}/offsets",
                self.offsets,
                "List committed offsets and lag",
                {200: json_of(GroupOffsetsView)},
                query=GroupOffsetsQuery,
                errors=("invalid_group", "invalid_topic", "group_not_found", "no_leader"),
                redirects=True,
                is_shared=True,
                access=of_group("describe"),
            ),
        ]

    async def list_all(self, request: web.Request) -> web.Response:
        query = parse_query(GroupsQuery, request.query)
        groups: list[GroupDetail] = []
        rows, pace = 0, Pace()
        for name in self._visible(request, query.after):
            await pace.step()
            if name is None:
                continue
            if len(groups) >= query.limit or rows >= LIST_ROWS_MAX:
                return json_response(GroupsView(groups=groups, next=groups[-1].group))
            if self._core.state.group_head(name) is None:  # deleted meanwhile
                continue
            detail = self._detail(name)
            groups.append(detail)
            rows += 1 + len(detail.offsets) + sum(1 + len(member.assignment) for member in detail.members)
        return json_response(GroupsView(groups=groups, next=None))

    def _visible(self, request: web.Request, after: str | None) -> Iterator[str | None]:
        """Yield the groups after `after`; None for a group that the request may not see and no cursor may name."""
        while names := self._core.state.group_names(after, LIST_MAX):
            for name in names:
                yield name if self._core.access.may(request, "describe", permissions.group(name)) else None
            after = names[-1]

    async def show(self, request: web.Request) -> web.Response:
        """Answer with the details of a group. Only the leader answers, for the same reason as in `offsets`."""
        self._core.require_leader()
        return self._with_index(json_response(self._detail(check_group(request.match_info["group"]))))

    async def members(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(GroupsQuery, request.query)
        if self._core.state.group_head(group) is None:
            raise no_group(group)
        members, following = self._members(group, query.after, query.limit)
        return json_response(GroupMembersView(members=members, next=following))

    async def offsets(self, request: web.Request) -> web.Response:
        """Answer with the offsets of a group. Only the leader answers: a replica may still lack an offset, and the
        consumer would take it for never committed and begin at the end of the queue."""
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(GroupOffsetsQuery, request.query)
        topic = None if query.topic is None else check_topic(query.topic)
        if self._core.state.group_head(group) is None:
            raise no_group(group)
        found = self._core.state.each_offset(group, topic, _place(query.after))
        encoded: list[bytes] = []
        left, last = query.limit, None
        step = WAITS_PER_STEP if query.waits else OFFSETS_PER_STEP
        while page := [*islice(found, step if left is None else min(left, step))]:
            encoded.append(json_items([self._offset(each, waits=query.waits) for each in page]))
            left, last = None if left is None else left - len(page), page[-1]
            if left == 0:
                break
            await asyncio.sleep(0)
            self._core.require_leader()
        more = last is not None and left == 0 and next(found, None) is not None
        offsets = as_encoded(GroupOffsetView, encoded)
        following = f"{last.topic}/{last.queue}" if last is not None and more else None
        return self._with_index(json_response(GroupOffsetsView(offsets=offsets, next=following)))

    def _offset(self, found: GroupOffset, *, waits: bool) -> GroupOffsetView:
        view: GroupOffsetView = as_view(GroupOffsetView, found)
        since_ms = waits_since_ms(self._core, found) if waits else None
        return view if since_ms is None else replace(view, waits_since_ms=since_ms)

    def _with_index(self, response: web.Response) -> web.Response:
        """Name the last entry that the offsets may come from, even if it is applied in part. A consumer requires it of
        the pages that it reads from there: an earlier one may be of a deleted topic of the same name.
        """
        response.headers[APPLIED_INDEX_HEADER] = str(self._core.state.shown_index)
        return response

    def _detail(self, group: str) -> GroupDetail:
        view: GroupView | None = self._core.state.group_head(group)
        if view is None:
            raise no_group(group)
        members, members_next = self._members(group, None, LIST_MAX)
        offsets, offsets_next = self._offsets(group, None, None, LIST_MAX)
        return GroupDetail(
            group=view.group,
            generation=view.generation,
            topics=view.topics,
            tags={each.topic: each.expression for each in view.filters if each.type == "tags"},
            filters={each.topic: each.expression for each in view.filters if each.type == "sql"},
            members=members,
            members_next=members_next,
            offsets=offsets,
            offsets_next=offsets_next,
            retry_max_attempts=view.retry_max_attempts,
            retry_delays_ms=view.retry_delays_ms,
            paused=pause_view(view.pause),
        )

    def _members(self, group: str, after: str | None, limit: int) -> tuple[list[GroupMemberView], str | None]:
        """Return a page of members, and the cursor of the next page."""
        found = self._core.state.members_after(group, after, limit + 1, LIST_ROWS_MAX)
        shown = found[:limit]
        last = shown[-1].member_id if shown else None
        more = last is not None and bool(self._core.state.members_after(group, last, 1, 1))
        return [_member_view(member) for member in shown], last if more else None

    def _offsets(
        self, group: str, topic: str | None, after: str | None, limit: int
    ) -> tuple[list[GroupOffsetView], str | None]:
        """Return a page of offsets, and the cursor of the next page."""
        found = self._core.state.offsets_after(group, topic, _place(after), limit + 1)
        if found is None:
            raise no_group(group)
        following = None
        if len(found) > limit:
            found.pop()
            following = f"{found[-1].topic}/{found[-1].queue}"
        return [as_view(GroupOffsetView, each) for each in found], following


def queue_views(assignment: tuple[AssignedQueue, ...]) -> tuple[AssignedQueueView, ...]:
    return tuple(AssignedQueueView(topic=each.topic, queue=each.queue) for each in assignment)


def no_group(group: str) -> Refused:
    return Refused(GROUP_NOT_FOUND, f"group {group} does not exist: a member's first join or commit creates it")


def _member_view(member: MemberView) -> GroupMemberView:
    return GroupMemberView(
        member_id=member.member_id,
        client_id=member.client_id,
        session_timeout_ms=member.session_timeout_ms,
        joined_at_ms=member.joined_at_ms,
        assignment=queue_views(member.assignment),
    )


def _place(cursor: str | None) -> tuple[str, int] | None:
    """Return the topic and queue that the cursor names. Raises Problem invalid_request when it is not a cursor."""
    if cursor is None:
        return None
    topic, slash, queue = cursor.rpartition("/")
    if not slash or not queue.isascii() or not queue.isdigit() or len(queue) > 5:
        raise Problem("invalid_request", "after: must be the `next` of an earlier page")
    return topic, int(queue)
