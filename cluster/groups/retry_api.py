"""What a group could not process: giving messages back, its dead letters, and the settings of both."""

from typing import Final

import msgspec
from aiohttp import web
from msgspec import UNSET

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import (
    DeadLettersQuery,
    GiveBackRequest,
    GroupSettings,
    PullQuery,
    ReplayRequest,
    check_group,
    check_topic,
    parse_query,
)
from cluster.http.responses import (
    DeadLettersView,
    DeadLetterView,
    GiveBackView,
    GivenBackView,
    GroupSettingsView,
    ReplayedView,
    ReplayView,
    as_view,
    or_unset,
)
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import PULL_BYTES_MAX
from cluster.messages.block_reader import BlockReader
from cluster.messages.pull_pages import MessagePage
from cluster.problems import Problem
from store.commands.command import GiveBack, GivenBack, PutGroup, ReplayDeadLetters
from store.commands.results import DeadLettersReplayed, GroupPut, MessagesGivenBack
from store.errors import GROUP_NOT_FOUND, OFFSET_OUT_OF_RANGE, Refused
from store.messages.topics import DLQ_PREFIX

_give_back_decoder: Final = msgspec.json.Decoder(GiveBackRequest)
_settings_decoder: Final = msgspec.json.Decoder(GroupSettings)
_replay_decoder: Final = msgspec.json.Decoder(ReplayRequest)


class RetryApi:
    """PUT /v1/groups/{group}, and its retries and dead letters"""

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
            ),
            Route(
                "GET",
                dead_letters,
                self.dead_letters,
                "Dead letters with their history, from an offset on",
                {200: json_of(DeadLettersView)},
                query=DeadLettersQuery,
                errors=("invalid_group", "group_not_found", "offset_out_of_range", "overloaded", "no_leader"),
                redirects=True,
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
            ),
        ]

    async def put_group(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _settings_decoder)
        applied = await self._core.propose(PutGroup(group, body.retry_max_attempts, body.retry_delays_ms))
        put: GroupPut = applied.result
        return json_response(as_view(GroupSettingsView, put), 201 if put.created else 200)

    async def give_back(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _give_back_decoder)
        if (body.member_id is None) != (body.generation is None):
            raise Problem("invalid_request", "member_id and generation: both or neither")
        messages = tuple(
            GivenBack(check_topic(each.topic), each.queue, each.offset, each.reason, each.delay_ms)
            for each in body.messages
        )
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
        """Only the leader answers: it knows which of them were replayed."""
        core = self._core
        core.require_leader()
        group = check_group(request.match_info["group"])
        query = parse_query(DeadLettersQuery, request.query)
        if core.state.group(group) is None:
            raise Refused(GROUP_NOT_FOUND, f"group {group} does not exist")
        topic = DLQ_PREFIX + group
        max_offset = core.state.max_offset(topic, 0) if core.state.topic(topic) is not None else 0
        if query.offset > max_offset:
            detail = f"the dead letters of {group} end at {max_offset}, offset {query.offset} is beyond it"
            raise Refused(OFFSET_OUT_OF_RANGE, detail, {"topic": topic, "queue": 0, "max_offset": max_offset})
        core.response_budget.require_room()
        page = MessagePage(topic, 0, PullQuery(offset=query.offset, max_messages=query.limit), None)
        reader, pace = BlockReader(core), Pace()
        rows = core.state.rows(topic, 0, query.offset, query.limit, PULL_BYTES_MAX) if max_offset else []
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
        applied = await self._core.propose(ReplayDeadLetters(group, body.offsets))
        replayed: DeadLettersReplayed = applied.result
        self._core.metrics.replayed.inc(sum(not each.duplicate for each in replayed.messages))
        return json_response(ReplayView(results=[as_view(ReplayedView, each) for each in replayed.messages]))
