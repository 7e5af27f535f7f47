"""Consumer groups: joining, heartbeats, offsets. Membership and offsets are in the log; only heartbeats are not.

The leader expires members that fall silent. A new leader knows no heartbeats, so it gives every member a whole session
timeout before it may expire it: a failover is not a rebalance, nor is a hand-over that nobody took.
"""

import asyncio
import logging
from typing import Final

import msgspec
from aiohttp import web

from cluster.api import json_response, read_json
from cluster.core import Core
from cluster.limits import ID_REGEX
from cluster.problems import Problem
from cluster.requests import (
    CloneRequest,
    GroupOffsetsQuery,
    HeartbeatRequest,
    JoinRequest,
    OffsetsRequest,
    ResetRequest,
    check_group,
    check_topic,
    parse_query,
)
from cluster.responses import (
    AssignedQueueView,
    CommittedOffsetsView,
    GroupDetail,
    GroupMemberView,
    GroupOffsetsView,
    GroupOffsetView,
    GroupsView,
    MembershipView,
    ResetView,
    as_view,
    committed_offsets,
)
from cluster.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.sessions import Session, Sessions
from cluster.subscriptions import topic_filters
from raft.errors import RaftError
from store.command import CloneOffsets, CommitOffsets, JoinGroup, LeaveGroup, QueueOffset, ResetOffsets
from store.errors import GROUP_NOT_FOUND, MEMBER_NOT_FOUND, Refused
from store.log_errors import LogError
from store.results import AssignedQueue, GroupOffset, GroupView, Joined, MemberView, OffsetsCommitted, OffsetsReset

logger = logging.getLogger(__name__)

EXPIRY_INTERVAL_S: Final = 0.5

_join_decoder: Final = msgspec.json.Decoder(JoinRequest)
_heartbeat_decoder: Final = msgspec.json.Decoder(HeartbeatRequest)
_offsets_decoder: Final = msgspec.json.Decoder(OffsetsRequest)
_clone_decoder: Final = msgspec.json.Decoder(CloneRequest)
_reset_decoder: Final = msgspec.json.Decoder(ResetRequest)


class GroupCoordinator:
    """/v1/groups, and the expiry of members on the leader."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._sessions: Sessions | None = None
        self._task: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        return [*self._member_routes(), *self._offset_routes()]

    def _member_routes(self) -> list[Route]:
        group, members = "/v1/groups/{group}", "/v1/groups/{group}/members"
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
                    *WRITE_ERRORS,
                ),
                redirects=True,
            ),
            Route(
                "POST",
                f"{members}/{{member_id}}/heartbeat",
                self.heartbeat,
                "Keep the session; a changed generation means: look at the assignment",
                {200: json_of(MembershipView)},
                body={JSON: HeartbeatRequest},
                body_optional=True,
                errors=(*member_errors, "no_leader", "request_timeout", "request_too_large"),
                redirects=True,
            ),
            Route(
                "DELETE",
                f"{members}/{{member_id}}",
                self.leave,
                "Leave the group",
                {204: {}},
                errors=(*member_errors, *WRITE_ERRORS),
                redirects=True,
            ),
            Route("GET", "/v1/groups", self.list_all, "All groups", {200: json_of(GroupsView)}),
            Route(
                "GET",
                group,
                self.show,
                "Members, generation and offsets of a group",
                {200: json_of(GroupDetail)},
                errors=("invalid_group", "group_not_found", "no_leader"),
                redirects=True,
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
                    "group_has_members",
                    "group_is_popped",
                    *WRITE_ERRORS,
                ),
                redirects=True,
            ),
            Route(
                "GET",
                f"{group}/offsets",
                self.offsets,
                "Committed offsets and lag",
                {200: json_of(GroupOffsetsView)},
                query=GroupOffsetsQuery,
                errors=("invalid_group", "invalid_topic", "group_not_found", "no_leader"),
                redirects=True,
            ),
            Route(
                "POST",
                f"{group}/reset",
                self.reset,
                "Set offsets by position or time, backwards too; running members refetch",
                {200: json_of(ResetView)},
                body={JSON: ResetRequest},
                errors=(*offset_errors, "group_not_found", *WRITE_ERRORS),
                redirects=True,
            ),
            Route(
                "POST",
                f"{group}/clone-offsets",
                self.clone_offsets,
                "Set the offsets of a group without members to those of another",
                {200: json_of(ResetView)},
                body={JSON: CloneRequest},
                errors=(
                    "invalid_group",
                    "invalid_topic",
                    "topic_not_found",
                    "group_not_found",
                    "group_has_members",
                    "group_is_popped",
                    *WRITE_ERRORS,
                ),
                redirects=True,
            ),
        ]

    def start(self) -> None:
        self._sessions = Sessions(lambda: self._core.steady_ms() / 1000)
        self._task = asyncio.create_task(self._expire_for_ever(), name="group-expiry")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def join(self, request: web.Request) -> web.Response:
        core = self._core
        core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, core, _join_decoder)
        for topic in body.topics:
            check_topic(topic)
        filters = topic_filters(body)
        member_id = core.new_id() if body.member_id is None else body.member_id
        applied = await core.propose(
            JoinGroup(group, member_id, body.client_id, body.topics, body.session_timeout_ms, filters)
        )
        joined: Joined = applied.result
        self._heard(group, member_id)
        view = _membership(member_id, joined.generation, joined.assignment, joined.session_timeout_ms)
        return json_response(view, 201)

    async def heartbeat(self, request: web.Request) -> web.Response:
        core, loop = self._core, asyncio.get_running_loop()
        core.require_leader()
        group = check_group(request.match_info["group"])
        member_id = _path_member(request)
        body = await read_json(request, core, _heartbeat_decoder, optional=True)
        view, member = self._member(group, member_id)
        self._heard(group, member_id)  # when it arrived: a member that is gone must not live on in a request that waits
        ends_s = loop.time() + body.wait_ms / 1000
        while view.generation == body.generation and (left_s := ends_s - loop.time()) > 0:
            if not await core.waiters.wait_groups(left_s):
                break
            core.require_leader()
            view, member = self._member(group, member_id)
        return json_response(_membership(member_id, view.generation, member.assignment, member.session_timeout_ms))

    def _member(self, group: str, member_id: str) -> tuple[GroupView, MemberView]:
        view = self._group(group)
        member = next((member for member in view.members if member.member_id == member_id), None)
        if member is None:
            detail = f"member {member_id} is not in group {group}: join again"
            raise Refused(MEMBER_NOT_FOUND, detail, {"generation": view.generation})
        return view, member

    async def leave(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        member_id = _path_member(request)
        await self._core.propose(LeaveGroup(group, member_id))
        if self._sessions is not None:
            self._sessions.forget(group, member_id)
        return web.Response(status=204)

    async def list_all(self, request: web.Request) -> web.Response:
        groups = [self._detail(view) for view in self._core.state.groups()]
        return json_response(GroupsView(groups=groups))

    async def show(self, request: web.Request) -> web.Response:
        """Only the leader answers, like `offsets`."""
        self._core.require_leader()
        return json_response(self._detail(self._group(check_group(request.match_info["group"]))))

    async def commit_offsets(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _offsets_decoder)
        if (body.member_id is None) != (body.generation is None):
            raise Problem("invalid_request", "member_id and generation: both or neither")
        offsets = tuple(QueueOffset(check_topic(each.topic), each.queue, each.offset) for each in body.offsets)
        applied = await self._core.propose(CommitOffsets(group, body.member_id, body.generation, offsets, body.begins))
        committed: OffsetsCommitted = applied.result
        return json_response(CommittedOffsetsView(offsets=committed_offsets(committed.offsets)))

    async def offsets(self, request: web.Request) -> web.Response:
        """Only the leader answers: to a consumer, an offset that a replica lacks yet is one that nobody committed, and
        it would begin at the end of the queue."""
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(GroupOffsetsQuery, request.query)
        topic = None if query.topic is None else check_topic(query.topic)
        found = self._core.state.offsets(group, topic)
        if found is None:
            raise _no_group(group)
        return json_response(GroupOffsetsView(offsets=_offset_views(found)))

    async def reset(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _reset_decoder)
        self._group(group)
        applied = await self._core.propose(ResetOffsets(group, self._reset_targets(body)))
        reset: OffsetsReset = applied.result
        return json_response(ResetView(offsets=committed_offsets(reset.offsets), generation=reset.generation))

    async def clone_offsets(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _clone_decoder)
        topic = None if body.topic is None else check_topic(body.topic)
        applied = await self._core.propose(CloneOffsets(group, check_group(body.source), topic))
        cloned: OffsetsReset = applied.result
        return json_response(ResetView(offsets=committed_offsets(cloned.offsets), generation=cloned.generation))

    def _reset_targets(self, body: ResetRequest) -> tuple[QueueOffset, ...]:
        """At most QUEUES_MAX: a reset is about one topic."""
        topic, state = check_topic(body.topic), self._core.state
        if sum(target is not None for target in (body.to, body.offset, body.timestamp_ms)) != 1:
            raise Problem("invalid_request", "exactly one of to, offset and timestamp_ms")
        ranges = state.queue_ranges(topic)
        if body.queue is not None:
            state.max_offset(topic, body.queue)  # Refused unless the queue exists
            ranges = [ranges[body.queue]]
        targets = []
        for queue_range in ranges:
            if body.offset is not None:
                offset = body.offset
            elif body.timestamp_ms is not None:
                offset, _ = state.offset_at(topic, queue_range.queue, body.timestamp_ms)
            else:
                offset = queue_range.min_offset if body.to == "earliest" else queue_range.max_offset
            targets.append(QueueOffset(topic, queue_range.queue, offset))
        return tuple(targets)

    def _heard(self, group: str, member_id: str) -> None:
        if self._sessions is not None:
            self._sessions.heard(group, member_id)

    def _group(self, name: str) -> GroupView:
        view = self._core.state.group(name)
        if view is None:
            raise _no_group(name)
        return view

    def _detail(self, view: GroupView) -> GroupDetail:
        return GroupDetail(
            group=view.group,
            generation=view.generation,
            topics=view.topics,
            tags={each.topic: each.expression for each in view.filters if each.type == "tags"},
            filters={each.topic: each.expression for each in view.filters if each.type == "sql"},
            members=[
                GroupMemberView(
                    member_id=member.member_id,
                    client_id=member.client_id,
                    session_timeout_ms=member.session_timeout_ms,
                    joined_at_ms=member.joined_at_ms,
                    assignment=_queue_views(member.assignment),
                )
                for member in view.members
            ],
            offsets=_offset_views(self._core.state.offsets(view.group) or []),
            retry_max_attempts=view.retry_max_attempts,
            retry_delays_ms=view.retry_delays_ms,
        )

    async def _expire_for_ever(self) -> None:
        assert self._sessions is not None
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            if not self._core.is_leader():
                self._sessions.lead_lost()
                continue
            silent = self._sessions.expired(self._core.raft.term, self._core.state.groups())
            # Together: one by one, each with a round through the log, they could come faster than they go.
            await asyncio.gather(*map(self._expire, silent))

    async def _expire(self, session: Session) -> None:
        assert self._sessions is not None
        if not self._sessions.is_silent(self._core.raft.term, session):
            return
        try:
            await self._core.propose(LeaveGroup(session.group, session.member_id, "expired"))
        except (RaftError, Refused, LogError, Problem) as error:
            logger.warning("member %s of %s could not be expired: %s", session.member_id, session.group, error)
        else:
            self._core.metrics.expired_members.inc()
            logger.info("member %s of group %s expired", session.member_id, session.group)


def _membership(
    member_id: str, generation: int, assignment: tuple[AssignedQueue, ...], session_timeout_ms: int
) -> MembershipView:
    return MembershipView(
        member_id=member_id,
        generation=generation,
        assignment=_queue_views(assignment),
        session_timeout_ms=session_timeout_ms,
    )


def _queue_views(assignment: tuple[AssignedQueue, ...]) -> tuple[AssignedQueueView, ...]:
    return tuple(AssignedQueueView(topic=each.topic, queue=each.queue) for each in assignment)


def _offset_views(offsets: list[GroupOffset]) -> list[GroupOffsetView]:
    return [as_view(GroupOffsetView, each) for each in offsets]


def _no_group(group: str) -> Refused:
    return Refused(GROUP_NOT_FOUND, f"group {group} does not exist: a member's first join or commit creates it")


def _path_member(request: web.Request) -> str:
    member_id = request.match_info["member_id"]
    if not ID_REGEX.fullmatch(member_id):
        raise Problem("invalid_request", "member id: 1 to 64 characters of A-Z a-z 0-9 _ -")
    return member_id
