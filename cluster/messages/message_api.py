"""Finds messages by id, by key or by time, and shows the trace of a message."""

import contextlib
import functools
import re
from collections.abc import AsyncGenerator, Mapping
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.http.app import json_response
from cluster.http.requests import Natural, Request, check_message_id, check_topic, parse_query
from cluster.http.responses import or_unset
from cluster.http.routes import Route, json_of
from cluster.limits import (
    INT64_MAX,
    KEY_BYTES_MAX,
    LIST_MAX,
    MESSAGES_OF_ID_MAX,
    PULL_BYTES_MAX,
    QUEUES_MAX,
)
from cluster.messages.block_reader import READ_ERRORS, message_view
from cluster.messages.blocks import BlockMessage
from cluster.messages.half_topics import added_properties
from cluster.messages.message_finder import MessageFinder, Stored, message_not_found
from cluster.messages.message_views import (
    FoundMessagesView,
    FoundMessageView,
    MessageListView,
    MessageView,
    TraceEventView,
    TracesView,
    TraceView,
)
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import BY_HANDLER, of_topic
from store.commands.entry import decode_entry
from store.commands.messages import Produce
from store.log.errors import LogTruncated
from store.messages.message_index import KeyedMessage
from store.state.message_search import MessagePlace, TraceEvent, order_of


class MessagesQuery(Request, kw_only=True, frozen=True):
    key: Annotated[str, Meta(min_length=1, max_length=KEY_BYTES_MAX)] | None = None
    from_ms: Natural = 0
    to_ms: Natural | None = None
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = 100
    after: str | None = None


class MessageIdQuery(Request, kw_only=True, frozen=True):
    topic: str | None = None


_CURSOR: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,5})-([0-9]{1,18})")


class MessageApi:
    """Handles GET /v1/messages/{message_id} and its trace, and GET /v1/topics/{topic}/messages."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/messages",
                self.list_some,
                "List messages with a key, or stored in a span of time, over all queues and in time order",
                {200: json_of(MessageListView)},
                query=MessagesQuery,
                errors=("invalid_topic", "topic_not_found", *READ_ERRORS),
                access=of_topic("read"),
            ),
            Route(
                "GET",
                "/v1/messages/{message_id}",
                self.show,
                "Show the messages with this id, visible or not",
                {200: json_of(FoundMessagesView)},
                query=MessageIdQuery,
                errors=("invalid_topic", "topic_not_found", "message_not_found", *READ_ERRORS),
                access=BY_HANDLER,
            ),
            Route(
                "GET",
                "/v1/messages/{message_id}/trace",
                self.trace,
                "List the events of the messages with this id, in order",
                {200: json_of(TracesView)},
                query=MessageIdQuery,
                errors=("invalid_topic", "topic_not_found", "message_not_found", *READ_ERRORS),
                access=BY_HANDLER,
            ),
        ]

    async def list_some(self, request: web.Request) -> web.Response:
        topic = check_topic(request.match_info["topic"])
        query = parse_query(MessagesQuery, request.query)
        begin = KeyedMessage(query.from_ms, 0, 0)
        if query.after is not None:
            begin = max(begin, _parse_cursor(query.after))
        end_ms = INT64_MAX if query.to_ms is None else query.to_ms
        self._core.response_budget.require_room()
        finder = MessageFinder(self._core)
        added = added_properties(self._core.state, topic)
        messages: list[MessageView] = []
        after = None
        if query.key is None:
            found = finder.by_time(topic, begin, end_ms)
        else:
            found = finder.by_key(topic, query.key, begin, end_ms)
        async with contextlib.aclosing(found):
            async for stored in found:
                if messages and (len(messages) == query.limit or finder.is_spent):
                    after = "-".join(map(str, stored.place))
                    break
                messages.append(_message_view(topic, stored, None if added is None else added(stored.row)))
        return json_response(MessageListView(messages=messages, next=after))

    async def show(self, request: web.Request) -> web.Response:
        found: list[FoundMessageView] = []
        size = 0
        async for place, message in self._find(request):
            if message is None:
                continue
            size += len(message.body)
            if found and size > PULL_BYTES_MAX:
                break
            found.append(_found_view(request.match_info["message_id"], place, message))
        if not found:
            raise message_not_found(request.match_info["message_id"])
        return json_response(FoundMessagesView(messages=found))

    async def trace(self, request: web.Request) -> web.Response:
        traces = [await self._trace(request, place) async for place, _ in self._find(request)]
        if not traces:
            raise message_not_found(request.match_info["message_id"])
        return json_response(TracesView(message_id=request.match_info["message_id"], traces=traces))

    async def _find(self, request: web.Request) -> AsyncGenerator[tuple[MessagePlace, BlockMessage | None]]:
        """Yield the messages with the id in the path, at most MESSAGES_OF_ID_MAX of them."""
        message_id = check_message_id(request.match_info["message_id"])
        query = parse_query(MessageIdQuery, request.query)
        topic = None if query.topic is None else check_topic(query.topic)
        if topic is not None:
            self._core.access.require(request, "read", permissions.topic(topic))
        self._core.response_budget.require_room()
        left = MESSAGES_OF_ID_MAX
        found = MessageFinder(self._core).by_id(topic, message_id)
        async with contextlib.aclosing(found):
            async for each in found:
                if not self._core.access.may(request, "read", permissions.topic(each[0].topic), asked_for=True):
                    continue  # an id of a topic that may not be read is answered like one that does not exist
                yield each
                left -= 1
                if not left:
                    return

    async def _trace(self, request: web.Request, place: MessagePlace) -> TraceView:
        access = self._core.access
        is_seen = functools.cache(lambda group: access.may(request, "describe", permissions.group(group)))
        found: list[tuple[TraceEvent, TraceEventView]] = []
        pace = Pace()
        for event in self._core.state.trace_steps(place):
            if event is None:
                await pace.step()
                continue
            if event.group is not None and not is_seen(event.group):
                continue
            with contextlib.suppress(LogTruncated):  # the message expired meanwhile, and the entry was removed
                found.append((event, self._event_view(event)))
        found.sort(key=lambda each: order_of(each[0]))
        events, views = [event for event, _ in found], [view for _, view in found]
        if place.block is not None and events and events[0].event in ("produced", "scheduled"):
            client_id = await self._sender(place.block.position, place.batch_id)
            if client_id is not None:
                views[0] = msgspec.structs.replace(views[0], client_id=client_id)
        return TraceView(
            topic=place.topic,
            queue=place.queue,
            offset=or_unset(place.offset),
            batch_id=place.batch_id,
            state=place.state,
            groups_left_out=not access.may_all(request, "describe", "group"),
            events=views,
        )

    async def _sender(self, position: int, batch_id: str) -> str | None:
        """Return the client id in the log record of a batch; None if the producer gave none or the record is gone."""
        try:
            payload = await self._core.reads.payload(position)
        except LogTruncated:  # removed just now
            return None
        for command in decode_entry(payload).commands:
            if isinstance(command, Produce) and any(batch.batch_id == batch_id for batch in command.batches):
                return command.client_id or None
        return None

    def _event_view(self, event: TraceEvent) -> TraceEventView:
        fields = msgspec.structs.asdict(event).items()
        given = {name: value for name, value in fields if value is not None and value is not False}
        return TraceEventView(**given, term=self._core.reads.term_at(event.raft_index))


def _message_view(topic: str, stored: Stored, added: Mapping[str, str] | None) -> MessageView:
    row, queue, found = stored
    return message_view(
        found.message,
        found.message_id,
        topic,
        queue,
        row.stored_at_ms,
        found.offset,
        row.redelivery,
        transaction_id=row.transaction_id,
        added_properties=added,
    )


def _found_view(message_id: str, place: MessagePlace, message: BlockMessage) -> FoundMessageView:
    view = message_view(
        message,
        message_id,
        place.topic,
        place.queue,
        place.at_ms,
        place.offset,
        transaction_id=place.transaction_id,
    )
    return FoundMessageView(
        **msgspec.structs.asdict(view),
        state=place.state,
        batch_id=place.batch_id,
        raft_index=place.raft_index,
        deliver_at_ms=or_unset(place.deliver_at_ms),
    )


def _parse_cursor(cursor: str) -> KeyedMessage:
    parts = _CURSOR.fullmatch(cursor)
    if parts is None or int(parts[2]) >= QUEUES_MAX:
        raise Problem("invalid_request", f"after: {cursor[:40]!r} is not the `next` of a listing")
    return KeyedMessage(*map(int, parts.groups()))
