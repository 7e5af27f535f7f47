"""Removes all messages that a topic, or one of its queues, has."""

from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from cluster.core.core import Core
from cluster.http.app import json_response, read_json
from cluster.http.requests import Request, check_topic
from cluster.http.responses import Response
from cluster.http.routes import JSON, WRITE_ERRORS, Route, json_of
from cluster.limits import QUEUES_MAX
from cluster.security.access import of_topic
from store.commands.topics import PurgeTopic, TopicPurged


class PurgeRequest(Request, kw_only=True, frozen=True):
    """The queue to purge; without one, all queues of the topic."""

    queue: Annotated[int, Meta(ge=0, lt=QUEUES_MAX)] | None = None


class PurgedQueueView(Response, kw_only=True, frozen=True):
    """A queue that had `messages`; it goes on at `min_offset`."""

    queue: int
    min_offset: int
    messages: int


class PurgedView(Response, kw_only=True, frozen=True):
    """The number of messages that are gone, and the queues that had any."""

    topic: str
    messages: int
    queues: tuple[PurgedQueueView, ...]


_decoder: Final = msgspec.json.Decoder(PurgeRequest)


class PurgeApi:
    """Handles /v1/topics/{topic}/purge."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/v1/topics/{topic}/purge",
                self.purge,
                "Remove all messages that the topic, or one of its queues, has now; offsets go on where they are",
                {200: json_of(PurgedView)},
                body={JSON: PurgeRequest},
                body_optional=True,
                errors=("invalid_topic", "topic_not_found", "queue_not_found", "system_topic", *WRITE_ERRORS),
                redirects=True,
                access=of_topic("delete"),
            )
        ]

    async def purge(self, request: web.Request) -> web.Response:
        self._core.require_leader()
        name = check_topic(request.match_info["topic"])
        body = await read_json(request, self._core, _decoder, optional=True)
        purged: TopicPurged = (await self._core.propose(PurgeTopic(name, body.queue), by=request)).result
        queues = tuple(
            PurgedQueueView(queue=each.queue, min_offset=each.start, messages=each.messages) for each in purged.queues
        )
        return json_response(PurgedView(topic=name, messages=sum(each.messages for each in queues), queues=queues))
