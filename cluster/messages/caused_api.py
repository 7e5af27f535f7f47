"""Finds what a message caused: the messages that were sent while a handler processed it."""

import re
from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from cluster.budgets.connections import address_of_request
from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import Request, check_message_id, check_topic, parse_query
from cluster.http.responses import Response
from cluster.http.routes import Route, json_of
from cluster.limits import LIST_MAX
from cluster.messages.block_reader import READ_ERRORS
from cluster.messages.caused_search import CausedMessageView, CausedSearch, Place
from cluster.messages.message_finder import MessageFinder, message_not_found
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import BY_HANDLER
from store.commands.views import Row
from store.log.errors import LogTruncated
from store.state.message_search import MessagePlace

SEARCH_TURN_BYTES: Final = 4 * 1024 * 1024
"""Bytes that a search counts for in the turns of log pages: four of an address are under way at a time."""
_CURSOR: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,9})")


class CausedQuery(Request, kw_only=True, frozen=True):
    topic: str
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class CausedPageView(Response, kw_only=True, frozen=True):
    """A page of a search through the log. It looked through `looked_bytes` from the entry `from_index` on; `left_bytes`
    are left up to `applied_index`, the last entry that this node has applied. `log_removed` is true when entries behind
    the cause are removed from the log. `topics_left_out` is true when the caller may not read all topics: others
    were left out, whether they hold such messages or not. `next` is where to go on; null at the end.
    """

    message_id: str
    messages: list[CausedMessageView]
    topics_left_out: bool
    from_index: int
    applied_index: int
    looked_bytes: int
    left_bytes: int
    log_removed: bool
    next: str | None


class CausedApi:
    """Handles GET /v1/messages/{message_id}/caused. Any node answers, with the entries that it has applied."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/messages/{message_id}/caused",
                self.search,
                "Look through a part of the log for the messages that a message caused",
                {200: json_of(CausedPageView)},
                query=CausedQuery,
                errors=("invalid_topic", "topic_not_found", "message_not_found", *READ_ERRORS),
                access=BY_HANDLER,
            ),
        ]

    async def search(self, request: web.Request) -> web.Response:
        core, message_id = self._core, check_message_id(request.match_info["message_id"])
        query = parse_query(CausedQuery, request.query)
        topic = check_topic(query.topic)
        core.access.require(request, "read", permissions.topic(topic))
        core.response_budget.require_room()
        begin = None if query.after is None else _parse_cursor(query.after)
        async with core.turn(core.log_page_turns, address_of_request(request), SEARCH_TURN_BYTES):
            if begin is None:
                places = [place async for place, _ in MessageFinder(core).by_id(topic, message_id)]
                if not places:
                    raise message_not_found(message_id)
                begin = Place(min([await self._index_of(place) for place in places]), 0)
            search = CausedSearch(
                core,
                topic,
                message_id,
                query.limit,
                lambda name: core.access.may(request, "read", permissions.topic(name)),
            )
            applied_index = core.raft.applied_index
            following = await search.look(begin, applied_index)
        left_bytes = 0 if following is None else core.reads.bytes_from(max(following.index, core.log.first_index))
        return json_response(
            CausedPageView(
                message_id=message_id,
                messages=search.found,
                topics_left_out=not core.access.may_all(request, "read", "topic"),
                from_index=begin.index,
                applied_index=applied_index,
                looked_bytes=search.looked_bytes,
                left_bytes=left_bytes,
                log_removed=search.is_cut,
                next=None if following is None else f"{following.index}-{following.passed}",
            )
        )

    async def _index_of(self, place: MessagePlace) -> int:
        """Return the index of the entry in which the message was sent, or of a later one that tells of it."""
        block = place.block
        if block is not None and not (isinstance(block, Row) and block.inline is not None):
            try:
                # A handler may have had it before it got its place: as a half in a check, or before it was given back.
                return await self._core.reads.index_at(block.position) or place.raft_index
            except LogTruncated:  # it has expired just now
                pass
        return place.raft_index


def _parse_cursor(cursor: str) -> Place:
    parts = _CURSOR.fullmatch(cursor)
    if parts is None:
        raise Problem("invalid_request", f"after: {cursor[:40]!r} is not the `next` of a page")
    return Place(*map(int, parts.groups()))
