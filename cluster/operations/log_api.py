"""Serves the committed log to readers such as Spark: its records as they are on disk, and the events they caused."""

from typing import Annotated, Final

from aiohttp import web
from msgspec import Meta

from cluster.budgets.connections import address_of_request
from cluster.core.core import Core
from cluster.http.requests import Natural, Request, WaitMs, parse_query
from cluster.http.routes import OCTET_STREAM, Route
from cluster.limits import INT64_MAX, LOG_BYTES_DEFAULT, LOG_BYTES_MAX, READER_PATTERN
from cluster.operations.event_selection import selection_of
from cluster.operations.log_events import EventsPage
from cluster.operations.log_readers import LogReaders
from cluster.problems import Problem
from cluster.security.access import LOG_READ
from store.log.errors import LogTruncated


class LogQuery(Request, kw_only=True, frozen=True):
    from_index: Annotated[int, Meta(ge=1, le=INT64_MAX)]
    max_bytes: Annotated[int, Meta(ge=1, le=LOG_BYTES_MAX)] = LOG_BYTES_DEFAULT
    wait_ms: WaitMs = 0


class LogEventsQuery(LogQuery, kw_only=True, frozen=True):
    """Selects entries with `from_index` <= index < `to_index`. Of the first entry, events are sent from `from_event`
    on. `topics` and `types` have commas between names; of events, only those that fit both are sent. `span_bytes` asks
    for the index up to which the entries take that number of bytes of the log. `reader` is the name of a query that has
    read everything before `from_index`."""

    from_event: Natural = 0
    to_index: Natural | None = None
    blocks: bool = True
    topics: str | None = None
    types: str | None = None
    span_bytes: Annotated[int, Meta(ge=1, le=INT64_MAX)] | None = None
    reader: Annotated[str, Meta(pattern=READER_PATTERN)] | None = None


NEXT_INDEX_HEADER: Final = "KeelMQ-Next-Index"
NEXT_EVENT_HEADER: Final = "KeelMQ-Next-Event"
SPAN_INDEX_HEADER: Final = "KeelMQ-Span-Index"
"""Index that follows the entries from `from_index` on that fit `span_bytes`; absent without it."""
FIRST_INDEX_HEADER: Final = "KeelMQ-First-Index"
CLUSTER_UID_HEADER: Final = "KeelMQ-Cluster-Uid"
"""Unique id of the cluster whose log it is; absent until the node has applied the first entry of a leader."""
COMMIT_INDEX_HEADER: Final = "KeelMQ-Commit-Index"


class LogApi:
    """Handles /v1/log and /v1/log/events. Any node answers, with the entries that it has applied."""

    def __init__(self, core: Core, readers: LogReaders) -> None:
        self._core = core
        self._readers = readers

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/log",
                self.log,
                "Read committed log records as they are on disk; wait up to wait_ms for the first",
                {200: {OCTET_STREAM: None}},
                query=LogQuery,
                answer_headers=(NEXT_INDEX_HEADER, COMMIT_INDEX_HEADER, CLUSTER_UID_HEADER),
                errors=("log_range_removed", "overloaded"),
                access=LOG_READ,
            ),
            Route(
                "GET",
                "/v1/log/events",
                self.events,
                "Read the events of committed entries in frames, if wanted with message blocks as they are stored; "
                "wait up to wait_ms for the first entry",
                {200: {OCTET_STREAM: None}},
                query=LogEventsQuery,
                answer_headers=(
                    NEXT_INDEX_HEADER,
                    NEXT_EVENT_HEADER,
                    SPAN_INDEX_HEADER,
                    FIRST_INDEX_HEADER,
                    CLUSTER_UID_HEADER,
                ),
                errors=("invalid_topic", "log_range_removed", "overloaded"),
                access=LOG_READ,
            ),
        ]

    async def log(self, request: web.Request) -> web.Response:
        query = parse_query(LogQuery, request.query)
        core = self._core
        await self._wait(query.from_index, query.wait_ms)
        core.response_budget.require_room()
        committed = core.raft.applied_index
        records, next_index = b"", query.from_index
        if query.from_index < core.log.first_index:
            raise self._removed(query.from_index)
        if query.from_index <= committed:
            try:
                async with core.turn(core.log_page_turns, address_of_request(request), query.max_bytes):
                    records, next_index = await core.reads.records(query.from_index, committed, query.max_bytes)
            except LogTruncated:  # the records were removed while they were read
                raise self._removed(query.from_index) from None
        headers = {
            "Content-Type": OCTET_STREAM,
            NEXT_INDEX_HEADER: str(next_index),
            COMMIT_INDEX_HEADER: str(committed),
            **self._cluster_uid(),
        }
        return web.Response(body=records, headers=headers)

    async def events(self, request: web.Request) -> web.Response:
        query = parse_query(LogEventsQuery, request.query)
        selection = selection_of(query.topics, query.types)
        core = self._core
        if query.reader is not None:
            principal = core.access.principal_of(request).name if core.access.is_on else None
            self._readers.note(query.reader, address_of_request(request), principal, query.from_index)
        await self._wait(query.from_index, query.wait_ms)
        core.response_budget.require_room()
        first_index = max(core.log.first_index, core.state.first_outcome)
        if query.from_index < first_index:
            raise Problem("log_range_removed", self._why_removed(query.from_index), {"first_index": first_index})
        last_index = core.state.applied_index
        if query.to_index is not None:
            last_index = min(last_index, query.to_index - 1)
        page = EventsPage(core, query.from_index, query.from_event, query.max_bytes, selection, blocks=query.blocks)
        span: dict[str, str] = {}
        async with core.turn(core.log_page_turns, address_of_request(request), query.max_bytes):
            await page.fill(last_index)
            if query.span_bytes is not None:
                span[SPAN_INDEX_HEADER] = str(await self._span_index(query.from_index, query.span_bytes))
        headers = {
            "Content-Type": OCTET_STREAM,
            NEXT_INDEX_HEADER: str(page.next_index),
            NEXT_EVENT_HEADER: str(page.next_event),
            FIRST_INDEX_HEADER: str(first_index),
            **span,
            **self._cluster_uid(),
        }
        return web.Response(body=b"".join(page.frames), headers=headers)

    async def _span_index(self, from_index: int, span_bytes: int) -> int:
        core = self._core
        try:
            return await core.reads.index_after(from_index, core.state.applied_index, span_bytes)
        except LogTruncated:  # the records were removed meanwhile
            raise self._removed(from_index) from None

    def _cluster_uid(self) -> dict[str, str]:
        uid = self._core.state.cluster_uid
        return {CLUSTER_UID_HEADER: uid} if uid else {}

    def _removed(self, from_index: int) -> Problem:
        extra = {"first_index": self._core.log.first_index}
        return Problem("log_range_removed", self._why_removed(from_index), extra)

    def _why_removed(self, from_index: int) -> str:
        core = self._core
        if from_index < core.log.first_index:
            return f"this node's log begins at index {core.log.first_index}: earlier entries are removed"
        first_outcome = core.state.first_outcome
        return f"events are kept from index {first_outcome} on: nothing points at the events of earlier entries"

    async def _wait(self, from_index: int, wait_ms: int) -> None:
        """Wait until the entry is applied, or the time is over."""
        core = self._core
        if from_index > core.raft.applied_index and wait_ms:
            with core.holdings.long_poll():
                await core.waiters.entries.wait(from_index, wait_ms / 1000)
