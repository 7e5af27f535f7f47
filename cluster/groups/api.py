"""Consumer groups over HTTP: joins, heartbeats and offsets. Members and offsets are in the log; heartbeats are not."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.budgets.turns import ALL_GROUPS, REBALANCED_AT_ONCE, Turns
from cluster.core.core import Core
from cluster.groups.commit_rules import check_commit
from cluster.groups.lists import AssignedQueueView, GroupLists, no_group, queue_views
from cluster.groups.offset_clones import clone_offsets
from cluster.groups.pause_api import PauseView, told_pause
from cluster.groups.session_expiry import SessionExpiry
from cluster.groups.subscriptions import JoinRequest, require_queues, topic_filters
from cluster.http.app import json_response, read_json
from cluster.http.requests import (
    EXPLAINED,
    Explained,
    Id,
    Natural,
    Queue,
    Request,
    WaitMs,
    check_group,
    check_topic,
    parse_query,
)
from cluster.http.responses import Response, as_encoded, as_view, json_items
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import ID_REGEX, OFFSETS_MAX
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import of_group
from store.commands.groups import (
    CloneOffsets,
    CommitOffsets,
    DeleteGroup,
    GroupDeleted,
    Joined,
    JoinGroup,
    LeaveGroup,
    OffsetsCommitted,
    OffsetsReset,
    QueueOffset,
    ResetOffsets,
)
from store.commands.views import Membership
from store.errors import MEMBER_NOT_FOUND, TOPIC_NOT_FOUND, Refused


class DeleteGroupQuery(Explained, kw_only=True, frozen=True):
    with_dead_letters: bool = False


class HeartbeatRequest(Request, kw_only=True, frozen=True):
    """Keeps a member's session. With `wait_ms` the answer waits until the group leaves `generation`, or, with `paused`,
    until that is not so any more."""

    generation: Natural | None = None
    paused: bool | None = None
    wait_ms: WaitMs = 0

    def knows(self, member: Membership) -> bool:
        """Return whether the member knows already what it would be answered."""
        return member.generation == self.generation and self.paused in (None, member.pause is not None)


class OffsetEntry(Request, kw_only=True, frozen=True):
    topic: str
    queue: Queue
    offset: Natural


class OffsetsRequest(Request, kw_only=True, frozen=True):
    member_id: Id | None = None
    generation: Natural | None = None
    offsets: Annotated[tuple[OffsetEntry, ...], Meta(min_length=1, max_length=OFFSETS_MAX)]
    begins: bool = False


class CloneRequest(Explained, kw_only=True, frozen=True):
    source: str
    topic: str | None = None


class ResetRequest(Explained, kw_only=True, frozen=True):
    topic: str
    queue: Queue | None = None
    to: Literal["earliest", "latest"] | None = None
    offset: Natural | None = None
    timestamp_ms: Natural | None = None


class MembershipView(Response, kw_only=True, frozen=True):
    """Membership of one member, as answered to its join and to every heartbeat. `paused` says why the group is handed
    out nothing, and is null when it is not paused; absent below feature level 2."""

    member_id: str
    generation: int
    assignment: tuple[AssignedQueueView, ...]
    session_timeout_ms: int
    paused: PauseView | UnsetType | None = UNSET


class CommittedOffset(Response, kw_only=True, frozen=True):
    topic: str
    queue: int
    offset: int


class CommittedOffsetsView(Response, kw_only=True, frozen=True):
    offsets: list[CommittedOffset]


class ResetView(Response, kw_only=True, frozen=True):
    offsets: list[CommittedOffset]
    generation: int


def committed_offsets(offsets: tuple[QueueOffset, ...]) -> list[CommittedOffset]:
    return [as_view(CommittedOffset, each) for each in offsets]


logger = logging.getLogger(__name__)

_join_decoder: Final = msgspec.json.Decoder(JoinRequest)
_heartbeat_decoder: Final = msgspec.json.Decoder(HeartbeatRequest)
_offsets_decoder: Final = msgspec.json.Decoder(OffsetsRequest)
_clone_decoder: Final = msgspec.json.Decoder(CloneRequest)
_reset_decoder: Final = msgspec.json.Decoder(ResetRequest)


class GroupCoordinator:
    """Handles /v1/groups, and owns the expiry of members on the leader."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lists = GroupLists(core)
        self._expiry = SessionExpiry(core)
        self._clone_turns = Turns(1)
        self._sessions = self._expiry.sessions

    def routes(self) -> list[Route]:
        return [*self._member_routes(), *self._lists.routes(), *self._offset_routes()]

    def _member_routes(self) -> list[Route]:
        members = "/v1/groups/{group}/members"
        member_errors = ("invalid_group", "group_not_found", "member_not_found")
        return [
            Route(
                "POST",
                members,
                self.join,
                "Join the group and get queues assigned",
                {201: json_of(MembershipView)},
                body={JSON: JoinRequest},
                errors=(
                    "invalid_group",
                    "invalid_topic",
                    "invalid_filter",
                    "topic_not_found",
                    "subscription_mismatch",
                    "group_is_popped",
                    "too_many_groups",
                    "too_many_members",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "POST",
                f"{members}/{{member_id}}/heartbeat",
                self.heartbeat,
                "Keep the session; a changed generation means that the assignment may have changed",
                {200: json_of(MembershipView)},
                body={JSON: HeartbeatRequest},
                body_optional=True,
                errors=(*member_errors, "no_leader", "request_timeout", "request_too_large"),
                redirects=True,
                access=of_group("read"),
                keeps_session=True,
            ),
            Route(
                "DELETE",
                f"{members}/{{member_id}}",
                self.leave,
                "Leave the group",
                {204: {}},
                errors=(*member_errors, *WRITE_ERRORS),
                redirects=True,
                access=of_group("read"),
            ),
        ]

    def _offset_routes(self) -> list[Route]:
        group = "/v1/groups/{group}"
        offset_errors = ("invalid_group", "invalid_topic", "topic_not_found", "queue_not_found", "offset_out_of_range")
        return [
            Route(
                "PUT",
                f"{group}/offsets",
                self.commit_offsets,
                "Commit offsets, fenced by member and generation",
                {200: json_of(CommittedOffsetsView)},
                body={JSON: OffsetsRequest},
                errors=(
                    *offset_errors,
                    "group_not_found",
                    "member_not_found",
                    "stale_generation",
                    "not_assigned",
                    "offset_moves_back",
                    "already_begun",
                    "group_has_members",
                    "group_is_popped",
                    "too_many_groups",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "POST",
                f"{group}/reset",
                self.reset,
                "Set offsets by position or time, also backwards; running members fetch again",
                {200: json_of(ResetView)},
                body={JSON: ResetRequest},
                errors=(*offset_errors, "group_not_found", *WRITE_ERRORS),
                redirects=True,
                access=of_group("reset"),
            ),
            Route(
                "POST",
                f"{group}/clone-offsets",
                self.clone_offsets,
                "Copy the offsets of another group to a group without members",
                {200: json_of(ResetView)},
                body={JSON: CloneRequest},
                errors=(
                    "invalid_group",
                    "invalid_topic",
                    "topic_not_found",
                    "group_not_found",
                    "group_has_members",
                    "group_is_popped",
                    "too_many_groups",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=of_group("reset"),
            ),
            Route(
                "DELETE",
                group,
                self.delete_group,
                "Delete an unused group, with its offsets, settings and retries",
                {204: {}},
                query=DeleteGroupQuery,
                errors=("invalid_group", "group_not_found", "group_has_members", "group_is_popped", *WRITE_ERRORS),
                redirects=True,
                access=of_group("delete"),
            ),
        ]

    def start(self) -> None:
        self._expiry.start()

    async def stop(self) -> None:
        await self._expiry.stop()

    async def join(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, core, _join_decoder)
        for topic in body.topics:
            check_topic(topic)
        core.access.require(request, "read", *map(permissions.topic, body.topics))
        filters = topic_filters(body)
        member_id = core.new_id() if body.member_id is None else body.member_id
        if member_id in (core.state.member_ids(group) or ()):
            self._sessions.heard(group, member_id)  # an expiry under way must not follow this join
        command = JoinGroup(group, member_id, body.client_id, body.topics, body.session_timeout_ms, filters)
        require_queues(core, body.topics)
        async with self._rebalance(core.state.rebalance_size(group, body.topics)):
            applied = await core.propose(command)
        joined: Joined = applied.result
        self._sessions.heard(group, member_id, joined=True)
        membership = Membership(
            joined.generation, joined.assignment, joined.session_timeout_ms, core.state.group_pause(group)
        )
        return json_response(self._view(member_id, membership), 201)

    async def heartbeat(self, request: web.Request) -> web.Response:
        core, loop = self._core, asyncio.get_running_loop()
        core.require_leader()
        group = check_group(request.match_info["group"])
        member_id = _path_member(request)
        body = await read_json(request, core, _heartbeat_decoder, optional=True)
        member = self._member(group, member_id)
        # The time of arrival counts: a member that is gone must not live on in a request that waits.
        heartbeat = self._sessions.heard(group, member_id)
        ends_s = loop.time() + body.wait_ms / 1000
        is_behind = member.generation != body.generation and core.waiters.rests(group)
        try:
            while (is_behind or body.knows(member)) and (left_s := ends_s - loop.time()) > 0:
                with core.holdings.long_poll(keeps_session=True):
                    if not await core.waiters.wait_group(group, left_s, is_behind=is_behind):
                        break
                is_behind = False
                core.require_leader()
                member = self._member(group, member_id)
        except asyncio.CancelledError:  # the connection broke
            self._sessions.broke(group, member_id, heartbeat)
            raise
        return json_response(self._view(member_id, member))

    def _view(self, member_id: str, member: Membership) -> MembershipView:
        return MembershipView(
            member_id=member_id,
            generation=member.generation,
            assignment=queue_views(member.assignment),
            session_timeout_ms=member.session_timeout_ms,
            paused=told_pause(self._core, member.pause),
        )

    def _member(self, group: str, member_id: str) -> Membership:
        try:
            member = self._core.state.membership(group, member_id)
        except Refused:
            raise no_group(group) from None
        if member is None:
            detail = f"member {member_id} is not in group {group}: join again"
            raise Refused(MEMBER_NOT_FOUND, detail, {"generation": self._core.state.generation(group)})
        return member

    async def leave(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        member_id = _path_member(request)
        async with self._rebalance(self._core.state.rebalance_size(group)):
            await self._core.propose(LeaveGroup(group, member_id))
        self._sessions.forget(group, member_id)
        return web.Response(status=204)

    @asynccontextmanager
    async def _rebalance(self, size: int) -> AsyncIterator[None]:
        """Hold the turn to rebalance a group, whose members and queues number `size`."""
        core = self._core
        charged = core.costly() if size > REBALANCED_AT_ONCE else nullcontext()
        async with charged, core.turn(core.rebalance_turns, ALL_GROUPS, size):
            yield

    async def commit_offsets(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _offsets_decoder)
        if (body.member_id is None) != (body.generation is None):
            raise Problem("invalid_request", "member_id and generation: give both or neither")
        offsets = tuple(QueueOffset(check_topic(each.topic), each.queue, each.offset) for each in body.offsets)
        self._core.access.require(request, "read", *(permissions.topic(each.topic) for each in offsets))
        commit = CommitOffsets(group, body.member_id, body.generation, offsets, body.begins)
        check_commit(commit, self._core.state)
        applied = await self._core.propose(commit)
        committed: OffsetsCommitted = applied.result
        return json_response(CommittedOffsetsView(offsets=committed_offsets(committed.offsets)))

    async def reset(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _reset_decoder)
        self._core.access.require(request, "describe", permissions.topic(check_topic(body.topic)))
        if self._core.state.group_head(group) is None:
            raise no_group(group)
        applied = await self._core.propose(ResetOffsets(group, await self._reset_targets(body)), by=request)
        reset: OffsetsReset = applied.result
        return json_response(ResetView(offsets=committed_offsets(reset.offsets), generation=reset.generation))

    async def clone_offsets(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _clone_decoder)
        topic = None if body.topic is None else check_topic(body.topic)
        self._core.access.require(request, "describe", permissions.group(check_group(body.source)))
        async with self._core.turn(self._clone_turns, group, 1):
            cloned = await clone_offsets(self._core, CloneOffsets(group, body.source, topic), request)
        pace, encoded = Pace(), []
        for offsets in cloned.offsets:
            encoded.append(json_items(committed_offsets(offsets)))
            await pace.step()
        listed = as_encoded(CommittedOffset, encoded)
        return json_response(ResetView(offsets=listed, generation=cloned.generation))

    async def delete_group(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        query = request[EXPLAINED] = parse_query(DeleteGroupQuery, request.query)
        command = DeleteGroup(group, query.with_dead_letters, query.operator, query.reason)
        applied = await self._core.propose(command, by=request)
        deleted: GroupDeleted = applied.result
        logger.info(
            "group %s was deleted by %r, reason %r, with %s", group, query.operator, query.reason, deleted.topics
        )
        return web.Response(status=204)

    async def _reset_targets(self, body: ResetRequest) -> tuple[QueueOffset, ...]:
        """Return the offsets to set in the queues of the topic, at most QUEUES_MAX of them.

        Raises Problem invalid_request, and Refused when the topic or the queue does not exist, or the topic is deleted
        meanwhile: in a new one of its name the same offsets are other messages.
        """
        topic, state = check_topic(body.topic), self._core.state
        topic_id = state.topic_id(topic)
        if sum(target is not None for target in (body.to, body.offset, body.timestamp_ms)) != 1:
            raise Problem("invalid_request", "give exactly one of to, offset and timestamp_ms")
        ranges = state.queue_ranges(topic)
        if body.queue is not None:
            state.max_offset(topic, body.queue)  # raises Refused unless the queue exists
            ranges = [ranges[body.queue]]
        targets, pace = [], Pace()
        for queue_range in ranges:
            if body.offset is not None:
                offset = body.offset
            elif body.timestamp_ms is not None:
                offset, _ = state.offset_at(topic, queue_range.queue, body.timestamp_ms)
            else:
                offset = queue_range.min_offset if body.to == "earliest" else queue_range.max_offset
            targets.append(QueueOffset(topic, queue_range.queue, offset))
            await pace.step()
            if state.topic_id(topic) != topic_id:
                raise Refused(TOPIC_NOT_FOUND, f"topic {topic} was deleted meanwhile; choose again", {"topic": topic})
        return tuple(targets)


def _path_member(request: web.Request) -> str:
    member_id = request.match_info["member_id"]
    if not ID_REGEX.fullmatch(member_id):
        raise Problem("invalid_request", "member id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return member_id
