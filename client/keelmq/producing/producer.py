"""Producer: batches concurrent sends automatically, and adds no delay when no request is in flight."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from keelmq import wire
from keelmq.blocks.batch import MESSAGE_OVERHEAD_BYTES, BatchIds, entry_bytes_max, key_bytes_min, make_entry
from keelmq.blocks.batch import encode_messages as encode_block
from keelmq.causation import batch_with_cause, current_cause, with_cause
from keelmq.errors import Closed, Corrupt, NotFound, NotScheduled
from keelmq.limits import (
    BATCH_MESSAGES_MAX,
    BLOCK_BYTES_MAX,
    BODY_BYTES_MAX,
    QUEUES_MAX,
    check_attributes,
    check_batch_id,
    check_body,
    check_group,
    check_range,
    check_writable_topic,
)
from keelmq.line_log import log
from keelmq.message import BatchResult, Message, Receipt, SendResult
from keelmq.producing.delay import Delay, delay_of
from keelmq.producing.destination import batch_delay, batch_destination, choice
from keelmq.producing.lane import Backlog, Batch, Lane
from keelmq.producing.queue_selectors import Selector
from keelmq.producing.routing import TopicRoute
from keelmq.producing.scheduled import cancel_scheduled
from keelmq.tracing import end_send, end_with, in_use, start_send, traceparent_of
from keelmq.transport.answer_time import AnswerTime
from keelmq.transport.connection import Connection
from keelmq.transport.known_nodes import DEFAULT_SERVERS
from keelmq.transport.retry import Clock, Deadline
from keelmq.transport.tls import Tls

SEND_TIMEOUT_MS: Final = 3_000
RETRIES: Final = 2
ONE_WAY_TRIES: Final = 1
COLLECT_BYTES_MAX: Final = 1024 * 1024
COLLECT_MESSAGES_MAX: Final = 2_000
IN_FLIGHT_MAX: Final = 16
PENDING_BYTES_MAX: Final = 64 * 1024 * 1024
# Expiry timer ticks per time budget: a wait ends at most 1/20 of the budget late.
EXPIRY_STEPS: Final = 20

_NO_PROPERTIES: Mapping[str, str] = {}


def default_client_id() -> str:
    """Return host, process id and a random part: it tells an operator where a client runs, and is unique."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(4)}"


class Producer:
    """Sends messages. A message is fsynced on a majority of the nodes when `send` returns.

    `send_timeout_ms` is the budget of one call over all its tries: at most `1 + retries` tries, each with the same
    batch id, so that the broker appends the batch once. Looking for a leader costs time, not a try.

    Sends to one topic collect into batches of at most `max_batch_bytes` and `max_batch_messages` while requests are in
    flight; pending batches share a request of `max_batch_bytes`. Two requests are in flight, more on a connection with
    a long round trip, at most `max_in_flight`. A send fails with Overloaded when more than `max_pending_bytes` are
    pending, or when the pending sends leave no time to send it within its budget.

    With `compress`, batches of at least 4,096 bytes are sent and stored as zstd if that saves an eighth. `group` names
    the sending service for the lineage; by default, messages sent in a handler carry the handler's consumer group
    (causation.py lists the added properties).

    Use as `async with Producer(...) as producer`, or call `close()`. A producer belongs to one event loop.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = DEFAULT_SERVERS,
        *,
        group: str | None = None,
        client_id: str | None = None,
        send_timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
        max_batch_bytes: int = COLLECT_BYTES_MAX,
        max_batch_messages: int = COLLECT_MESSAGES_MAX,
        max_in_flight: int = IN_FLIGHT_MAX,
        max_pending_bytes: int = PENDING_BYTES_MAX,
        compress: bool = True,
        connection: Connection | None = None,
        tls: Tls | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        if group is not None:
            check_group(group)
        check_range("send_timeout_ms", send_timeout_ms, 1, 3_600_000)
        check_range("retries", retries, 0, 100)
        check_range("max_batch_bytes", max_batch_bytes, 1, BLOCK_BYTES_MAX)
        check_range("max_batch_messages", max_batch_messages, 1, BATCH_MESSAGES_MAX)
        check_range("max_in_flight", max_in_flight, 1, 64)
        check_range("max_pending_bytes", max_pending_bytes, 1, 1 << 40)
        self.group = group
        self.client_id = client_id or default_client_id()
        self._connection = connection or Connection(servers, tls=tls)
        self._owns_connection = connection is None
        self._timeout_s = send_timeout_ms / 1000
        self._tries = 1 + retries
        self._batch_bytes_max = max_batch_bytes
        self._key_bytes = key_bytes_min(max_batch_bytes)
        self._batch_messages_max = max_batch_messages
        self._in_flight_max = max_in_flight
        self._compress = compress
        self._clock = clock
        self._backlog = Backlog(max_pending_bytes)
        self._ids = BatchIds()
        self._answers = AnswerTime()
        self._routes: dict[str, TopicRoute] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._closed = False

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        sharding_key: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        message_id: str | None = None,
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> SendResult:
        """Send a message and return its place once a majority of the nodes has fsynced it.

        The queue is `queue`, or the choice of `selector`, or the hash of `sharding_key`, or else the broker's choice.
        Messages with the same `sharding_key`, and messages to the same queue, are stored in the order of the calls.
        With one of `delay_level`, `delay_ms` and `deliver_at_ms` the message becomes visible later (see Message). A
        `message_id` makes the message idempotent beyond this call. Cancelling the call does not take the message back.

        Raises InvalidRequest or TopicNotFound (nothing stored), Unavailable (nothing stored, try later), SendTimeout or
        UnknownOutcome (repeat with the same `message_id` to find out).
        """
        delay = delay_of(delay_level, delay_ms, deliver_at_ms)
        return await self._enqueue(
            topic, body, tag, keys, properties, sharding_key, queue, selector, message_id, self._tries, delay
        )

    def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        sharding_key: str | None = None,
        queue: int | None = None,
        selector: Selector | None = None,
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> None:
        """Send without waiting for the answer, with a single try; a failure is only logged.

        Raises InvalidRequest, or Overloaded when too many bytes are pending.
        """
        delay = delay_of(delay_level, delay_ms, deliver_at_ms)
        future = self._enqueue(
            topic, body, tag, keys, properties, sharding_key, queue, selector, None, ONE_WAY_TRIES, delay
        )
        future.add_done_callback(_log_lost)

    async def send_batch(
        self,
        topic: str,
        messages: Sequence[bytes | Message],
        *,
        queue: int | None = None,
        selector: Selector | None = None,
        sharding_key: str | None = None,
        batch_id: str | None = None,
        delay_level: int | None = None,
        delay_ms: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> BatchResult:
        """Send a batch atomically and return its place: one queue, at consecutive offsets.

        A batch has at most 10,000 messages and 8 MiB encoded; its messages become visible together. The queue is chosen
        as in `send`; `selector` receives the first message. Durability, order and errors are those of `send`.

        A `batch_id` makes the batch idempotent beyond this call, for less work than an id of each message. A batch that
        has the id of another one raises IdempotencyConflict with its `batch_id` in `extra`; the batch is another one
        also when only the times of its messages differ (`born_at_ms`).
        """
        if batch_id is not None:
            check_batch_id(batch_id)
        route = self._route(topic)
        queue, sharding_key = batch_destination(topic, messages, queue, sharding_key)
        lane = None
        if queue is not None or (selector is None and sharding_key is None):
            lane = route.any_queue if queue is None else route.lane_of_queue(queue)
            lane.require_room()  # before the work of encoding
        delay = batch_delay(messages, delay_of(delay_level, delay_ms, deliver_at_ms))
        span = start_send(topic, self.client_id, len(messages))
        try:
            told = batch_with_cause(messages, self.group, traceparent_of(span))
            block = encode_block(told, compressed=self._compress)
        except Exception as exc:
            end_send(span, exc)
            raise
        future: asyncio.Future[BatchResult] = asyncio.get_running_loop().create_future()
        end_with(span, future)
        deadline_s = self._clock() + self._timeout_s

        def add(lane: Lane) -> None:
            lane.add_block(block, future, deadline_s, self._tries, delay, batch_id)

        try:
            if lane is not None:
                add(lane)
            else:
                first = messages[0]
                message = Message(topic=topic, body=first) if isinstance(first, bytes) else first
                choose = choice(selector, sharding_key, topic, message, future)
                route.add_chosen(choose, add, _failing(future))
        except BaseException:
            future.cancel()  # ends the span
            raise
        self._arm_expiry()
        return await future

    async def cancel(self, topic: str, message_id: str) -> bool:
        """Cancel a scheduled message; True means that it will never be delivered.

        Returns False when it is too late, or no such message waits. `message_id` is the id in its SendResult. Raises
        TopicNotFound, and what Connection.call raises; repeating the call is harmless then.
        """
        deadline = Deadline(self._timeout_s * 1000, self._clock)
        try:
            await cancel_scheduled(self._connection, topic, message_id, deadline)
        except NotScheduled:
            return False
        return True

    async def flush(self) -> None:
        """Wait until every earlier send is stored or has failed. Later sends do not matter."""
        await asyncio.gather(*[route.flush() for route in self._routes.values()])

    async def close(self) -> None:
        """Flush (each send ends within its budget), then close a connection of its own. Later sends raise Closed."""
        self._closed = True
        try:
            await self.flush()
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            for route in self._routes.values():
                route.abort(Closed("closed", "the producer was closed before the message was sent: not stored"))
            if self._owns_connection:
                self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _enqueue(
        self,
        topic: str,
        body: bytes,
        tag: str | None,
        keys: Sequence[str],
        properties: Mapping[str, str],
        sharding_key: str | None,
        queue: int | None,
        selector: Selector | None,
        message_id: str | None,
        tries: int,
        delay: Delay,
    ) -> asyncio.Future[SendResult]:
        route = self._routes.get(topic)
        if route is None or self._closed:
            route = self._route(topic)
        if type(body) is not bytes or not 0 < len(body) <= BODY_BYTES_MAX:
            check_body(body)
        born_at_ms = int(time.time() * 1000)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if self.group is not None or current_cause() is not None or in_use():
            check_attributes(tag, keys, properties, sharding_key, message_id)
            span = start_send(topic, self.client_id, 1, len(body))
            end_with(span, future)
            properties = with_cause(properties, self.group, traceparent_of(span))
        if tag is None and not keys and not properties and sharding_key is None and message_id is None:
            entry = (body, None, (), _NO_PROPERTIES, None, None, born_at_ms)
            size = len(body) + MESSAGE_OVERHEAD_BYTES
        else:
            check_attributes(tag, keys, properties, sharding_key, message_id)
            entry = make_entry(body, tag, keys, properties, sharding_key, message_id, born_at_ms)
            size = entry_bytes_max(entry, self._key_bytes)
        deadline_s = self._clock() + self._timeout_s
        try:
            if queue is None and (selector is not None or sharding_key is not None):

                def add(lane: Lane) -> None:
                    lane.add(
                        entry, size, future, deadline_s, tries, delay, self._batch_bytes_max, self._batch_messages_max
                    )

                message = None
                if selector is not None:
                    message = Message(
                        topic=topic,
                        body=body,
                        tag=tag,
                        keys=keys,
                        properties=properties,
                        sharding_key=sharding_key,
                        message_id=message_id,
                        born_at_ms=born_at_ms,
                    )
                route.add_chosen(choice(selector, sharding_key, topic, message, future), add, _failing(future))
            else:
                if queue is not None:
                    check_range("queue", queue, 0, QUEUES_MAX - 1)
                lane = route.any_queue if queue is None else route.lane_of_queue(queue)
                lane.add(entry, size, future, deadline_s, tries, delay, self._batch_bytes_max, self._batch_messages_max)
        except BaseException:
            future.cancel()  # ends the span
            raise
        if self._expiry is None:
            self._arm_expiry()
        return future

    def _route(self, topic: str) -> TopicRoute:
        if self._closed:
            raise Closed("closed", "this producer was closed")
        route = self._routes.get(topic)
        if route is None:
            check_writable_topic(topic)
            route = self._routes[topic] = TopicRoute(
                topic, make_lane=self._make_lane, fetch_queues=self._fetch_queues, clock=self._clock
            )
        return route

    def _make_lane(self, topic: str, queue: int | None) -> Lane:
        return Lane(
            topic,
            queue,
            in_flight_max=self._in_flight_max if queue is None else 1,
            request_bytes_max=self._batch_bytes_max,
            budget_s=self._timeout_s,
            answers=self._answers,
            backlog=self._backlog,
            ids=self._ids,
            deliver=self._deliver,
            clock=self._clock,
        )

    async def _fetch_queues(self, topic: str) -> int:
        deadline = Deadline(self._timeout_s * 1000, self._clock)
        info = await self._connection.call_for(
            wire.TopicInfo, "GET", f"/v1/topics/{quote(topic, safe='')}", deadline=deadline
        )
        return info.queues

    async def _deliver(self, lane: Lane, batches: Sequence[Batch]) -> tuple[Sequence[wire.ProducedBatch], Receipt]:
        blocks = [batch.seal(compressed=self._compress) for batch in batches]
        sent = [
            wire.ProduceBatch(
                batch.batch_id,
                block.crc32c,
                block.data,
                lane.queue,
                block.encoding,
                block.uncompressed_bytes,
                *batch.delay,
            )
            for batch, block in zip(batches, blocks, strict=True)
        ]
        # The newest message's deadline applies to the request; the expiry timer ends older messages earlier.
        deadline_s = max(batch.deadlines_s[-1] for batch in batches)
        try:
            response = await self._connection.call(
                "POST",
                f"/v1/topics/{quote(lane.topic, safe='')}/messages",
                body=wire.encode_msgpack(wire.ProduceRequest(sent, self.client_id)),
                content_type=wire.MSGPACK,
                accept=wire.MSGPACK,
                deadline=Deadline.until(deadline_s, self._timeout_s * 1000, self._clock),
                tries=batches[0].tries,
                answers=self._answers,
            )
        except NotFound:
            self._routes[lane.topic].forget_queues()
            raise
        answer = wire.decode(wire.ProduceResponse, response.body, response.headers.get("content-type", ""))
        if len(answer.results) != len(batches):
            raise Corrupt("invalid_response", "the broker's answer is not about the batches that were sent")
        for result, batch, block in zip(answer.results, batches, blocks, strict=True):
            if result.batch_id != batch.batch_id or result.count > block.count:
                raise Corrupt("invalid_response", "the broker's answer is not about the batch that was sent")
            if result.messages is not None and len(result.messages) != block.count:
                raise Corrupt("invalid_response", "the broker's answer does not tell about every message of the batch")
        return answer.results, answer.receipt

    def _arm_expiry(self) -> None:
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(self._timeout_s / EXPIRY_STEPS, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now_s = self._clock()
        busy = False
        for route in self._routes.values():
            for lane in route.lanes():
                lane.expire(now_s)
                busy = busy or bool(lane.workers)
            busy = busy or bool(route.tasks())
        if busy:
            self._arm_expiry()


def _failing(future: asyncio.Future[Any]) -> Callable[[Exception], None]:
    def fail(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    return fail


def _log_lost(future: asyncio.Future[SendResult]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("a one-way message was not stored, or perhaps not: %s", error)
