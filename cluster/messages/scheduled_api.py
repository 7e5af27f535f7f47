"""Lists and cancels scheduled messages, which are not due yet."""

from typing import Annotated

from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import EXPLAINED, Explained, Request, check_message_id, check_topic, parse_query
from cluster.http.responses import Response
from cluster.http.routes import WRITE_ERRORS, Route, json_of
from cluster.limits import LIST_MAX
from cluster.security.access import of_topic
from store.commands.messages import CancelScheduled
from store.commands.views import ScheduledMessage


class ScheduledQuery(Request, kw_only=True, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class ScheduledMessageView(Response, kw_only=True, frozen=True):
    """A scheduled message, which is not due yet."""

    message_id: str
    queue: int
    deliver_at_ms: int
    scheduled_at_ms: int
    transaction_id: str | UnsetType = UNSET


class ScheduledView(Response, kw_only=True, frozen=True):
    messages: list[ScheduledMessageView]
    next: str | None


class ScheduledApi:
    """Handles /v1/topics/{topic}/scheduled."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        scheduled = "/v1/topics/{topic}/scheduled"
        return [
            Route(
                "GET",
                scheduled,
                self.list_all,
                "List scheduled messages, the next one first",
                {200: json_of(ScheduledView)},
                query=ScheduledQuery,
                errors=("invalid_topic", "topic_not_found"),
                access=of_topic("read"),
            ),
            Route(
                "DELETE",
                f"{scheduled}/{{message_id}}",
                self.cancel,
                "Cancel a scheduled message",
                {204: {}},
                query=Explained,
                errors=("invalid_topic", "topic_not_found", "not_scheduled", *WRITE_ERRORS),
                redirects=True,
                access=of_topic("send", is_audited_with_reason=True),
            ),
        ]

    async def list_all(self, request: web.Request) -> web.Response:
        topic = check_topic(request.match_info["topic"])
        query = parse_query(ScheduledQuery, request.query)
        page = self._core.state.scheduled(topic, limit=query.limit, after=query.after)
        return json_response(ScheduledView(messages=[_view(message) for message in page.messages], next=page.next))

    async def cancel(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        topic = check_topic(request.match_info["topic"])
        message_id = check_message_id(request.match_info["message_id"])
        request[EXPLAINED] = parse_query(Explained, request.query)
        await self._core.propose(CancelScheduled(topic, message_id), by=request)
        return web.Response(status=204)


def _view(message: ScheduledMessage) -> ScheduledMessageView:
    return ScheduledMessageView(
        message_id=message.message_id,
        queue=message.queue,
        deliver_at_ms=message.deliver_at_ms,
        scheduled_at_ms=message.scheduled_at_ms,
        transaction_id=UNSET if message.transaction_id is None else message.transaction_id,
    )
