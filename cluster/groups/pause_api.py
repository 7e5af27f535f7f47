"""Pauses and resumes groups over HTTP (docs/decisions.md, 83). Where messages are handed out, the state is asked."""

import logging
from typing import Final

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Explained, check_group
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Handler, Route, json_of
from cluster.security.access import of_group
from store.commands.groups import GroupPause, GroupPauseSet, PauseGroup
from store.features import FEATURES

logger = logging.getLogger(__name__)


class PauseRequest(Explained, kw_only=True, frozen=True):
    """Names who pauses or resumes the group, and why; kept in the log, too."""


class PauseView(Response, kw_only=True, frozen=True):
    """Why a group is handed out nothing. `principal` is the authenticated one, absent without authentication."""

    since_ms: int
    operator: str
    reason: str
    principal: str | UnsetType = UNSET


class GroupPauseView(Response, kw_only=True, frozen=True):
    """The pause in force, null without one; `changed` is false when the group was as wanted already."""

    group: str
    paused: PauseView | None
    changed: bool


def pause_view(pause: GroupPause | None) -> PauseView | None:
    if pause is None:
        return None
    principal = UNSET if pause.principal is None else pause.principal
    return PauseView(since_ms=pause.since_ms, operator=pause.operator, reason=pause.reason, principal=principal)


def told_pause(core: Core, pause: GroupPause | None) -> PauseView | UnsetType | None:
    """Return the view of its group's pause that a member gets: null when it is not paused, and UNSET below the feature
    level of pauses. From the first answer with it on, a member knows that every node takes the fields that belong to
    it.
    """
    return pause_view(pause) if FEATURES.knows("PauseGroup", core.state.feature_level) else UNSET


_decoder: Final = msgspec.json.Decoder(PauseRequest)


class PauseApi:
    """Handles POST /v1/groups/{group}/pause and …/resume."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            self._route("pause", self.pause, "Hand out nothing to the group until it is resumed"),
            self._route("resume", self.resume, "Go on handing out to the group from where it was paused"),
        ]

    def _route(self, verb: str, handler: Handler, summary: str) -> Route:
        return Route(
            "POST",
            f"/v1/groups/{{group}}/{verb}",
            handler,
            summary,
            {200: json_of(GroupPauseView)},
            body={JSON: PauseRequest},
            body_optional=True,
            errors=("invalid_group", "group_not_found", *WRITE_ERRORS),
            redirects=True,
            access=of_group("alter"),
        )

    async def pause(self, request: web.Request) -> web.Response:
        return await self._turn(request, paused=True)

    async def resume(self, request: web.Request) -> web.Response:
        return await self._turn(request, paused=False)

    async def _turn(self, request: web.Request, *, paused: bool) -> web.Response:
        self._core.require_leader()
        group = check_group(request.match_info["group"])
        body = await read_json(request, self._core, _decoder, optional=True)
        applied = await self._core.propose(PauseGroup(group, paused, body.operator, body.reason), by=request)
        done: GroupPauseSet = applied.result
        if done.changed:
            turned = "paused" if paused else "resumed"
            logger.warning("group %s was %s by %r, reason %r", group, turned, body.operator, body.reason)
        return json_response(GroupPauseView(group=group, paused=pause_view(done.pause), changed=done.changed))
