"""Creates, changes, describes and deletes topics."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Explained, Request, check_topic, parse_query
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import GROUP_QUEUES_MAX, LIST_MAX, LIST_ROWS_MAX, QUEUES_MAX, RETENTION_BYTES_MAX, RETENTION_MS_MAX
from cluster.messages.topic_growth import put_topic
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import BY_HANDLER, BY_HANDLER_AUDITED, of_topic
from cluster.security.permissions import Action
from store.commands.topics import DeleteTopic, PutTopic, TopicInfo, TopicType
from store.errors import SYSTEM_TOPIC, TOPIC_NOT_FOUND, Refused

_Times = tuple[int | UnsetType, int | UnsetType]
"""Times at which the first and the last row of a queue were stored, where there are any."""
_NO_TIMES: Final[_Times] = (UNSET, UNSET)


class TopicSettings(Explained, kw_only=True, frozen=True):
    queues: Annotated[int, Meta(ge=1, le=QUEUES_MAX)] | None = None
    retention_ms: Annotated[int, Meta(ge=-1, le=RETENTION_MS_MAX)] | None = None
    type: TopicType | None = None
    retention_bytes: Annotated[int, Meta(ge=-1, le=RETENTION_BYTES_MAX)] | None = None


class TopicsQuery(Request, kw_only=True, frozen=True):
    system: bool = False
    limit: Annotated[int, Meta(ge=1, le=LIST_MAX)] = LIST_MAX
    after: str | None = None


class QueueOffsetsView(Response, kw_only=True, frozen=True):
    """`bytes` are those of the blocks of all messages of the queue; null while they are not all counted."""

    queue: int
    min_offset: int
    max_offset: int
    bytes: int | None
    first_stored_at_ms: int | UnsetType = UNSET
    last_stored_at_ms: int | UnsetType = UNSET


class TopicView(Response, kw_only=True, frozen=True):
    """A topic with its queues. `bytes` is the sum of those of the queues; -1 in a limit is no limit."""

    topic: str
    queues: int
    type: TopicType
    retention_ms: int
    retention_bytes: int
    bytes: int | None
    system: bool
    created_at_ms: int
    queue_offsets: tuple[QueueOffsetsView, ...]


class TopicsView(Response, kw_only=True, frozen=True):
    topics: list[TopicView]
    next: str | None


_decoder: Final = msgspec.json.Decoder(TopicSettings)


class TopicApi:
    """Handles /v1/topics."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        topic = "/v1/topics/{topic}"
        return [
            Route(
                "PUT",
                topic,
                self.put,
                "Create a topic, or change the given settings of an existing one; queues may only grow",
                {201: json_of(TopicView), 200: json_of(TopicView)},
                body={JSON: TopicSettings},
                body_optional=True,
                errors=(
                    "invalid_topic",
                    "system_topic",
                    "topic_not_found",
                    "topic_exists_with_more_queues",
                    "too_many_topics",
                    *WRITE_ERRORS,
                ),
                redirects=True,
                access=BY_HANDLER_AUDITED,
            ),
            Route(
                "GET",
                "/v1/topics",
                self.list_all,
                "List the topics by name, page by page",
                {200: json_of(TopicsView)},
                query=TopicsQuery,
                is_shared=True,
                access=BY_HANDLER,
            ),
            Route(
                "GET",
                topic,
                self.show,
                "Show one topic with the offsets of its queues",
                {200: json_of(TopicView)},
                errors=("invalid_topic", "topic_not_found"),
                is_shared=True,
                access=of_topic("describe"),
            ),
            Route(
                "DELETE",
                topic,
                self.delete,
                "Delete a topic with its messages",
                {204: {}},
                errors=("invalid_topic", "topic_not_found", "system_topic", *WRITE_ERRORS),
                redirects=True,
                access=of_topic("delete"),
            ),
        ]

    async def put(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        name = check_topic(request.match_info["topic"])
        settings = await read_json(request, self._core, _decoder, optional=True)
        # Only now: the topic may have been created while the body was on its way.
        former = self._core.state.topic(name)
        action: Action = "create" if former is None else "alter"
        self._core.access.require(request, action, permissions.topic(name), said="create or alter")
        if former is not None and _keeps_less(settings, former):
            self._core.access.require(
                request, "delete", permissions.topic(name), said="delete messages by keeping less of"
            )
        self._refuse_system(name)
        command = PutTopic(name, settings.queues, settings.retention_ms, settings.type, settings.retention_bytes)
        put = await put_topic(self._core, command, lambda: self._refuse_wide(name, settings.queues or 0), request)
        return json_response(self._view(put.topic), 201 if put.created else 200)

    async def list_all(self, request: web.Request) -> web.Response:
        query = parse_query(TopicsQuery, request.query)
        topics: list[TopicView] = []
        rows, pace = 0, Pace()
        for name in self._visible(request, query):
            await pace.step()
            topic = None if name is None else self._core.state.topic(name)
            if topic is None:  # or deleted meanwhile
                continue
            if len(topics) >= query.limit or rows >= LIST_ROWS_MAX:
                return json_response(TopicsView(topics=topics, next=topics[-1].topic))
            topics.append(self._view(topic))
            rows += topic.queues
        return json_response(TopicsView(topics=topics, next=None))

    def _visible(self, request: web.Request, query: TopicsQuery) -> Iterator[str | None]:
        """Yield the topics after the cursor; None for a topic that the request may not see and no cursor may name."""
        after = query.after
        while found := self._core.state.topics_after(after, LIST_MAX, system=query.system):
            for topic in found:
                is_visible = self._core.access.may(request, "describe", permissions.topic(topic.topic))
                yield topic.topic if is_visible else None
            after = found[-1].topic

    async def show(self, request: web.Request) -> web.Response:
        name = check_topic(request.match_info["topic"])
        topic, topic_id = self._core.state.topic(name), self._core.state.topic_id(name)
        if topic is None:
            raise Refused(
                TOPIC_NOT_FOUND, f"topic {name} does not exist; `keelmq topic list` lists the topics", {"topic": name}
            )
        times, pace = dict[int, _Times](), Pace()
        for each in self._core.state.queue_ranges(name):
            if self._core.state.topic_id(name) != topic_id:
                raise Refused(TOPIC_NOT_FOUND, f"topic {name} was deleted meanwhile", {"topic": name})
            first, last = each.min_offset, each.max_offset - 1
            times[each.queue] = self._stored_at_ms(name, each.queue, first), self._stored_at_ms(name, each.queue, last)
            await pace.step()
        return json_response(self._view(topic, times))

    async def delete(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        name = check_topic(request.match_info["topic"])
        self._refuse_system(name)
        await self._core.propose(DeleteTopic(name), by=request)
        return web.Response(status=204)

    def _refuse_system(self, name: str) -> None:
        topic = self._core.state.topic(name)
        if topic is not None and topic.system:
            raise Refused(SYSTEM_TOPIC, f"{name} is a system topic: it cannot be changed", {"topic": name})

    def _refuse_wide(self, name: str, queues: int) -> None:
        topic = self._core.state.topic(name)
        more = queues - (topic.queues if topic is not None else 0)
        subscribed = self._core.state.widest_subscription(name) if more > 0 else 0
        if subscribed and subscribed + more > GROUP_QUEUES_MAX:
            detail = (
                f"a group that reads topic {name} would have {subscribed + more} queues, at most {GROUP_QUEUES_MAX}"
            )
            raise Problem("invalid_request", f"queues: {detail}")

    def _view(self, topic: TopicInfo, times: Mapping[int, _Times] = MappingProxyType({})) -> TopicView:
        """Return the response for a topic, with the times of the first and last row of each queue that are given."""
        ranges = self._core.state.queue_ranges(topic.topic)
        kept = self._core.state.kept_bytes(topic.topic)
        return TopicView(
            topic=topic.topic,
            queues=topic.queues,
            type=topic.type,
            retention_ms=topic.retention_ms,
            retention_bytes=topic.retention_bytes,
            bytes=kept.total,
            system=topic.system,
            created_at_ms=topic.created_at_ms,
            queue_offsets=tuple(
                QueueOffsetsView(
                    queue=each.queue,
                    min_offset=each.min_offset,
                    max_offset=each.max_offset,
                    bytes=kept.queues[each.queue],
                    first_stored_at_ms=times.get(each.queue, _NO_TIMES)[0],
                    last_stored_at_ms=times.get(each.queue, _NO_TIMES)[1],
                )
                for each in ranges
            ),
        )

    def _stored_at_ms(self, topic: str, queue: int, offset: int) -> int | UnsetType:
        row = self._core.state.row_of(topic, queue, offset) if offset >= 0 else None
        return UNSET if row is None else row.stored_at_ms


def _keeps_less(settings: TopicSettings, former: TopicInfo) -> bool:
    """Return whether the settings remove messages that the topic would have kept. -1 is no limit."""
    limits = ((settings.retention_ms, former.retention_ms), (settings.retention_bytes, former.retention_bytes))
    return any(new is not None and new != -1 and (old == -1 or new < old) for new, old in limits)
