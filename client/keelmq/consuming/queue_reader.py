"""Reader of one assigned queue: prefetches within bounds, calls the handler, and tracks finished messages."""

import asyncio
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from keelmq.consuming.attempts import HandlerCancelled, log_failed_attempt
from keelmq.consuming.group_session import Pulled, TopicQueue
from keelmq.consuming.handler_call import Handle, HandlerCall
from keelmq.consuming.handover import OnTimeout, Withdrawn
from keelmq.consuming.progress import QueueProgress
from keelmq.consuming.queue_pages import NamedGroup, QueuePages
from keelmq.consuming.redelivery import RetryLater
from keelmq.consuming.selection import EVERYTHING, Selection
from keelmq.errors import Closed, ConsumeTimeout, KeelMQError, OffsetOutOfRange
from keelmq.limits import PULL_MESSAGES_MAX, WAIT_MS_MAX, check_range
from keelmq.line_log import log
from keelmq.message import ReceivedMessage
from keelmq.transport.connection import Connection
from keelmq.transport.outage import Outage
from keelmq.transport.retry import Backoff

PULL_BYTES_MAX: Final = 4 * 1024 * 1024
FETCH_PAUSE_MS: Final = 50
FETCH_PAUSE_MAX_MS: Final = 2_000
EMPTY_PAUSE_S: Final = 0.5
"""Seconds before the next pull at the end of the queue, if pulls do not wait at the broker."""
HANDLER_PAUSE_MS: Final = 100
HANDLER_PAUSE_MAX_MS: Final = 10_000

Hold = Literal["paused", "session", "assignment", "group"]
"""Reason why a queue is held: the application paused it, the member's session may be over, the group has moved on and
its committed offset is not known yet, or an operator paused the group."""

OnExpired = Callable[[str, int, int, int], None]
"""Receives topic, queue, the next offset of the group, and the first retained offset."""
GiveBack = Callable[[Sequence[ReceivedMessage], BaseException], Awaitable[None]]
"""Returns when the broker has scheduled the messages for redelivery; raises KeelMQError."""
BeforeCall = Callable[[Sequence[ReceivedMessage]], None]
"""Called before a handler call; it may hold the queue, and the call then waits."""


class ReaderOptions(msgspec.Struct, frozen=True):
    """Options of a reader, which runs at most `processors` handler calls of up to `handler_messages` messages."""

    processors: int
    handler_messages: int
    prefetch_messages: int
    prefetch_bytes: int
    wait_ms: int
    tries: int | None = None
    """Number of calls of a raising handler before its messages are given back; None calls it until it succeeds."""

    consume_timeout_ms: int | None = None
    """A handler call that takes longer is cancelled and counts as one that raised."""

    follower_reads: bool = True
    """Read old messages at a follower."""

    group: NamedGroup = lambda: None
    """Returns the group that pulls name."""

    def __post_init__(self) -> None:
        """Raise InvalidRequest for a number out of its range."""
        check_range("wait_ms", self.wait_ms, 0, WAIT_MS_MAX)
        check_range("prefetch_messages", self.prefetch_messages, 1, 1_000_000)
        check_range("prefetch_bytes", self.prefetch_bytes, 1, 1 << 40)


@dataclass(frozen=True)
class Handling:
    """The handler of a consumer's messages, and the functions that are told of its progress."""

    handle: Handle
    slots: asyncio.Semaphore
    """Bounds the handler calls of all readers of a consumer that run at the same time."""
    on_progress: Callable[[], None]
    """Called when the position has moved, or the reader has ended."""
    give_back: GiveBack | None = None
    """None: a raising handler is called again until it succeeds."""
    on_timeout: OnTimeout | None = None
    on_expired: OnExpired | None = None
    before_call: BeforeCall | None = None


class QueueReader:
    """Reads `place` from the committed offset `position` on until it is stopped.

    `committed` is the last offset that the broker is known to have, `sent` are those that it may have, since their
    commits failed or are under way; the consumer's committer sets both. A raising handler is called again with the same
    messages after a pause, or they are given back, which finishes them once the broker has them: nothing behind an
    unfinished message is ever committed.
    """

    def __init__(
        self,
        connection: Connection,
        place: TopicQueue,
        position: int,
        handling: Handling,
        options: ReaderOptions,
        selection: Selection = EVERYTHING,
        holds: Iterable[Hold] = (),
    ) -> None:
        self.place = place
        self.committed = position
        self.sent: set[int] = set()
        self._pages = QueuePages(connection, place, follower_reads=options.follower_reads, group=options.group)
        self._handling = handling
        self._options = options
        self._selection = selection
        self._holds: set[Hold] = set(holds)
        self._progress = QueueProgress(position)
        self._fetch_offset = position
        self.first_ms: int | None = None
        """Time at which the first message that was fetched was stored; None if none was fetched yet."""
        self._ready: deque[ReceivedMessage] = deque()
        self._arrived = asyncio.Event()
        self._space = asyncio.Event()
        self._stop = asyncio.Event()
        self._free = asyncio.Event()
        """Set while nothing holds the queue, or when the reader stops."""
        if not self._holds:
            self._free.set()
        self._fetcher = asyncio.create_task(self._fetch_forever())
        self._calls = [HandlerCall(options.consume_timeout_ms) for _ in range(options.processors)]
        self._processors = [asyncio.create_task(self._process_forever(call)) for call in self._calls]

    @property
    def position(self) -> int:
        """Offset that may be committed: everything before it is processed."""
        return self._progress.position

    @property
    def is_ahead(self) -> bool:
        """True when processed messages are not committed yet."""
        return self.position > self.committed

    @property
    def is_beyond(self) -> bool:
        """True when something behind the committed offset was fetched."""
        return self._fetch_offset > self.committed

    @property
    def handling(self) -> list[Sequence[ReceivedMessage]]:
        """Messages of the running handler calls, by call."""
        return [call.messages for call in self._calls if call.messages is not None]

    def require(self, applied_index: int) -> None:
        """Require that every node asked from now on has applied this entry."""
        self._pages.require(applied_index)

    def refetch(self) -> None:
        """Abort a pull in flight and begin it again, because the node that it waits for may be gone."""
        if not self._stop.is_set():
            self._fetcher.cancel()
            self._fetcher = asyncio.create_task(self._fetch_forever())

    def hold(self, why: Hold) -> None:
        """Fetch nothing more and begin no handler call; running calls end, and fetched messages stay. Idempotent."""
        self._holds.add(why)
        if not self._stop.is_set():
            self._free.clear()
            self.refetch()

    def go_on(self, why: Hold) -> None:
        """Release a hold; without further holds the reader goes on at its position. Idempotent."""
        self._holds.discard(why)
        if not self._holds:
            self._free.set()

    def begin_stop(self) -> None:
        """Fetch no more messages and begin no handler call. Idempotent."""
        self._stop.set()
        self._arrived.set()
        self._free.set()
        self._fetcher.cancel()

    async def stop(self, grace_ms: float) -> None:
        """Stop; running handler calls get `grace_ms` to end, then they are cancelled. Idempotent."""
        self.begin_stop()
        _, late = await asyncio.wait(self._processors, timeout=grace_ms / 1000)
        for task in late:
            log.warning("%s/%d: the handler did not end within %.0f ms and is cancelled", *self.place, grace_ms)
            task.cancel()
        await asyncio.gather(self._fetcher, *self._processors, return_exceptions=True)

    async def _fetch_forever(self) -> None:
        backoff, outage = Backoff(FETCH_PAUSE_MS, FETCH_PAUSE_MAX_MS), Outage()
        while True:
            room = await self._room()
            try:
                pulled = await self._pages.next(
                    self._fetch_offset,
                    max_messages=min(room, PULL_MESSAGES_MAX),
                    max_bytes=min(self._options.prefetch_bytes, PULL_BYTES_MAX),
                    wait_ms=self._options.wait_ms,
                    selection=self._selection,
                )
            except Closed:
                return
            except OffsetOutOfRange as exc:
                # Never skip silently: an operator resets the group, which starts this queue anew.
                log.error("%s/%d cannot be read at %d: %s", *self.place, self._fetch_offset, exc)
                await asyncio.sleep(FETCH_PAUSE_MAX_MS / 1000)
                continue
            except KeelMQError as exc:
                log.log(outage.level(exc), "%s/%d cannot be read, trying again: %s", *self.place, exc)
                await asyncio.sleep(backoff.next_s())
                continue
            except Exception:  # a bug here must not stop a queue in silence
                log.exception("%s/%d cannot be read, trying again", *self.place)
                await asyncio.sleep(FETCH_PAUSE_MAX_MS / 1000)
                continue
            backoff.reset()
            outage.ended()
            goes_on = pulled.next_offset > self._fetch_offset
            self._accept(pulled)
            if not goes_on and not self._options.wait_ms:
                await asyncio.sleep(EMPTY_PAUSE_S)

    async def _room(self) -> int:
        """Return how many messages may be fetched; wait until that is at least one and nothing holds the queue."""
        options, progress = self._options, self._progress
        await self._free.wait()
        while progress.count >= options.prefetch_messages or progress.bytes >= options.prefetch_bytes:
            self._space.clear()
            await self._space.wait()
        return options.prefetch_messages - progress.count

    def _accept(self, pulled: Pulled) -> None:
        messages = pulled.messages
        if pulled.min_offset > self._fetch_offset and self._handling.on_expired is not None:
            self._handling.on_expired(*self.place, self._fetch_offset, pulled.min_offset)
        self._progress.add([message.offset for message in messages], [len(message.body) for message in messages])
        self._ready.extend(messages)
        self._fetch_offset = pulled.next_offset
        if messages:
            self.first_ms = messages[0].stored_at_ms if self.first_ms is None else self.first_ms
            self._arrived.set()
        if self._progress.reach(pulled.next_offset):
            self._handling.on_progress()

    async def _process_forever(self, call: HandlerCall) -> None:
        try:
            while messages := await self._take():
                if not await self._handle_until_done(call, messages):
                    return
                if self._progress.finish([message.offset for message in messages]):
                    self._space.set()
                    self._handling.on_progress()
        finally:
            call.close()

    async def _take(self) -> list[ReceivedMessage]:
        """Return the next messages for one handler call; an empty list when the reader stops."""
        ready = self._ready
        await self._free.wait()
        while not ready and not self._stop.is_set():
            self._arrived.clear()
            await self._arrived.wait()
            await self._free.wait()
        if self._stop.is_set():
            return []
        if self._options.handler_messages == 1:
            return [ready.popleft()]
        return [ready.popleft() for _ in range(min(self._options.handler_messages, len(ready)))]

    async def _handle_until_done(self, call: HandlerCall, messages: list[ReceivedMessage]) -> bool:
        """Call the handler until it succeeds or its messages are given back; False when the reader stopped before."""
        backoff = Backoff(HANDLER_PAUSE_MS, HANDLER_PAUSE_MAX_MS)
        for tried in itertools.count(1):
            try:
                return await self._handle_when_free(call, messages)
            except Withdrawn:
                if self._stop.is_set():
                    return False
                continue
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                if self._stop.is_set():
                    return False
                failure: BaseException = HandlerCancelled("the handler raised CancelledError")
            except (SystemExit, KeyboardInterrupt):  # the application ends
                raise
            except BaseException as exc:  # a queue must not stop in silence, whatever a handler raises
                failure = exc
            if self._gives_back(failure, tried):
                self._report(failure, messages, tried, "given back")
                return await self._give_back_until_done(messages, failure)
            pause_s = backoff.next_s()
            self._report(failure, messages, tried, f"called again in {pause_s:.1f} s")
            if await self._stops_within(pause_s):
                return False
        raise AssertionError("counted to the end")

    async def _handle_when_free(self, call: HandlerCall, messages: list[ReceivedMessage]) -> bool:
        """Call the handler when a slot is free and nothing holds the queue; False when the reader stopped before."""
        while True:
            await self._free.wait()
            async with self._handling.slots:
                if self._stop.is_set():  # stopped while waiting: the queue may belong to another member by now
                    return False
                if self._handling.before_call is not None and self._free.is_set():
                    self._handling.before_call(messages)
                if self._free.is_set():
                    await call.run(self._handling.handle, messages)
                    return True

    def _report(self, failure: BaseException, messages: list[ReceivedMessage], tried: int, following: str) -> None:
        if isinstance(failure, RetryLater) and self._handling.give_back is None:
            following = f"nothing is given back here: {following}"
        log_failed_attempt(failure, messages, tried, following)
        if isinstance(failure, ConsumeTimeout) and self._handling.on_timeout is not None:
            self._handling.on_timeout(failure, messages)

    def _gives_back(self, failure: BaseException, tried: int) -> bool:
        if self._handling.give_back is None:
            return False
        if isinstance(failure, HandlerCancelled):
            return False
        return isinstance(failure, RetryLater) or (self._options.tries is not None and tried >= self._options.tries)

    async def _give_back_until_done(self, messages: list[ReceivedMessage], failure: BaseException) -> bool:
        """Give the messages back until the broker has them.

        Returns False when the reader stopped before; the messages are unfinished then."""
        assert self._handling.give_back is not None
        backoff = Backoff(FETCH_PAUSE_MS, FETCH_PAUSE_MAX_MS)
        while not self._stop.is_set():
            try:
                await self._handling.give_back(messages, failure)
            except KeelMQError as exc:
                log.warning("%s/%d: offset %d is not given back yet: %s", *self.place, messages[0].offset, exc)
            except Exception:  # as for fetching: a bug must not stop a queue in silence
                log.exception("%s/%d: offset %d is not given back yet", *self.place, messages[0].offset)
            else:
                return True
            if await self._stops_within(backoff.next_s()):
                break
        return False

    async def _stops_within(self, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                await self._stop.wait()
        except TimeoutError:
            return False
        return True
