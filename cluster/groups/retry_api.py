"""Handles messages that a group could not process: giving back, dead letters, and the settings of both."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.groups.api import OffsetEntry
from cluster.http.app import json_response, read_json
from cluster.http.requests import Explained, Id, Natural, Request, check_group, check_topic, parse_query
from cluster.http.responses import Response, as_view, or_unset
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import (
    DELAY_MAX_MS,
    GIVE_BACK_MESSAGES_MAX,
    GIVE_BACK_REASON_BYTES_MAX,
    LIST_MAX,
    PULL_BYTES_MAX,
    RETRY_DELAYS_MAX,
    RETRY_MAX_ATTEMPTS_MAX,
)
from cluster.messages.block_reader import READ_ERRORS, BlockReader
from cluster.messages.message_views import MessageView
from cluster.messages.pull_pages import MessagePage, PullQuery
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import of_group
from store.commands.groups import (
    DeadLettersReplayed,
    GiveBack,
    GiveBackOutcome,
    GivenBack,
    GroupPut,
    MessagesGivenBack,
    PutGroup,
    ReplayDeadLetters,
)
from store.errors import GROUP_NOT_FOUND, OFFSET_OUT_OF_RANGE, Refused
from store.messages.topics import DLQ_PREFIX


class GivenBackEntry(OffsetEntry, kw_only=True, frozen=True):
    reason: Annotated[str, Meta(max_length=GIVE_BACK_REASON_BYTES_MAX)] = ""
    delay_ms: Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)] | None = None


class GiveBackRequest(Request, kw_only=True, frozen=True):
    member_id: Id | None = None
    generation: Natural | None = None
    messages: Annotated[tuple[GivenBackEntry, ...], Meta(min_length=1, max_length=GIVE_BACK_MESSAGES_MAX)]


class GroupSettings(Request, kw_only=True, frozen=True):
    retry_max_attempts: Annotated[int, Meta(ge=0, le=RETRY_MAX_ATTEMPTS_MAX)] | None = None
    retry_delays_ms: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, le=DELAY_MAX_MS)], ...], Meta(min_length=1, max_length=RETRY_DELAYS_MAX)
        ]
        | None
    ) = None


class ReplayRequest(Explained, kw_only=True, frozen=True):
    offsets: Annotated[tuple[Natural, ...], Meta(min_length=1, max_length=GIVE_BACK_MESSAGES_MAX)]


class DeadLettersQuery(Request, kw_only=True, frozen=True):
    offset: Natural = 0
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100


class DeadLetterView(MessageView, kw_only=True, frozen=True):
    """A dead letter. `replayed_at_ms` is the time at which its group got it once more; absent if it never did."""

    replayed_at_ms: int | UnsetType = UNSET


class DeadLettersView(Response, kw_only=True, frozen=True):
    messages: list[DeadLetterView]
    next_offset: int
    max_offset: int


class GroupSettingsView(Response, kw_only=True, frozen=True):
    group: str
    retry_max_attempts: int
    retry_delays_ms: tuple[int, ...]


class GivenBackView(Response, kw_only=True, frozen=True):
    """Outcome for one message. `due_at_ms` is the time at which the group gets it again; absent for a dead letter."""

    topic: str
    queue: int
    offset: int
    attempt: int
    outcome: GiveBackOutcome
    due_at_ms: int | UnsetType = UNSET


class GiveBackView(Response, kw_only=True, frozen=True):
    results: list[GivenBackView]
    generation: int


class ReplayedView(Response, kw_only=True, frozen=True):
    offset: int
    replayed_at_ms: int
    duplicate: bool


class ReplayView(Response, kw_only=True, frozen=True):
    results: list[ReplayedView]


_give_back_decoder: Final = msgspec.json.Decoder(GiveBackRequest)
_settings_decoder: Final = msgspec.json.Decoder(GroupSettings)
_replay_decoder: Final = msgspec.json.Decoder(ReplayRequest)


class RetryApi:
    """Handles PUT /v1/groups/{group}, and the group's retries and dead letters."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        group, dead_letters = "/v1/groups/{group}", "/v1/groups/{group}/dead-letters"
        settings = json_of(GroupSettingsView)
        return [
            Route(
                "PUT",
                group,
                self.put_group,
                "Create a group, or change its settings",
                {201: settings, 200: settings},
                body={JSON: GroupSettings},
                errors=("invalid_group", "too_many_groups", *WRITE_ERRORS),
                redirects=True,
                access=of_group("alter"),
            ),
            Route(
                "POST",
                f"{group}/retries",
                self.give_back,
                "Give messages back that could not be processed, fenced by member and generation",
                {200: json_of(GiveBackView)},
                body={JSON: GiveBackRequest},
                errors=(
                    "invalid_group",
                    "invalid_topic",
                    "topic_not_found",
                    "queue_not_found",
                    "offset_out_of_range",
                    "group_not_found",
                    "member_not_found",
                    "stale_generation",
                    "not_assigned",
                    "offset_moves_back",
                    "group_has_members",
                    "group_is_popped",
                    "too_many_groups",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "GET",
                dead_letters,
                self.dead_letters,
                "List dead letters with their history, from an offset on",
                {200: json_of(DeadLettersView)},
                query=DeadLettersQuery,
                errors=("invalid_group", "group_not_found", "offset_out_of_range", *READ_ERRORS, "no_leader"),
                redirects=True,
                access=of_group("read"),
            ),
            Route(
                "POST",
                f"{dead_letters}/replay",
                self.replay,
                "Give dead letters to the group once more",
                {200: json_of(ReplayView)},
                body={JSON: ReplayRequest},
                errors=("invalid_group", "group_not_found", "topic_not_found", "offset_out_of_range", *WRITE_ERRORS),
                redirects=True,
                access=of_group("reset"),
            ),
        ]

    async def put_group(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _settings_decoder)
        applied = await self._core.propose(PutGroup(group, body.retry_max_attempts, body.retry_delays_ms), by=request)
        put: GroupPut = applied.result
        return json_response(as_view(GroupSettingsView, put), 201 if put.created else 200)

    async def give_back(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _give_back_decoder)
        if (body.member_id is None) != (body.generation is None):
            raise Problem("invalid_request", "member_id and generation: give both or neither")
        messages = tuple(
            GivenBack(check_topic(each.topic), each.queue, each.offset, each.reason, each.delay_ms)
            for each in body.messages
        )
        self._core.access.require(request, "read", *(permissions.topic(each.topic) for each in messages))
        applied = await self._core.propose(GiveBack(group, body.member_id, body.generation, messages))
        given: MessagesGivenBack = applied.result
        for each in given.messages:
            if each.outcome != "already_given_back":
                self._core.metrics.given_back[each.outcome].inc()
        results = [
            GivenBackView(
                topic=each.topic,
                queue=each.queue,
                offset=each.offset,
                attempt=each.attempt,
                outcome=each.outcome,
                due_at_ms=or_unset(each.due_at_ms),
            )
            for each in given.messages
        ]
        return json_response(GiveBackView(results=results, generation=given.generation))

    async def dead_letters(self, request: web.Request) -> web.Response:
        """Answer with a page of dead letters. Only the leader answers: it knows which of them were replayed."""
        core = self._core
        core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(DeadLettersQuery, request.query)
        if core.state.group_head(group) is None:
            raise Refused(GROUP_NOT_FOUND, f"group {group} does not exist; `keelmq group list` lists the groups")
        topic = DLQ_PREFIX + group
        max_offset = core.state.max_offset(topic, 0) if core.state.topic(topic) is not None else 0
        if query.offset > max_offset:
            detail = f"the dead letters of {group} end at {max_offset}, offset {query.offset} is beyond it"
            raise Refused(OFFSET_OUT_OF_RANGE, detail, {"topic": topic, "queue": 0, "max_offset": max_offset})
        core.response_budget.require_room()
        # Those before are gone: if all are, the page goes on at the end, and the caller with it.
        offset = max(query.offset, core.state.min_offset(topic, 0)) if max_offset else 0
        page = MessagePage(topic, 0, PullQuery(offset=offset, max_messages=query.limit), None)
        reader, pace = BlockReader(core), Pace()
        rows = core.state.rows(topic, 0, offset, query.limit, PULL_BYTES_MAX) if max_offset else []
        for at, row in enumerate(rows):
            await reader.load(rows, at)
            pace.exclude(reader.take_waited_s())
            if not await page.take(row, reader, pace) or pace.is_over or reader.is_spent:
                break
        messages = []
        for message in page.messages:
            assert message.offset is not UNSET
            replayed_at_ms = or_unset(core.state.replayed_at_ms(group, message.offset))
            messages.append(DeadLetterView(**msgspec.structs.asdict(message), replayed_at_ms=replayed_at_ms))
        return json_response(DeadLettersView(messages=messages, next_offset=page.next_offset, max_offset=max_offset))

    async def replay(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _replay_decoder)
        applied = await self._core.propose(ReplayDeadLetters(group, body.offsets), by=request)
        replayed: DeadLettersReplayed = applied.result
        self._core.metrics.replayed.inc(sum(not each.duplicate for each in replayed.messages))
        return json_response(ReplayView(results=[as_view(ReplayedView, each) for each in replayed.messages]))
