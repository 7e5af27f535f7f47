"""Handles pull requests: reads rows of a queue and their blocks from the log, and waits for more in a long poll.

The SDK gets whole batches as they were stored (msgpack), JSON consumers get messages; both may use tags or a filter.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from cluster.budgets.connections import address_of_request
from cluster.budgets.filter_time import FilterTime
from cluster.budgets.pace import Pace
from cluster.core.core import Core
from cluster.filters.selection import Selects, by_expression, by_tags, tag_set
from cluster.http.app import json_response, msgpack_response, wants_msgpack
from cluster.http.requests import Natural, Request, check_group, check_queue, check_topic, parse_query
from cluster.http.responses import Response
from cluster.http.routes import JSON, MSGPACK, Route, json_of
from cluster.messages.block_reader import READ_ERRORS, BlockReader
from cluster.messages.half_topics import added_properties
from cluster.messages.message_views import MessageView
from cluster.messages.pull_pages import (
    SCAN_BYTES_MAX,
    BlockPage,
    MessagePage,
    Page,
    PulledBatch,
    PullQuery,
    WholeBlockPage,
)
from cluster.problems import Problem
from cluster.security import permissions
from cluster.security.access import of_topic


class OffsetQuery(Request, kw_only=True, frozen=True):
    at: Literal["earliest", "latest"] | Natural


class PulledRange(Response, kw_only=True, frozen=True):
    next_offset: int
    max_offset: int
    min_offset: int
    paused: bool | UnsetType = UNSET
    """True when the group for which messages are read is paused; absent otherwise."""


class PullView(PulledRange, kw_only=True, frozen=True):
    messages: list[MessageView]


class BlockPullView(PulledRange, kw_only=True, frozen=True):
    batches: list[PulledBatch]


class OffsetView(Response, kw_only=True, frozen=True):
    offset: int
    timestamp_ms: int | UnsetType = UNSET


ROWS_PER_READ: Final = 256
DISK_BYTES_HEADER: Final = "KeelMQ-Disk-Bytes"
"""Header with the bytes read from disk for a pull; absent in an answer that came from memory alone."""
MOVED_WAIT_S: Final = 1.0
"""Maximum seconds that a pull waits after it has passed messages of which none was selected: its client has to learn
the new offset to commit it, and one answer per second is no burden."""

QUEUE_ERRORS: Final = ("invalid_topic", "topic_not_found", "queue_not_found")


def selection_of(query: PullQuery) -> Selects | None:
    """Return the filter of the query; None when it selects all messages.

    Raises Problem invalid_request, and InvalidFilter.
    """
    if query.filter is not None:
        if query.tags is not None:
            raise Problem("invalid_request", "give tags or filter, not both; a filter may test TAGS IN ('A', 'B')")
        return by_expression(query.filter)
    tags = None if query.tags is None else parse_tags(query.tags)
    return None if tags is None else by_tags(tags)


def parse_tags(text: str) -> frozenset[str] | None:
    """Parse `A || B` into a set of tags; None stands for every message. Raises Problem invalid_request."""
    try:
        return tag_set(text)
    except ValueError as error:
        raise Problem("invalid_request", f"tags: {error}") from None


class PullApi:
    """Handles GET .../queues/{queue}/messages and .../offsets."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/topics/{topic}/queues/{queue}/messages",
                self.pull,
                "Read messages from an offset on; wait up to wait_ms for the first",
                {200: {JSON: PullView, MSGPACK: BlockPullView}},
                query=PullQuery,
                answer_headers=(DISK_BYTES_HEADER,),
                errors=("invalid_filter", "invalid_group", *QUEUE_ERRORS, "offset_out_of_range", *READ_ERRORS),
                redirects=True,
                access=of_topic("read"),
            ),
            Route(
                "GET",
                "/v1/topics/{topic}/queues/{queue}/offsets",
                self.offset,
                "Find the offset at a point in time: earliest, latest, or the first message stored at or after a time",
                {200: json_of(OffsetView)},
                query=OffsetQuery,
                errors=QUEUE_ERRORS,
                access=of_topic("describe"),
            ),
        ]

    async def pull(self, request: web.Request) -> web.Response:
        topic = check_topic(request.match_info["topic"])
        queue = check_queue(request.match_info["queue"])
        query = parse_query(PullQuery, request.query)
        selects = selection_of(query)
        if query.group is None:
            return self._counted(topic, *await self._pulled(request, topic, queue, query, selects))
        return await self._pull_for(query.group, request, topic, queue, query, selects)

    async def _pull_for(
        self, group: str, request: web.Request, topic: str, queue: int, query: PullQuery, selects: Selects | None
    ) -> web.Response:
        """Pull for a group: as if there were nothing while it is paused, also when it is paused meanwhile."""
        core, loop = self._core, asyncio.get_running_loop()
        core.access.require(request, "read", permissions.group(check_group(group)))
        deadline_s = loop.time() + query.wait_ms / 1000
        while True:
            self._end_beyond(topic, queue, query.offset)
            left_s = deadline_s - loop.time()
            if core.state.group_pause(group) is None:
                left = msgspec.structs.replace(query, wait_ms=max(int(left_s * 1000), 0))
                response, page = await self._pulled(request, topic, queue, left, selects)
                if core.state.group_pause(group) is None:
                    return self._counted(topic, response, page)
            elif left_s <= 0 or core.waiters.closed:
                return self._nothing(request, topic, queue, query.offset)
            else:
                with core.holdings.long_poll():
                    await core.waiters.wait_pause(group, left_s)

    def _nothing(self, request: web.Request, topic: str, queue: int, offset: int) -> web.Response:
        """Return the answer for a paused group, which goes on at the offset, or at the first one that is kept."""
        start, end = self._core.state.min_offset(topic, queue), self._core.state.max_offset(topic, queue)
        place = {"next_offset": max(offset, start), "max_offset": end, "min_offset": start}
        if wants_msgpack(request):
            return msgpack_response(BlockPullView(batches=[], paused=True, **place))
        return json_response(PullView(messages=[], paused=True, **place))

    async def _pulled(
        self, request: web.Request, topic: str, queue: int, query: PullQuery, selects: Selects | None
    ) -> tuple[web.Response, Page]:
        query = self._from_start(topic, queue, query)
        if not wants_msgpack(request):
            messages = MessagePage(topic, queue, query, selects, added_properties(self._core.state, topic))
            max_offset = await self._fill(request, messages, topic, queue, query, selects)
            view = PullView(
                messages=messages.messages,
                next_offset=messages.next_offset,
                max_offset=max_offset,
                min_offset=messages.min_offset,
            )
            return json_response(view), messages
        if selects is None:
            return await self._pull_blocks(request, topic, queue, query)
        blocks = BlockPage(query, selects)
        max_offset = await self._fill(request, blocks, topic, queue, query, selects)
        pulled = BlockPullView(
            batches=blocks.batches, next_offset=blocks.next_offset, max_offset=max_offset, min_offset=blocks.min_offset
        )
        return msgpack_response(pulled), blocks

    async def offset(self, request: web.Request) -> web.Response:
        topic = check_topic(request.match_info["topic"])
        queue = check_queue(request.match_info["queue"])
        query = parse_query(OffsetQuery, request.query)
        state = self._core.state
        if query.at == "earliest":
            return json_response(OffsetView(offset=state.min_offset(topic, queue)))
        if query.at == "latest":
            return json_response(OffsetView(offset=state.max_offset(topic, queue)))
        offset, stored_at_ms = state.offset_at(topic, queue, query.at)
        return json_response(OffsetView(offset=offset, timestamp_ms=UNSET if stored_at_ms is None else stored_at_ms))

    async def _pull_blocks(
        self, request: web.Request, topic: str, queue: int, query: PullQuery
    ) -> tuple[web.Response, Page]:
        await self._wait_beyond(topic, queue, query.offset, query.wait_ms / 1000)
        self._core.response_budget.require_room()
        page = WholeBlockPage(query)
        async with self._turn(request, query):
            await self._scan(page, topic, queue, query, 0)
        max_offset = self._core.state.max_offset(topic, queue)
        pulled = BlockPullView(
            batches=page.batches,
            next_offset=page.next_offset,
            max_offset=max_offset,
            min_offset=page.min_offset,
        )
        return msgpack_response(pulled), page

    def _from_start(self, topic: str, queue: int, query: PullQuery) -> PullQuery:
        """Return the query, moved to the start of the queue if its offset is before the start, where messages are
        removed. A moved pull does not wait, so that the client learns the start (`min_offset`) at once."""
        start = self._core.state.min_offset(topic, queue)
        return msgspec.structs.replace(query, offset=start, wait_ms=0) if query.offset < start else query

    async def _fill(
        self, request: web.Request, page: Page, topic: str, queue: int, query: PullQuery, selects: Selects | None
    ) -> int:
        """Fill the page with selected messages, and wait for more while it is empty. Return the end of the queue."""
        deadline_s = asyncio.get_running_loop().time() + query.wait_ms / 1000
        scanned_bytes, moved = 0, False
        time_of_filter = FilterTime(None if selects is None else self._core.quotas)
        while True:
            left_s = deadline_s - asyncio.get_running_loop().time()
            await self._wait_beyond(topic, queue, page.next_offset, left_s)
            self._core.response_budget.require_room()
            async with self._turn(request, query):
                with time_of_filter.measured():
                    scanned_bytes, at_end = await self._scan(page, topic, queue, query, scanned_bytes)
            if page.next_offset > query.offset and not moved:
                moved = True
                deadline_s = min(deadline_s, asyncio.get_running_loop().time() + MOVED_WAIT_S)
            if page.found or not at_end or self._core.waiters.closed or left_s <= 0 or time_of_filter.owes:
                break
        return self._core.state.max_offset(topic, queue)

    def _turn(self, request: web.Request, query: PullQuery) -> AbstractAsyncContextManager[None]:
        """Return the turn to hold while a page is built: the page takes memory before it counts as unread."""
        core = self._core
        return core.turn(core.queue_page_turns, address_of_request(request), query.max_bytes)

    async def _scan(self, page: Page, topic: str, queue: int, query: PullQuery, scanned_bytes: int) -> tuple[int, bool]:
        """Fill the page. Return the total of scanned bytes, and whether a pull that found nothing goes on waiting,
        because the queue was read to its end.
        """
        reader = BlockReader(self._core)
        try:
            return await self._scan_rows(page, topic, queue, query, scanned_bytes, reader)
        finally:
            page.disk_bytes += reader.read_bytes

    async def _scan_rows(
        self, page: Page, topic: str, queue: int, query: PullQuery, scanned_bytes: int, reader: BlockReader
    ) -> tuple[int, bool]:
        pace, state = Pace(), self._core.state
        while True:
            start = state.min_offset(topic, queue)
            is_missing = start > page.next_offset  # removed while this waited
            if page.next_offset == query.offset:
                page.min_offset, page.next_offset = start, max(page.next_offset, start)
            elif is_missing:
                return scanned_bytes, False  # the next request is told
            rows = state.rows(topic, queue, page.next_offset, ROWS_PER_READ, query.max_bytes)
            if not rows:
                return scanned_bytes, not is_missing
            rests = pace.rests
            for at, row in enumerate(rows):
                if not page.wants(row, reader):
                    return scanned_bytes, False
                try:
                    await reader.load(rows, at)
                except Problem:
                    if page.next_offset == query.offset:
                        raise
                    return scanned_bytes, False  # answer with the messages found; the next request gets the error
                pace.exclude(reader.take_waited_s())
                scanned_bytes += row.unpacked_bytes
                is_taken = await page.take(row, reader, pace)
                if not is_taken or scanned_bytes >= SCAN_BYTES_MAX or pace.is_over or reader.is_spent:
                    return scanned_bytes, False
                if pace.is_tired:
                    await pace.rest()
                if pace.rests > rests:
                    break  # the rows may be old by now

    async def _wait_beyond(self, topic: str, queue: int, offset: int, timeout_s: float) -> None:
        """Wait until the queue has a message at `offset`, or the time is over. Raises Problem offset_out_of_range when
        the offset is beyond the end of the queue.
        """
        if offset == self._end_beyond(topic, queue, offset) and timeout_s > 0:
            with self._core.holdings.long_poll():
                await self._core.waiters.wait_queue(topic, queue, timeout_s)

    def _end_beyond(self, topic: str, queue: int, offset: int) -> int:
        """Return the end of the queue. Raises Problem offset_out_of_range when the offset is beyond it."""
        end = self._core.state.max_offset(topic, queue)
        if offset > end:
            detail = (
                f"queue {queue} of {topic} ends at {end}, offset {offset} is beyond it; read from its end or before"
            )
            raise Problem("offset_out_of_range", detail, {"topic": topic, "queue": queue, "max_offset": end})
        return end

    def _counted(self, topic: str, response: web.Response, page: Page) -> web.Response:
        """Count the messages that are handed out. Return the answer with the number of bytes read from disk for it."""
        if page.found:
            self._core.metrics.pulled_messages.inc(page.found)
            self._core.metrics.pulled_bytes.inc(page.size_bytes)
            self._core.topic_reads.add(topic, page.found, page.size_bytes)
        if page.disk_bytes:
            response.headers[DISK_BYTES_HEADER] = str(page.disk_bytes)
        return response
