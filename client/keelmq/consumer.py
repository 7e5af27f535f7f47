"""Consumer: a member of a group that processes messages and commits offsets only after the handler has finished."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from keelmq import wire
from keelmq.assigned_queues import AssignedQueues
from keelmq.causation import begin_processing
from keelmq.connection import Connection
from keelmq.errors import (
    Conflict,
    InvalidRequest,
    KeelMQError,
    MemberNotFound,
    NotAssigned,
    OffsetMovesBack,
    StaleGeneration,
)
from keelmq.faults import Faults, OnFault
from keelmq.group_session import OFFSETS_PER_COMMIT_MAX, GroupSession, TopicQueue
from keelmq.handler_call import handle_of
from keelmq.handover import Handover
from keelmq.limits import check_group, check_range, check_topic
from keelmq.message import ReceivedMessage
from keelmq.producer import default_client_id
from keelmq.queue_reader import QueueReader, ReaderOptions
from keelmq.redelivery import wish_of
from keelmq.selection import EVERYTHING, PerTopic, selections_of

MAX_MESSAGES: Final = 32
WAIT_MS: Final = 15_000
SESSION_TIMEOUT_MS: Final = 30_000
HEARTBEAT_MS_MAX: Final = 3_000
COMMIT_INTERVAL_MS: Final = 100
PREFETCH_MESSAGES: Final = 1_000
PREFETCH_BYTES: Final = 100 * 1024 * 1024
CLOSE_TIMEOUT_MS: Final = 10_000
CONSUME_TIMEOUT_MS: Final = 15 * 60_000
CONSUME_TIMEOUT_MS_MAX: Final = 7 * 24 * 3_600_000
CALL_TIMEOUT_MS: Final = 5_000

log = logging.getLogger("keelmq")

OnError = Literal["block", "give_back"]
Start = Literal["earliest", "latest"] | int
"""Where a group without a committed offset begins: a Unix time in ms is the first message stored at or after it."""


class Consumer:
    """Processes `topics` as a member of `group`, at least once per message; with keelmq.inbox exactly once.

    Give `handler` (one message) or `batch_handler` (up to `max_messages` of one queue), or iterate. A message counts
    as processed when its handler returned, or when the loop asks for the next one. With `ordered` (the default) a
    queue's messages are handled one after the other and `concurrency` bounds the queues handled at a time; without,
    it bounds the calls, several of them for one queue.

    What a handler raises for is called again after a pause, and its queue's committed offset does not move meanwhile
    (`on_error="block"`, the default of an `ordered` consumer), or is given back after `tries` calls: it comes again
    after the group's back-off, is a dead letter in the end, and the queue goes on (`"give_back"`, the default of the
    others). RetryLater is always given back.

    A handler call that takes longer than `consume_timeout_ms` is cancelled, and counts as one that raised
    ConsumeTimeout. When a queue is, or may be, another member's, no handler call begins for it, what runs has
    `close_timeout_ms` to end once that is certain, and nothing is committed. Both are logged, and `on_fault` is called.

    `tags` ("A || B") or `filter` (SQL92 on the properties, docs/filters.md) choose messages, for all topics or by a
    mapping for some; the broker evaluates them. The rest is never handled, and offsets move on past it.

    Per queue at most `prefetch_messages` and `prefetch_bytes` are held, plus one batch. Belongs to one event loop.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        topics: str | Sequence[str],
        handler: Callable[[ReceivedMessage], Awaitable[object]] | None = None,
        *,
        batch_handler: Callable[[Sequence[ReceivedMessage]], Awaitable[object]] | None = None,
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
        on_fault: OnFault | None = None,
        client_id: str | None = None,
        connection: Connection | None = None,
    ) -> None:
        names = [topics] if isinstance(topics, str) else list(topics)
        check_group(group)
        if not names:
            raise InvalidRequest("invalid_request", "topics: a consumer needs at least one")
        for topic in names:
            check_topic(topic)
        if handler is not None and batch_handler is not None:
            raise InvalidRequest("invalid_request", "give handler or batch_handler, not both")
        if start not in ("earliest", "latest"):
            check_range("start", start, 0, 1 << 62)
        check_range("max_messages", max_messages, 1, 10_000)
        check_range("wait_ms", wait_ms, 0, 30_000)
        check_range("session_timeout_ms", session_timeout_ms, 1_000, 1_800_000)
        check_range("concurrency", concurrency, 1, 1_024)
        check_range("tries", tries, 1, 1_000)
        if on_error not in (None, "block", "give_back"):
            raise InvalidRequest("invalid_request", "on_error: block or give_back")
        check_range("commit_interval_ms", commit_interval_ms, 0, 60_000)
        check_range("prefetch_messages", prefetch_messages, 1, 1_000_000)
        check_range("prefetch_bytes", prefetch_bytes, 1, 1 << 40)
        check_range("close_timeout_ms", close_timeout_ms, 0, 3_600_000)
        check_range("consume_timeout_ms", consume_timeout_ms, 1, CONSUME_TIMEOUT_MS_MAX)
        self.group = group
        self.member_id = secrets.token_hex(12)
        self._topics = names
        self._selections = selections_of(names, tags, filter)
        self._start = start
        self._connection = connection or Connection(servers)
        self._owns_connection = connection is None
        self._client_id = client_id or default_client_id()
        self._faults = Faults(on_fault)
        iterated = handler is None and batch_handler is None
        self._handover = Handover(consume_timeout_ms, self._faults.timed_out) if iterated else None
        self._handle = handle_of(handler, batch_handler, self._handover, group, self._client_id)
        self._slots = asyncio.Semaphore(1 if self._handover else concurrency)
        self._options = ReaderOptions(
            processors=1 if ordered or self._handover else concurrency,
            handler_messages=max_messages if batch_handler is not None else 1,
            prefetch_messages=prefetch_messages,
            prefetch_bytes=prefetch_bytes,
            wait_ms=wait_ms,
            tries=tries if (on_error or ("block" if ordered else "give_back")) == "give_back" else None,
            consume_timeout_ms=None if iterated else consume_timeout_ms,
        )
        self._heartbeat_s = min(session_timeout_ms / 3, HEARTBEAT_MS_MAX) / 1000
        self._commit_interval_s = commit_interval_ms / 1000
        self._close_timeout_ms = close_timeout_ms
        self._session = GroupSession(
            self._connection,
            group,
            self._selections,
            member_id=self.member_id,
            client_id=self._client_id,
            session_timeout_ms=session_timeout_ms,
            call_timeout_ms=min(CALL_TIMEOUT_MS, session_timeout_ms),
        )
        reads = {*names, f"%RETRY%{group}"}
        self._queues = AssignedQueues(reads, session_timeout_ms, self._handover, self._faults)
        self._readers = self._queues.readers
        self._first_queues: dict[str, int] = {}
        self._read_before: set[TopicQueue] = set()
        self._generation = -1
        self._settled = False
        self._node = ""
        self._progress = asyncio.Event()
        self._commit_lock = asyncio.Lock()
        self._refresh = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._state: Literal["new", "running", "closed"] = "new"

    @property
    def assignment(self) -> list[TopicQueue]:
        """The queues this member reads now."""
        return sorted(self._readers)

    async def start(self) -> None:
        """Join the group and begin. Raises TopicNotFound, InvalidFilter, Conflict (the other members read something
        else) or NoLeader; see `run`."""
        if self._state != "new":
            raise InvalidRequest("invalid_request", f"this consumer is {self._state}: make a new one")
        self._state = "running"
        try:
            for topic in self._topics:
                self._first_queues[topic] = await self._session.queue_count(topic)
            await self._apply(await self._join())
        except BaseException:
            await self.close()
            raise
        if self._closing is not None:  # meanwhile, and what closed it knew of no membership yet that it could end
            await self._say_goodbye()
            return
        self._tasks = [asyncio.create_task(self._keep_session()), asyncio.create_task(self._commit_forever())]

    async def run(self) -> None:
        """Start if need be, then process until `close` is called or this is cancelled; closes in any case.

        Raises what `start` raises, and an error of the group that no waiting can heal.
        """
        try:
            if self._state == "new":
                await self.start()
            if self._tasks:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            await self.close()
        self._raise_failure()

    async def close(self) -> None:
        """Pull no more, let running handlers end (up to `close_timeout_ms`), commit what they finished, leave.

        A caller that is cancelled meanwhile does not stop it: what is finished is committed. Not for use in a handler,
        which would wait for itself.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._state = "closed"
        try:
            for reader in self._readers.values():
                reader.begin_stop()
            if self._handover is not None:
                self._handover.close()
            await self._queues.stop(self._close_timeout_ms)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._queues.session.close()
            if self._generation >= 0:
                await self._say_goodbye()
        finally:
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
        """Messages one by one; asking for the next one is what finishes the last one."""
        if self._handover is None:
            raise InvalidRequest("invalid_request", "a consumer with a handler cannot be iterated")
        if self._state == "new":
            await self.start()
        while (message := await self._handover.next()) is not None:
            begin_processing([message], self.group)
            yield message
            begin_processing([], self.group)
        self._raise_failure()

    def finish(self) -> None:
        """While iterating: the message at hand is processed, also when no further one is asked for."""
        if self._handover is not None:
            self._handover.finish()

    # Pausing

    def pause(self, *queues: TopicQueue) -> None:
        """Handle and fetch no more of `queues`, (topic, number) each, or of everything, until `resume`.

        Handler calls that run end, and are committed. The queues stay assigned, and the session is kept, so nobody
        else gets them; what is fetched is kept. Queues that are not assigned now are paused when they are. Raises
        InvalidRequest for what is no queue of the consumer's topics.
        """
        self._queues.pause(queues)

    def resume(self, *queues: TopicQueue) -> None:
        """Go on with `queues` (unless everything is paused), or with everything, where they were paused."""
        self._queues.resume(queues)

    @property
    def paused(self) -> list[TopicQueue]:
        """The queues of the assignment that are paused."""
        return [place for place in self.assignment if self._queues.is_paused(place)]

    def owns(self, message: ReceivedMessage) -> bool:
        """Whether the message's queue is this member's, as far as it can know: a handler that takes long may ask."""
        return self._queues.owns(message)

    # Membership

    async def _keep_session(self) -> None:
        try:
            while True:
                due_s = asyncio.get_running_loop().time() + self._heartbeat_s
                if await self._refresh_membership():
                    continue
                # Not wait_for: before Python 3.12 it forgets a cancellation that comes with what it waits for.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due_s):
                        await self._refresh.wait()
        finally:
            if self._handover is not None:
                self._handover.close()

    async def _refresh_membership(self) -> bool:
        """True when the next heartbeat may begin at once, for it waits at the broker until something changes."""
        before, wait_ms = self._generation, int(self._heartbeat_s * 1000) if self._settled else 0
        try:
            try:
                sent_at_s = asyncio.get_running_loop().time()
                membership, waited = await self._session.heartbeat(before, wait_ms, self._refresh)
                self._queues.session.renewed(sent_at_s)
            except MemberNotFound:
                log.warning("group %s: the session was over, joining again", self.group)
                membership, waited = await self._join(), False
            await self._apply(membership)
            self._queues.go_on_if_session_lasts()
        except KeelMQError as exc:
            if isinstance(exc, InvalidRequest | Conflict):
                log.error("group %s: cannot go on: %s", self.group, exc)
                raise
            log.warning("group %s: the session cannot be kept at the moment: %s", self.group, exc)
            return False
        return self._settled and (not waited or membership.generation != before)

    async def _join(self) -> wire.Membership:
        sent_at_s = asyncio.get_running_loop().time()
        membership = await self._session.join()
        self._queues.session.renewed(sent_at_s)
        return membership

    async def _apply(self, membership: wire.Membership) -> None:
        """Make the readers what the membership says, and notice offsets that were reset."""
        if self._node != self._connection.current:
            self._node = self._connection.current
            for reader in self._readers.values():
                reader.refetch()
        if self._settled and membership.generation == self._generation:
            return
        wanted = {(each.topic, each.queue) for each in membership.assignment}
        async with self._commit_lock:  # a commit under way would look like a reset
            committed = await self._session.committed()
            for place, reader in list(self._readers.items()):
                moved = committed.get(place) not in (reader.committed, reader.sent)
                if moved or place not in wanted:
                    why = "the group's offset was moved" if place in wanted else "the queue is another member's"
                    self._queues.release(place, why, self._close_timeout_ms, self._refresh.set)
        new = wanted - self._readers.keys() - self._queues.leaving.keys()
        positions = {place: await self._first_offset(place, committed) for place in new}
        if self._state == "closed":
            return
        for place, position in positions.items():
            self._read_before.add(place)
            self._readers[place] = self._reader(place, position, committed.get(place))
        self._generation = membership.generation
        self._settled = wanted == self._readers.keys()
        self._progress.set()
        log.info("group %s: generation %d, reading %s", self.group, self._generation, self.assignment)

    def _reader(self, place: TopicQueue, position: int, committed: int | None) -> QueueReader:
        return QueueReader(
            self._connection,
            place,
            position,
            committed,
            self._handle,
            self._slots,
            self._options,
            self._progress.set,
            self._selections.get(place[0], EVERYTHING),  # the group's own retries are read as a whole
            None if self._handover is not None else self._give_back,
            self._faults.timed_out,
            self._faults.expired,
            self._queues.holds(place),
        )

    async def _first_offset(self, place: TopicQueue, committed: Mapping[TopicQueue, int]) -> int:
        if place in committed:
            return committed[place]
        topic, queue = place
        # A queue that the topic got while this consumer ran, or lost its offset in (the topic was deleted and created
        # again), holds only messages that nobody has seen.
        if queue >= self._first_queues.get(topic, 0) or place in self._read_before:
            return await self._session.offset_at(place, "earliest")
        return await self._session.offset_at(place, self._start)

    # Offsets

    async def _commit_forever(self) -> None:
        while True:
            await self._progress.wait()
            self._progress.clear()
            try:
                async with self._commit_lock:
                    await self._commit()
            except (StaleGeneration, NotAssigned, MemberNotFound, OffsetMovesBack) as exc:
                log.info("group %s: commit refused, looking at the assignment: %s", self.group, exc)
                self._look_at_assignment()
            except KeelMQError as exc:
                log.warning("group %s: offsets cannot be committed at the moment: %s", self.group, exc)
                self._progress.set()
            await asyncio.sleep(self._commit_interval_s)

    async def _commit(self) -> None:
        readers = self._readers.values()
        # Where the group begins is told first: what is before it was skipped, not processed.
        await self._commit_all([(each, each.begin) for each in readers if each.committed is None], begins=True)
        await self._commit_all([(each, each.position) for each in readers if each.position != each.committed])

    async def _commit_all(self, due: Sequence[tuple[QueueReader, int]], *, begins: bool = False) -> None:
        for first in range(0, len(due), OFFSETS_PER_COMMIT_MAX):
            part = due[first : first + OFFSETS_PER_COMMIT_MAX]
            for reader, position in part:
                reader.sent = position
            offsets = {reader.place: position for reader, position in part}
            await self._session.commit(self._generation, offsets, begins=begins)
            for reader, position in part:
                reader.committed = position

    async def _give_back(self, messages: Sequence[ReceivedMessage], failure: Exception) -> None:
        delay_ms, reason = wish_of(failure)
        try:
            generation = await self._session.give_back(self._generation, messages, delay_ms, reason)
        except (StaleGeneration, NotAssigned, MemberNotFound, OffsetMovesBack):
            self._look_at_assignment()
            raise
        if generation != self._generation:
            self._look_at_assignment()

    def _look_at_assignment(self) -> None:
        self._settled = False
        self._refresh.set()

    async def _say_goodbye(self) -> None:
        try:
            await self._commit()
        except KeelMQError as exc:
            log.warning("group %s: the last offsets are not committed: %s", self.group, exc)
        try:
            await self._session.leave()
        except MemberNotFound:
            pass
        except KeelMQError as exc:
            log.warning("group %s: not left, the session ends by its time-out: %s", self.group, exc)

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error
