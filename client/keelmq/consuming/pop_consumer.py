"""PopConsumer: a stateless worker. The broker distributes single messages among any number of workers."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

from keelmq.consuming.assigned_queues import CANCELLED_GRACE_MS
from keelmq.consuming.attempts import HandlerCancelled, log_failed_attempt
from keelmq.consuming.faults import FAULT_PAUSE_S, Faults, OnFault
from keelmq.consuming.handler_call import HandlerCall, handle_of
from keelmq.consuming.handlers import CONSUME_TIMEOUT_MS_MAX
from keelmq.consuming.pop_calls import (
    INVISIBLE_MS,
    PopCalls,
    PoppedMessage,
    Start,
)
from keelmq.consuming.redelivery import RetryLater, wish_of
from keelmq.consuming.selection import Selection
from keelmq.consuming.stop_signals import stopped_by_signals
from keelmq.errors import Closed, Conflict, ConsumeTimeout, InvalidRequest, KeelMQError, NotFound
from keelmq.limits import (
    POP_ACKS_MAX,
    POP_INVISIBLE_MS_MAX,
    POP_MESSAGES_MAX,
    WAIT_MS_MAX,
    check_group,
    check_range,
    check_topic,
)
from keelmq.line_log import log
from keelmq.message import ReceivedMessage
from keelmq.plain_calls import WorkerThreads
from keelmq.producing.producer import default_client_id
from keelmq.transport.connection import Connection
from keelmq.transport.outage import Outage
from keelmq.transport.tls import Tls

WAIT_MS: Final = 15_000
CLOSE_TIMEOUT_MS: Final = 10_000
CONSUME_TIMEOUT_MS: Final = 15 * 60_000
INVISIBLE_MS_MIN: Final = 1_000
CONCURRENCY: Final = 8
PAUSE_S: Final = 0.5
"""Seconds before the next request after a failed or refused one."""


class PopConsumer:
    """Processes messages of `topic` for `group`, at least once each; with keelmq.inbox exactly once.

    Any number of pop consumers share the messages, whatever the number of queues; there is no membership, and no order.

    `handler` is called for up to `concurrency` messages at a time. While it runs, the message is leased: its
    invisibility of `invisible_ms` is renewed after every third of that time. When the handler returns, the message is
    acknowledged. When it raises, or takes longer than `consume_timeout_ms`, the message is given back: it is
    redelivered after the group's backoff to any worker, and becomes a dead letter in the end. RetryLater with a delay
    keeps it from all workers for that delay, at most 12 hours.

    A worker that dies, or cannot reach the cluster for `invisible_ms`, loses its leases: other workers get the
    messages. A handler that still runs then is fenced: its message is not acknowledged, and `on_fault` receives
    QueueLost.

    `tags` or `filter` select messages, the same for all workers of the group; other messages are skipped. A group has
    members (Consumer) or pop consumers, not both: Conflict (`group_has_members`). A pop consumer belongs to one event
    loop.
    """

    def __init__(
        self,
        handler: Callable[[ReceivedMessage], object],
        *,
        topic: str,
        group: str,
        servers: str | Sequence[str] = (),
        concurrency: int = CONCURRENCY,
        start: Start = "earliest",
        tags: str | None = None,
        filter: str | None = None,
        invisible_ms: int = INVISIBLE_MS,
        wait_ms: int = WAIT_MS,
        close_timeout_ms: int = CLOSE_TIMEOUT_MS,
        consume_timeout_ms: int = CONSUME_TIMEOUT_MS,
        on_fault: OnFault | None = None,
        client_id: str | None = None,
        connection: Connection | None = None,
        tls: Tls | None = None,
    ) -> None:
        check_group(group)
        check_topic(topic)
        check_range("concurrency", concurrency, 1, 1_024)
        if start not in ("earliest", "latest"):
            raise InvalidRequest("invalid_request", "start: earliest or latest")
        if tags is not None and filter is not None:
            raise InvalidRequest("invalid_request", "tags or filter, not both")
        check_range("invisible_ms", invisible_ms, INVISIBLE_MS_MIN, POP_INVISIBLE_MS_MAX)
        check_range("wait_ms", wait_ms, 0, WAIT_MS_MAX)
        check_range("close_timeout_ms", close_timeout_ms, 0, 3_600_000)
        check_range("consume_timeout_ms", consume_timeout_ms, 1, CONSUME_TIMEOUT_MS_MAX)
        if connection is None and not servers:
            raise InvalidRequest("invalid_request", "give servers or a connection")
        self.group = group
        self._connection = connection or Connection(servers, tls=tls)
        self._owns_connection = connection is None
        client_id = client_id or default_client_id()
        self._calls = PopCalls(self._connection, group, topic, Selection(tags, filter), client_id)
        self._threads = WorkerThreads(concurrency)
        self._handle = handle_of(handler, None, None, self._threads, group, client_id)
        self._faults = Faults(on_fault)
        self._start: Start = start
        self._concurrency = concurrency
        self._invisible_ms, self._wait_ms = invisible_ms, wait_ms
        self._close_timeout_ms, self._consume_timeout_ms = close_timeout_ms, consume_timeout_ms
        self._running: dict[asyncio.Task[None], PoppedMessage] = {}
        self._freed = asyncio.Event()
        self._acks: dict[str, PoppedMessage] = {}
        self._acks_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._state: Literal["new", "running", "closed"] = "new"

    @property
    def group_paused(self) -> bool:
        """Return whether an operator has paused the group, as the last answer to a pop told (Consumer.group_paused)."""
        return self._calls.pauses.is_paused

    async def start(self) -> None:
        """Begin to pop messages; errors of group, topic or filter are raised by `run`."""
        if self._state != "new":
            raise InvalidRequest("invalid_request", f"this consumer is {self._state}: make a new one")
        self._state = "running"
        self._tasks = [asyncio.create_task(self._pop_forever()), asyncio.create_task(self._ack_forever())]

    async def run(self, *, handle_signals: bool = True) -> None:
        """Process messages until `close` is called or this call is cancelled; always closes the consumer.

        Raises an error that waiting cannot heal: the topic does not exist, the filter is invalid, or the group has
        members or is popped for another topic or selection. `handle_signals` is as in Consumer.run."""
        with stopped_by_signals(self._begin_close) if handle_signals else contextlib.nullcontext():
            try:
                if self._state == "new":
                    await self.start()
                if self._tasks:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            finally:
                await self.close()
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def close(self) -> None:
        """Stop popping, let running handlers end (up to `close_timeout_ms`), acknowledge the processed messages.

        Handlers that still run then are cancelled, and their messages are given back for immediate redelivery. Do not
        call it in a handler, which would wait for itself."""
        await asyncio.shield(self._begin_close())

    def _begin_close(self) -> "asyncio.Task[None]":
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return self._closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _close(self) -> None:
        self._state = "closed"
        try:
            for task in self._tasks[:1]:  # the task that pops
                await _end(task)
            if self._running:
                await asyncio.wait(self._running, timeout=self._close_timeout_ms / 1000)
            left = dict(self._running)
            for task in left:
                task.cancel()
            if left:
                _, stuck = await asyncio.wait(left, timeout=CANCELLED_GRACE_MS / 1000)
                for task in stuck:
                    message = left[task].message
                    log.error("%s %s: its handler runs on unheeded after close", message.topic, message.message_id)
            unfinished = [each for each in left.values() if each.receipt_handle not in self._acks]
            await asyncio.gather(*map(self._release, unfinished))
            for task in self._tasks[1:]:
                await _end(task)
            while self._acks:
                await self._send_acks()
        except Exception as exc:
            log.warning("group %s: the last messages are not acknowledged and come again: %s", self.group, exc)
        finally:
            self._threads.close()
            if self._owns_connection:
                self._connection.close()

    async def _pop_forever(self) -> None:
        outage = Outage()
        while True:
            free = self._concurrency - len(self._running)
            if not free:
                self._freed.clear()
                await self._freed.wait()
                continue
            try:
                most = min(free, POP_MESSAGES_MAX)
                popped = await self._calls.pop(most, self._invisible_ms, self._wait_ms, self._start)
            except (InvalidRequest, Conflict, NotFound, Closed) as exc:
                log.error("group %s: cannot go on: %s", self.group, exc)
                raise
            except KeelMQError as exc:
                log.log(outage.level(exc), "group %s: nothing can be taken at the moment: %s", self.group, exc)
                await asyncio.sleep(PAUSE_S)
                continue
            except Exception:  # a bug, or the application's token function: nothing must stop in silence
                log.exception("group %s: nothing can be taken at the moment", self.group)
                await asyncio.sleep(FAULT_PAUSE_S)
                continue
            outage.ended()
            for each in popped:
                task = asyncio.create_task(self._process(each))
                self._running[task] = each
                task.add_done_callback(self._ended)
            if not popped and not self._wait_ms:
                await asyncio.sleep(PAUSE_S)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._freed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("group %s: a message was neither acknowledged nor given back", self.group, exc_info=error)

    async def _process(self, popped: PoppedMessage) -> None:
        message, handle = popped.message, popped.receipt_handle
        lost = asyncio.Event()
        renewing = asyncio.create_task(self._renew_lease(popped, lost))
        call = HandlerCall(self._consume_timeout_ms)
        failure: BaseException | None = None
        try:
            await call.run(self._handle, [message])
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            failure = HandlerCancelled("the handler raised CancelledError")
        except (SystemExit, KeyboardInterrupt):  # the application ends
            raise
        except BaseException as exc:  # every message must be acknowledged or given back, whatever a handler raises
            failure = exc
        finally:
            call.close()
            await _end(renewing)
        if failure is not None:
            log_failed_attempt(failure, [message], 1, "given to others by now" if lost.is_set() else "given back")
        if isinstance(failure, ConsumeTimeout):
            self._faults.tell(failure, [message])
        if lost.is_set():
            return
        if failure is None:
            self._acks[handle] = popped
            self._acks_due.set()
            return
        with contextlib.suppress(Conflict):
            await self._give_back(handle, failure)

    async def _give_back(self, handle: str, failure: BaseException) -> None:
        _, reason = wish_of(failure)
        try:
            if isinstance(failure, RetryLater) and failure.delay_ms:
                await self._calls.hold(handle, min(failure.delay_ms, POP_INVISIBLE_MS_MAX))
            else:
                at_once = isinstance(failure, RetryLater) and failure.delay_ms == 0
                await self._calls.give_back(handle, at_once=at_once, reason=reason)
        except Conflict:
            raise
        except KeelMQError as exc:
            log.warning("group %s: a message comes again when its time is over: %s", self.group, exc)

    async def _release(self, popped: PoppedMessage) -> None:
        try:
            await self._calls.give_back(popped.receipt_handle, at_once=True, reason="the consumer was closed")
        except Exception as exc:
            log.warning("group %s: a message comes again when its time is over: %s", self.group, exc)

    async def _renew_lease(self, popped: PoppedMessage, lost: asyncio.Event) -> None:
        """Renew the lease of the message; set `lost` when the lease is no longer held."""
        while True:
            await asyncio.sleep(self._invisible_ms / 3000)
            try:
                await self._calls.hold(popped.receipt_handle, self._invisible_ms)
            except (Conflict, NotFound) as exc:
                lost.set()
                self._faults.fenced([[popped.message]], f"the message is not this consumer's any more: {exc.detail}")
                return
            except Closed:
                return
            except Exception as exc:  # whatever it is, the next renewal may still be in time
                log.warning("group %s: a message cannot be held on to at the moment: %s", self.group, exc)

    async def _ack_forever(self) -> None:
        outage = Outage()
        while True:
            await self._acks_due.wait()
            try:
                await self._send_acks()
                outage.ended()
            except Closed:
                raise
            except KeelMQError as exc:
                log.log(outage.level(exc), "group %s: nothing can be acknowledged at the moment: %s", self.group, exc)
                await asyncio.sleep(PAUSE_S)
            except Exception:
                log.exception("group %s: nothing can be acknowledged at the moment", self.group)
                await asyncio.sleep(FAULT_PAUSE_S)

    async def _send_acks(self) -> None:
        """Acknowledge the processed messages; each stays pending until its acknowledgement is answered."""
        handles = list(self._acks)[:POP_ACKS_MAX]
        if not handles:
            self._acks_due.clear()
            return
        for handle, acked in (await self._calls.ack(handles)).items():
            popped = self._acks.pop(handle, None)
            if popped is not None and not acked:
                self._faults.fenced([[popped.message]], "its time was over before it was acknowledged")
        if not self._acks:
            self._acks_due.clear()


async def _end(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
