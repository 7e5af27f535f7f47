"""Consumer: a group member that processes messages and commits offsets only after the handler has finished."""

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from keelmq.causation import begin_processing, end_processing
from keelmq.consuming.assigned_queues import AssignedQueues
from keelmq.consuming.faults import Faults, OnFault
from keelmq.consuming.group_beginnings import GroupBeginnings
from keelmq.consuming.group_beginnings import Start as Start
from keelmq.consuming.group_member import GroupMember
from keelmq.consuming.group_session import GroupSession, TopicQueue
from keelmq.consuming.handlers import Handlers
from keelmq.consuming.queue_reader import Handling, QueueReader, ReaderOptions
from keelmq.consuming.redelivery import OnError, tries_before_giving_back
from keelmq.consuming.selection import EVERYTHING, PerTopic, check_topics, selections_of
from keelmq.consuming.session_times import CLOSE_TIMEOUT_MS, COMMIT_INTERVAL_MS, SessionTimes
from keelmq.consuming.stop_signals import stopped_by_signals
from keelmq.errors import InvalidRequest
from keelmq.limits import check_group, check_range
from keelmq.message import ReceivedMessage
from keelmq.producing.producer import default_client_id
from keelmq.transport.connection import Connection
from keelmq.transport.tls import Tls

MAX_MESSAGES: Final = 32
WAIT_MS: Final = 15_000
SESSION_TIMEOUT_MS: Final = 30_000
PREFETCH_MESSAGES: Final = 1_000
PREFETCH_BYTES: Final = 100 * 1024 * 1024
CONSUME_TIMEOUT_MS: Final = 15 * 60_000
LEFT_LOOP_TURNS: Final = 5
"""Turns of the event loop within which it closes the generator of a loop that was left."""


class Consumer:
    """Processes `topics` as a member of `group`, at least once per message; with keelmq.inbox exactly once.

    Give `handler` (one message) or `batch_handler` (up to `max_messages` of one queue), or iterate. A message is
    processed when its handler has returned, or when the loop asks for the next message. An `async def` handler runs on
    the event loop, a plain function in one of `concurrency` worker threads. With `ordered` (the default) the messages
    of a queue are handled one after the other and `concurrency` bounds the number of queues handled at a time; without
    it, `concurrency` bounds the handler calls, several of which may belong to one queue.

    If a handler raises, `on_error` decides. With "block" (the default of an `ordered` consumer), the handler is called
    again after a pause, and the queue's committed offset does not move meanwhile. With "give_back" (the default
    otherwise), the messages are given back after `tries` calls: they are redelivered after the group's backoff, become
    dead letters in the end, and the queue goes on. RetryLater always gives the messages back.

    A handler call that takes longer than `consume_timeout_ms` is cancelled and counts as one that raised
    ConsumeTimeout. When a queue belongs, or may belong, to another member, no handler call begins for it and nothing is
    committed; once the loss is certain, running calls have `close_timeout_ms` to end. Both cases are logged, and
    `on_fault` is called.

    `tags` ("A || B") or `filter` (SQL92 on the properties, docs/filters.md) select messages, for all topics or by a
    mapping for some; the broker evaluates them. Other messages are never handled, and offsets move past them.

    Messages that are no longer in the leader's memory are read at a follower, unless `follower_reads` is False.

    Per queue, at most `prefetch_messages` and `prefetch_bytes` are held, plus one batch. Belongs to one event loop.
    """

    _beginning: asyncio.Task[None] | None = None

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        topics: str | Sequence[str],
        handler: Callable[[ReceivedMessage], object] | None = None,
        *,
        batch_handler: Callable[[Sequence[ReceivedMessage]], object] | None = None,
        start: Start = "latest",
        tags: PerTopic = None,
        filter: PerTopic = None,
        max_messages: int = MAX_MESSAGES,
        wait_ms: int = WAIT_MS,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        concurrency: int = 1,
        ordered: bool = True,
        on_error: OnError | None = None,
        tries: int = 1,
        commit_interval_ms: int = COMMIT_INTERVAL_MS,
        prefetch_messages: int = PREFETCH_MESSAGES,
        prefetch_bytes: int = PREFETCH_BYTES,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        consume_timeout_ms: int = CONSUME_TIMEOUT_MS,
        follower_reads: bool = True,
        on_fault: OnFault | None = None,
        client_id: str | None = None,
        connection: Connection | None = None,
        tls: Tls | None = None,
    ) -> None:
        check_group(group)
        self._selections = selections_of(check_topics(topics), tags, filter)
        if start not in ("earliest", "latest"):
            check_range("start", start, 0, 1 << 62)
        check_range("max_messages", max_messages, 1, 10_000)
        times = SessionTimes(session_timeout_ms, commit_interval_ms, close_timeout_ms)
        self.group = group
        self.member_id = secrets.token_hex(12)
        self._process_id = os.getpid()
        self._start = start
        self._client_id = client_id or default_client_id()
        self._faults = Faults(on_fault)
        self._handlers = handlers = Handlers(
            handler, batch_handler, concurrency, consume_timeout_ms, self._faults.timed_out, group, self._client_id
        )
        self._handover = handlers.handover
        self._options = ReaderOptions(
            processors=1 if ordered or handlers.handover else concurrency,
            handler_messages=max_messages if batch_handler is not None else 1,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            wait_ms=wait_ms,
            tries=tries_before_giving_back(on_error, tries, ordered=ordered),
            consume_timeout_ms=handlers.call_timeout_ms,
            follower_reads=follower_reads,
        )
        self._connection = connection or Connection(servers, tls=tls)
        self._owns_connection = connection is None
        self._close_timeout_ms = close_timeout_ms
        self._session = session = GroupSession(
            self._connection, group, self._selections, member_id=self.member_id, client_id=self._client_id, times=times
        )
        topics_read = {*self._selections, f"%RETRY%{group}"}
        self._queues = AssignedQueues(topics_read, session_timeout_ms, self._handover, self._faults)
        beginnings = GroupBeginnings(session, start)
        self._member = GroupMember(self._connection, group, session, self._queues, beginnings, self._reader, times)
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._yielded: list[ReceivedMessage] = []
        self._loop: tuple[asyncio.Task[object], object] | None = None
        self._state: Literal["new", "running", "closed"] = "new"

    @property
    def assignment(self) -> list[TopicQueue]:
        """Queues that this member reads now, sorted."""
        return sorted(self._queues.readers)

    async def start(self) -> None:
        """Join the group and begin to process messages.

        On return the group has a committed offset in each of its queues, so every message sent from now on is handled
        by this or another member, even if this one ends.

        Raises TopicNotFound, InvalidFilter, Conflict (the other members read something else), NoLeader, or after 15 s
        another Unavailable; see `run`."""
        if self._state != "new":
            raise InvalidRequest("invalid_request", f"this consumer is {self._state}: make a new one")
        self._state = "running"
        if os.getpid() != self._process_id:  # forked since: the parent or a sibling may run as this member
            self.member_id = self._session.member_id = secrets.token_hex(12)
        self._queues.stalls.start()
        # The begin of the other members matters only if it may lie after messages that are sent from now on.
        begin = self._member.begin(whole_group=self._start != "earliest")
        self._beginning = asyncio.create_task(begin)
        # Handlers may run, and commit, before the other members have begun.
        self._tasks = [asyncio.create_task(self._member.commit_for_ever())]
        try:
            await asyncio.wait([self._beginning])
            if self._closing is None:
                self._beginning.result()
        except BaseException:
            await self.close()
            raise
        if self._closing is not None:  # closed meanwhile, so a failure to begin is not an error
            await self.close()
            return
        self._tasks.append(asyncio.create_task(self._keep_session(), name="session"))

    async def run(self, *, handle_signals: bool = True) -> None:
        """Start if necessary, and process messages until `close` is called or this call is cancelled.

        The consumer is closed in any case. With `handle_signals`, SIGTERM and SIGINT close it too, and this call
        returns; this works in the main thread, and only for signals that the application does not handle itself. A
        second signal ends the process at once.

        Raises what `start` raises, and a group error that waiting cannot heal. Raises InvalidRequest for a consumer
        without a handler, which has to be iterated.
        """
        if self._handover is not None:
            detail = "run needs a handler or a batch_handler; without one, iterate: async for message in consumer"
            raise InvalidRequest("invalid_request", detail)
        with stopped_by_signals(self._begin_close) if handle_signals else contextlib.nullcontext():
            try:
                if self._state == "new":
                    await self.start()
                if self._tasks:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                await self.close()
        self._raise_failure()

    async def close(self) -> None:
        """Stop pulling, let running handlers end, commit the processed offsets, and leave the group.

        Handlers that still run after `close_timeout_ms` are cancelled. A handler that does not end within a second, or
        cannot because it is a plain function, runs on, and its message goes to the next member.

        Cancelling the caller does not stop the close: processed messages are committed. Do not call it in a handler,
        which would wait for itself.
        """
        end_processing(self._yielded)  # of a loop that was left with `break`
        await asyncio.shield(self._begin_close())

    def _begin_close(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def _close(self) -> None:
        self._state = "closed"
        try:
            self._member.close()
            if self._beginning is not None and not self._beginning.done():
                self._beginning.cancel()
                await asyncio.gather(self._beginning, return_exceptions=True)
            for reader in self._queues.readers.values():
                reader.begin_stop()
            if self._handover is not None:
                self._handover.close()
            await self._queues.stop(self._close_timeout_ms)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._queues.close()
            if self._member.has_joined:
                await self._member.leave()
        finally:
            self._handlers.close()
            if self._owns_connection:
                self._connection.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages one by one; asking for the next message marks the last one as processed.

        Raises InvalidRequest while another task iterates this consumer."""
        if self._handover is None:
            raise InvalidRequest("invalid_request", "a consumer with a handler cannot be iterated")
        task = asyncio.current_task()
        for _ in range(LEFT_LOOP_TURNS):
            if not self._is_iterated_beside(task):
                break
            await asyncio.sleep(0)
        else:
            raise InvalidRequest(
                "invalid_request",
                "another task iterates this consumer, and its message would count as processed: make a consumer for "
                "each loop, or give a handler and concurrency",
            )
        assert task is not None
        self._loop = loop = (task, object())
        try:
            if self._state == "new":
                await self.start()
            while (message := await self._handover.next()) is not None:
                self._yielded = [message]
                begin_processing(self._yielded, self.group)
                yield message
                begin_processing([], self.group)
        finally:
            if self._loop is loop:
                self._loop = None
        self._raise_failure()

    def _is_iterated_beside(self, task: "asyncio.Task[object] | None") -> bool:
        return self._loop is not None and self._loop[0] is not task and not self._loop[0].done()

    def finish(self) -> None:
        """While iterating, mark the current message as processed without asking for the next one."""
        if self._handover is not None:
            self._handover.finish()
            end_processing(self._yielded)

    # Pausing

    def pause(self, *queues: TopicQueue) -> None:
        """Stop handling and fetching messages of `queues`, each (topic, number), or of all queues, until `resume`.

        Running handler calls end and are committed. The queues stay assigned and the session is kept, so no other
        member gets them; fetched messages are kept. Queues that are not assigned now are paused when they are. Raises
        InvalidRequest for a queue that is not of the consumer's topics.
        """
        self._queues.pause(queues)

    def resume(self, *queues: TopicQueue) -> None:
        """Resume `queues` (unless all queues are paused), or all queues if none is given."""
        self._queues.resume(queues)

    @property
    def paused(self) -> list[TopicQueue]:
        """Assigned queues that are paused."""
        return [place for place in self.assignment if self._queues.is_paused(place)]

    @property
    def group_paused(self) -> bool:
        """Return whether an operator has paused the group (`keelmq group pause`), as far as this member was told.

        Nothing is handled until the group is resumed; the log says since when, by whom and why."""
        return self._member.pauses.is_paused

    def owns(self, message: ReceivedMessage) -> bool:
        """Return whether the message's queue is this member's, as far as it can know; a long handler may ask this."""
        return self._queues.owns(message)

    async def _keep_session(self) -> None:
        try:
            await self._member.keep_session()
        finally:
            if self._handover is not None:
                self._handover.close()

    def _reader(self, place: TopicQueue, position: int) -> QueueReader:
        handling = Handling(
            handle=self._handlers.handle,
            slots=self._handlers.slots,
            on_progress=self._member.progressed,
            give_back=None if self._handover is not None else self._member.give_back,
            on_timeout=self._faults.tell,
            on_expired=self._faults.expired,
            before_call=self._queues.before_call,
        )
        selection = self._selections.get(place[0], EVERYTHING)  # the group's own retries are read as a whole
        holds = self._queues.holds(place)
        options = msgspec.structs.replace(self._options, group=self._named_group)
        return QueueReader(self._connection, place, position, handling, options, selection, holds)

    def _named_group(self) -> str | None:
        return self.group if self._session.knows_pauses else None

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
