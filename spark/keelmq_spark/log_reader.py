"""Reads the events of a log range for planner and executors: synchronously, from any replica, through failovers.

Committed entries never change, so a range gives the same result when it is read twice, from any nodes. A node that is
gone or lags is no error: another one is asked until `timeout_ms` have passed without progress.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

from keelmq.admin import Admin
from keelmq.errors import (
    Closed,
    Forbidden,
    InvalidRequest,
    KeelMQError,
    LogRangeRemoved,
    ServerNotTrusted,
    TopicNotFound,
)
from keelmq.limits import GROUP_TOPIC_PREFIXES
from keelmq.log.log_events import EventsPage
from keelmq.transport.connection import Connection
from keelmq.transport.credentials import TokenFile
from keelmq.transport.tls import Tls
from keelmq_spark.tables.errors import OtherLog

WAIT_MS: Final = 500
"""Time that a node is asked to wait for an entry that it has not applied yet."""
PAUSE_S: Final = 0.05
GO_ON: Final = "failOnDataLoss=false (keelmq-lineage run --skip-removed) goes on without what is gone"
STILL_S_MAX: Final = 2.0
"""Seconds without news after which a node is no longer believed that there are none."""

log = logging.getLogger("keelmq.spark")

T = TypeVar("T")


class Select(NamedTuple):
    """Topics, some of them beginnings of names with a `*` behind, and types of events; empty for all."""

    topics: Sequence[str] = ()
    types: Sequence[str] = ()


EVERYTHING: Final = Select()


class DataLoss(Exception):
    """Raised when every node has removed a part of the log that a query has to read."""


class LogReader:
    """Reads pages of events ahead, in its own thread with an event loop. Use it as a context manager."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        timeout_ms: int,
        fetch_max_bytes: int,
        tls: Tls | None = None,
        token_file: str | None = None,
        cluster_uid: str = "",
        name: str | None = None,
    ) -> None:
        """Read from `servers`. With `cluster_uid`, every method raises OtherLog when a node is of another cluster;
        otherwise the cluster that answers first is the only one. With `name`, nodes are told how far the query is.
        """
        self.cluster_uid = cluster_uid
        """Unique id of the cluster; empty before the first answer, and for nodes that do not tell it."""
        self._name = self._own_name = name
        """Name of the query; None when nodes are not told, and for nodes that do not take it."""
        self._servers = servers
        self._tls = tls
        self._token = None if token_file is None else TokenFile(token_file)
        self._timeout_s = timeout_ms / 1000
        self._fetch_max_bytes = fetch_max_bytes
        self._thread = ThreadPoolExecutor(1, "keelmq-log-reader")
        self._runner = asyncio.Runner()
        self._connection: Connection | None = None
        self._anywhere = True
        self._select = EVERYTHING
        """What nodes are asked for: everything where one of them could not select."""
        self._still_since_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def expect(self, cluster_uid: str) -> None:
        """Read the log of this cluster only, if it is not empty. Raises OtherLog when another one was read."""
        if cluster_uid and self.cluster_uid and cluster_uid != self.cluster_uid:
            raise self._other(cluster_uid, self.cluster_uid)
        self.cluster_uid = self.cluster_uid or cluster_uid

    def end_index(self, start: int, *, wait_ms: int = 0, tells: bool = False) -> int:
        """Return the last applied index + 1 of the leader, or of the node that answers for it; wait for `start`. With
        `tells`, the node is told that the query has read everything before `start`.
        """
        return self._submit(lambda: self._end_index(start, wait_ms, tells)).result()

    def end_within(self, start: int, max_bytes: int) -> int:
        """Return the end of the entries from `start` on that take `max_bytes` of the log, at least one, as far as the
        node that answers has them. Raises InvalidRequest for nodes of 0.2.0.
        """
        return self._submit(lambda: self._end_within(start, max_bytes)).result()

    async def _end_within(self, start: int, max_bytes: int) -> int:
        async def ask(admin: Admin) -> EventsPage:
            return await admin.log_events(start, to_index=start, max_bytes=1, blocks=False, span_bytes=max_bytes)

        try:
            page = await self._until_answered(ask)
        except LogRangeRemoved as removed:
            if removed.first_index is None or removed.first_index <= start:
                raise
            return await self._end_within(removed.first_index, max_bytes)
        return start if page.span_index is None else page.span_index

    def first_index(self) -> int:
        """Return the first index of the log on the node that reaches furthest back."""
        return self._submit(self._first_index).result()

    def missing_topics(self, topics: Sequence[str]) -> list[str]:
        """Return the topics that do not exist. Of topics that the reader may not look at, it is not known; those of
        groups exist when they have a message.
        """
        plain = [topic for topic in topics if not topic.startswith(GROUP_TOPIC_PREFIXES)]
        return [topic for topic in plain if not self._submit(functools.partial(self._has_topic, topic)).result()]

    async def _has_topic(self, topic: str) -> bool:
        async def ask(admin: Admin) -> bool:
            try:
                await admin.topic(topic)
            except TopicNotFound:
                return False
            return True

        try:
            return await self._until_answered(ask)
        except Forbidden:
            return True

    def index_at(self, timestamp_ms: int) -> int:
        """Return the index that separates earlier events from events at or after the time, or else the end."""
        low, high = self.first_index(), self.end_index(1)
        while low < high:
            middle = (low + high) // 2
            page = self._next(middle, 0, high, 1).result()
            entry = next(page.entries(), None)
            if entry is None or entry.timestamp_ms >= timestamp_ms:
                high = middle
            else:
                low = entry.index + 1
        return low

    def pages(
        self,
        start: int,
        end: int,
        *,
        select: Select = EVERYTHING,
        skip_removed: bool = False,
        from_earliest: bool = False,
    ) -> Iterator[EventsPage]:
        """Yield the events of the committed entries start <= index < end, at least those that `select` selects.

        Raises DataLoss when a part of the range is removed. The part is skipped instead with `skip_removed`, or at the
        beginning of the range with `from_earliest`."""
        index, event = start, 0
        self._select = select
        coming = self._next(index, event, end)
        while index < end:
            try:
                page = coming.result()
            except LogRangeRemoved as removed:
                first = removed.first_index
                may_skip = skip_removed or (from_earliest and (index, event) == (start, 0))
                if not may_skip or first is None:
                    detail = f"entries {index} to {end - 1} of the log are needed and it begins at {first}"
                    raise DataLoss(f"{detail}: {removed.detail}; {GO_ON}") from None
                log.warning("skipping the log from %d to %s, which is removed", index, first)
                index, event = max(index, min(first, end)), 0
                coming = self._next(index, event, end)
                continue
            index, event = page.next_index, page.next_event
            if index < end:
                coming = self._next(index, event, end)
            yield page

    def _next(self, index: int, event: int, end: int, max_bytes: int | None = None) -> "Future[EventsPage]":
        return self._submit(lambda: self._fetch(index, event, end, max_bytes or self._fetch_max_bytes))

    def _submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> "Future[T]":
        return self._thread.submit(lambda: self._runner.run(make()))

    async def _end_index(self, start: int, wait_ms: int, tells: bool) -> int:
        name = self._name if tells else None

        async def ask(admin: Admin) -> EventsPage:
            return await admin.log_events(
                start, to_index=start, wait_ms=wait_ms, max_bytes=1, blocks=False, reader=name
            )

        try:
            page = await self._until_answered(ask)
        except InvalidRequest as error:
            if name is None or isinstance(error, Forbidden):
                raise
            self._name = None  # an earlier version takes none; the next node that is asked may be a later one
            return await self._end_index(start, wait_ms, tells)
        except LogRangeRemoved as removed:
            if removed.first_index is None or removed.first_index <= start:
                raise
            return await self._end_index(removed.first_index, wait_ms, tells)
        if page.applied_index >= start:
            self._still_since_s = None
        elif self._still_since_s is None:
            self._still_since_s = time.monotonic()
        elif time.monotonic() - self._still_since_s > STILL_S_MAX:
            self._still_since_s = None
            self._disconnect()  # the node may be cut off from the others: look for the leader again
        return page.applied_index + 1

    async def _fetch(self, index: int, event: int, end: int, max_bytes: int) -> EventsPage:
        """Return the page at this position; retry until the page makes progress."""
        if index >= end:
            return EventsPage(b"", index, event, 0)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                page = await self._until_answered(
                    lambda admin: admin.log_events(
                        index,
                        from_event=event,
                        to_index=end,
                        wait_ms=WAIT_MS,
                        max_bytes=max_bytes,
                        anywhere=self._anywhere,
                        topics=self._select.topics,
                        types=self._select.types,
                    ),
                    waits=True,
                )
            except InvalidRequest as refused:
                if self._select == EVERYTHING:
                    raise
                log.warning("reading the events of all topics, because a node cannot select: %s", refused)
                self._select = EVERYTHING
                continue
            if (page.next_index, page.next_event) != (index, event):
                return page
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"no node had entry {index} of the log within {self._timeout_s:.0f} s")
            self._anywhere = not self._anywhere  # this node is behind: ask the leader, or another one
            self._disconnect()

    async def _until_answered(self, ask: Callable[[Admin], Coroutine[Any, Any, T]], *, waits: bool = False) -> T:
        """Return the answer of a node. Raises LogRangeRemoved when no node that can be asked has the range.

        With `waits`, a node that cannot be asked is waited for until the time is over, because it may have the range.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._checked(await ask(Admin(self._connected())))
            except LogRangeRemoved as removed:
                return await self._ask_all(ask, removed, deadline_s if waits else 0.0)
            except (InvalidRequest, ServerNotTrusted, Closed):
                raise
            except KeelMQError as error:
                if time.monotonic() > deadline_s:
                    raise
                log.warning("reading the log: %s", error)
                self._disconnect()
                await asyncio.sleep(PAUSE_S)

    def _checked(self, answer: T) -> T:
        """Return the answer. Raises OtherLog for a page of another cluster's log."""
        found = answer.cluster_uid if isinstance(answer, EventsPage) else ""
        if found and self.cluster_uid and found != self.cluster_uid:
            raise self._other(self.cluster_uid, found)
        self.cluster_uid = self.cluster_uid or found
        return answer

    def _other(self, expected: str, found: str) -> OtherLog:
        return OtherLog(
            f"the log of the cluster {expected} was read so far, and {', '.join(self._servers)} answer for the cluster "
            f"{found}: name the servers of the former, or begin with another checkpoint"
        )

    async def _ask_all(
        self, ask: Callable[[Admin], Coroutine[Any, Any, T]], removed: LogRangeRemoved, deadline_s: float
    ) -> T:
        """Ask the other nodes, because one node does not reach back so far; stay with the first that does. Those that
        cannot be asked are asked again until the deadline.
        """
        awaited = list(self._servers)
        while awaited:
            answer, awaited, removed = await self._ask_each(ask, removed, awaited)
            if answer is not None:
                return answer
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(PAUSE_S)
        raise removed

    async def _ask_each(
        self, ask: Callable[[Admin], Coroutine[Any, Any, T]], removed: LogRangeRemoved, servers: Sequence[str]
    ) -> tuple[T | None, list[str], LogRangeRemoved]:
        """Return the first answer of the servers, or the servers that could not be asked; and the error of the one that
        reaches furthest back.
        """
        silent: list[str] = []
        for server in servers:
            connection = Connection([server], tls=self._tls, token=self._token)
            try:
                answer = self._checked(await ask(Admin(connection)))
            except OtherLog:
                connection.close()
                raise
            except KeelMQError as error:
                connection.close()
                if not isinstance(error, LogRangeRemoved):
                    log.warning("reading the log: %s: %s", server, error)
                    silent.append(server)
                elif (error.first_index or 0) < (removed.first_index or 0):
                    removed = error
            else:
                self._disconnect()
                self._connection = connection
                return answer, silent, removed
        return None, silent, removed

    async def _first_index(self) -> int:
        async def ask(admin: Admin) -> EventsPage:
            return await admin.log_events(1, to_index=1, max_bytes=1, anywhere=True)

        try:
            await self._until_answered(ask)
            return 1
        except LogRangeRemoved as removed:
            return removed.first_index or 1

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self._servers, tls=self._tls, token=self._token)
        return self._connection

    def _disconnect(self) -> None:
        self._name = self._own_name
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close(self) -> None:
        async def disconnect() -> None:
            self._disconnect()

        self._runner.run(disconnect())
        self._runner.close()
