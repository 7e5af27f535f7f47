"""Lanes: queues of pending sends, which form batches and leave in order.

One lane per topic takes messages that may go to any queue, one per (topic, queue) takes messages with a queue or a
sharding key. A lane sends at once while fewer of its requests are in flight than its window allows. Messages that
arrive meanwhile collect into the next batch, and waiting batches share the next request. A queue's lane has one request
in flight, so its order is the order of the calls.

Under overload, a message whose remaining budget is shorter than the expected answer time is not sent, and a message
that cannot be sent within its budget at the recent rate is refused at once (answer_time.py).
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from keelmq.blocks.batch import MESSAGE_ID_FIELD, BatchIds, Block, Entry, encode_entries, size_in_request
from keelmq.errors import (
    BrokerFault,
    Closed,
    Corrupt,
    KeelMQError,
    Overloaded,
    SendTimeout,
    Unavailable,
    closed_in_flight,
)
from keelmq.limits import BLOCK_BYTES_MAX, REQUEST_BATCHES_MAX, REQUEST_MESSAGES_MAX
from keelmq.message import BatchResult, MessagePlace, Receipt, SendResult
from keelmq.producing.delay import Delay
from keelmq.transport.answer_time import AnswerTime, ServiceRate, Window
from keelmq.transport.retry import Clock
from keelmq.wire import ProducedBatch


class Backlog:
    """Counts pending and in-flight bytes of one producer. Invariant: 0 <= bytes; nothing is added beyond the limit."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def add(self, size: int) -> None:
        """Add `size` bytes. Raises Overloaded beyond the limit: the caller has to wait for earlier sends."""
        if self.bytes + size > self.bytes_max and self.bytes:
            raise Overloaded(
                "overloaded",
                f"{self.bytes} bytes wait in this producer, max_pending_bytes is {self.bytes_max}: await earlier sends",
            )
        self.bytes += size

    def remove(self, size: int) -> None:
        self.bytes -= size


class Batch:
    """Messages that are sent together and become visible together, or one block from `send_batch` with a single future.

    `futures` and `deadlines_s` are parallel to `entries`; deadlines ascend.
    """

    __slots__ = ("_ended", "batch_id", "block", "deadlines_s", "delay", "entries", "futures", "size", "tries")

    def __init__(self, batch_id: str, tries: int, delay: Delay, block: Block | None = None) -> None:
        self.batch_id = batch_id
        self.tries = tries
        self.delay = delay
        self.block = block
        self.entries: list[Entry] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.deadlines_s: list[float] = []
        self.size = 0
        self._ended: asyncio.Future[None] | None = None

    def ended(self) -> "asyncio.Future[None]":
        """Return a future that is done once the batch neither waits nor is in flight."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
        return self._ended

    def end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def seal(self, *, compressed: bool) -> Block:
        """Return the encoded block; the same on every call, so a retry repeats the batch exactly."""
        if self.block is None:
            self.block = encode_entries(self.entries, compressed=compressed)
        return self.block

    def fail(self, error: Exception) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def resolve(self, topic: str, produced: ProducedBatch, receipt: Receipt) -> None:
        if not self.entries:
            places = tuple(
                MessagePlace(m.message_id, m.queue, m.offset, m.duplicate, m.deliver_at_ms)
                for m in produced.messages or ()
            )
            if not self.futures[0].done():
                self.futures[0].set_result(
                    BatchResult(
                        self.batch_id,
                        topic,
                        produced.queue,
                        produced.offset,
                        produced.count,
                        receipt,
                        produced.duplicate,
                        places,
                        produced.deliver_at_ms,
                    )
                )
            return
        batch_id, queue, offset, duplicate = self.batch_id, produced.queue, produced.offset, produced.duplicate
        for ordinal, future in enumerate(self.futures):
            if future.done():  # expired or cancelled
                continue
            entry = self.entries[ordinal]
            message_id = entry[MESSAGE_ID_FIELD] if len(entry) > MESSAGE_ID_FIELD else None
            message_id = message_id or f"{batch_id}-{ordinal}"
            if produced.messages is None:
                own_offset = None if offset is None else offset + ordinal
                result = SendResult(message_id, topic, queue, own_offset, receipt, duplicate, produced.deliver_at_ms)
            else:
                place = produced.messages[ordinal]
                result = SendResult(
                    message_id, topic, place.queue, place.offset, receipt, place.duplicate, place.deliver_at_ms
                )
            future.set_result(result)

    def expire_sent(self, now_s: float) -> None:
        """Fail the futures whose deadline is over; the batch itself is in flight and cannot be recalled."""
        for position, deadline_s in enumerate(self.deadlines_s):
            if deadline_s > now_s:
                return
            future = self.futures[position]
            if not future.done():
                future.set_exception(
                    SendTimeout(
                        "send_timeout",
                        "the time budget is over; the message may or may not be stored: repeat it with the same id",
                    )
                )

    def drop_unsent(self, until_s: float, error: Callable[[float], KeelMQError]) -> int:
        """Remove the unsent messages whose deadline is at or before `until_s`; they are certainly not stored.

        `error` makes the error of a message from its deadline. Returns the number of bytes removed.
        """
        late = 0
        while late < len(self.deadlines_s) and self.deadlines_s[late] <= until_s:
            if not self.futures[late].done():
                self.futures[late].set_exception(error(self.deadlines_s[late]))
            late += 1
        if not late:
            return 0
        freed = self.size * late // len(self.deadlines_s)
        self.size -= freed
        del self.entries[:late], self.futures[:late], self.deadlines_s[:late]
        return freed

    @property
    def count(self) -> int:
        return len(self.entries) if self.block is None else self.block.count

    @property
    def unpacked_bytes(self) -> int:
        return self.size if self.block is None else self.block.unpacked_bytes


Deliver = Callable[["Lane", Sequence[Batch]], Awaitable[tuple[Sequence[ProducedBatch], Receipt]]]


class Lane:
    """Sends the batches of one topic or queue in order (see the module's docstring).

    `deliver` sends batches in one request, all or none of them, and raises KeelMQError when it failed. `in_flight_max`
    bounds the window. A request holds batches of at most `request_bytes_max` in total, unless a single batch is larger.
    Every message has a budget of `budget_s` from its call on; `answers` estimates the answer time.
    """

    __slots__ = (
        "_answers",
        "_backlog",
        "_budget_s",
        "_clock",
        "_deliver",
        "_ids",
        "_in_flight",
        "_last_answer_s",
        "_rate",
        "_request_bytes_max",
        "_waiting",
        "_waiting_bytes",
        "_window",
        "_workers",
        "queue",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue: int | None,
        *,
        in_flight_max: int,
        request_bytes_max: int,
        budget_s: float,
        answers: AnswerTime,
        backlog: Backlog,
        ids: BatchIds,
        deliver: Deliver,
        clock: Clock = time.monotonic,
    ) -> None:
        self.topic = topic
        self.queue = queue
        self._window = Window(in_flight_max)
        self._request_bytes_max = request_bytes_max
        self._budget_s = budget_s
        self._answers = answers
        self._backlog = backlog
        self._ids = ids
        self._deliver = deliver
        self._clock = clock
        self._rate = ServiceRate()
        self._last_answer_s = clock()
        self._waiting: deque[Batch] = deque()
        self._waiting_bytes = 0
        self._in_flight: set[Batch] = set()
        self._workers: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> set[asyncio.Task[None]]:
        """Tasks that send batches; empty when nothing is pending or in flight."""
        return self._workers

    def batches(self) -> list[Batch]:
        """Return the batches that wait or are in flight."""
        return [*self._waiting, *self._in_flight]

    def add(
        self,
        entry: Entry,
        size: int,
        future: asyncio.Future[SendResult],
        deadline_s: float,
        tries: int,
        delay: Delay,
        bytes_max: int,
        count_max: int,
    ) -> None:
        """Put one message into the collecting batch, or into a new batch when that has no room. Raises Overloaded.

        All messages of a batch have the same number of tries (one-way messages have one) and the same delay.
        """
        self.require_room()
        self._backlog.add(size)
        waiting = self._waiting
        if waiting:
            batch = waiting[-1]
            fits = batch.size + size <= bytes_max and len(batch.entries) < count_max
            # A message that has waited for the number of queues may be older than the last one of the batch.
            fits = fits and deadline_s >= batch.deadlines_s[-1]
            if batch.block is None and batch.tries == tries and batch.delay == delay and fits:
                batch.entries.append(entry)
                batch.futures.append(future)
                batch.deadlines_s.append(deadline_s)
                batch.size += size
                self._waiting_bytes += size
                return
        batch = Batch(self._ids.next_id(), tries, delay)
        batch.entries.append(entry)
        batch.futures.append(future)
        batch.deadlines_s.append(deadline_s)
        batch.size = size
        self._push(batch)

    def add_block(
        self,
        block: Block,
        future: asyncio.Future[BatchResult],
        deadline_s: float,
        tries: int,
        delay: Delay,
        batch_id: str | None = None,
    ) -> None:
        """Append a whole batch behind the pending batches, with an id of its own or a new one. Raises Overloaded."""
        self.require_room()
        size = size_in_request(block, self._request_bytes_max)
        self._backlog.add(size)
        batch = Batch(batch_id or self._ids.next_id(), tries, delay, block)
        batch.futures.append(future)
        batch.deadlines_s.append(deadline_s)
        batch.size = size
        self._push(batch)

    def require_room(self) -> None:
        """Raise Overloaded if sending the pending batches already takes longer than the budget of a new message."""
        rate = self._rate.bytes_per_s
        if rate is None or not self._waiting_bytes:
            return
        if self._waiting_bytes > rate * (self._budget_s - self._answers.needed_s(self._budget_s)):
            raise Overloaded(
                "overloaded",
                f"{self._waiting_bytes} bytes wait for {self.topic} and {rate:.0f} are stored per second: not to be "
                f"sent within {self._budget_s * 1000:.0f} ms, nothing was sent",
            )

    def expire(self, now_s: float) -> None:
        """Fail every message whose budget is over, and every pending message with too little budget left to be sent."""
        for batch in self._in_flight:
            batch.expire_sent(now_s)
        self._drop_late(now_s)

    def _drop_late(self, now_s: float) -> None:
        until_s = now_s + self._answers.needed_s(self._budget_s)
        while self._waiting:
            first = self._waiting[0]
            freed = first.drop_unsent(until_s, self._not_sent)
            self._waiting_bytes -= freed
            self._backlog.remove(freed)
            if first.futures:
                return
            self._waiting.popleft().end()

    def _not_sent(self, deadline_s: float) -> KeelMQError:
        """Return the error of a message whose budget ended, or nearly ended, before it was sent."""
        begun_s = deadline_s - self._budget_s
        budget = f"the message waited to be sent for most of its {self._budget_s * 1000:.0f} ms"
        if self._last_answer_s < begun_s:
            return Unavailable("not_sent", f"{budget}, and earlier requests were not answered: not sent, not stored")
        needed = f"answers take up to {self._answers.expected_s * 1000:.0f} ms"
        return Overloaded("not_sent", f"{budget} behind earlier ones, and {needed}: not sent, not stored")

    def abort(self) -> None:
        """Stop sending; every pending message fails with Closed."""
        for batch in self._waiting:
            batch.fail(Closed("closed", "the producer was closed before the message was sent: not stored"))
            batch.end()
            self._backlog.remove(batch.size)
        self._waiting.clear()
        self._waiting_bytes = 0
        for worker in self._workers:
            worker.cancel()

    def _push(self, batch: Batch) -> None:
        self._waiting.append(batch)
        self._waiting_bytes += batch.size
        self._start_workers()

    def _start_workers(self) -> None:
        if len(self._workers) < self._window.size:
            self._workers.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        # Starts one loop iteration after the first message was added, so all sends of that iteration go together.
        task = asyncio.current_task()
        assert task is not None
        try:
            while len(self._workers) <= self._window.size and (batches := self._take_request()):
                await self._send(batches)
        finally:
            # At once, not in a done callback: a message added in between would find every worker taken and stay.
            self._workers.discard(task)

    def _take_request(self) -> list[Batch]:
        """Take the batches of the next request from the front; at least one if any may be sent."""
        self._drop_late(self._clock())
        batches: list[Batch] = []
        size = count = unpacked_bytes = 0
        while self._waiting and len(batches) < REQUEST_BATCHES_MAX:
            batch = self._waiting[0]
            size, count, unpacked_bytes = (
                size + batch.size,
                count + batch.count,
                unpacked_bytes + batch.unpacked_bytes,
            )
            if batches and (
                batch.tries != batches[0].tries
                or size > self._request_bytes_max
                or count > REQUEST_MESSAGES_MAX
                or unpacked_bytes > BLOCK_BYTES_MAX
            ):
                break
            batches.append(self._waiting.popleft())
            self._waiting_bytes -= batch.size
        return batches

    async def _send(self, batches: Sequence[Batch]) -> None:
        full, answered = bool(self._waiting), 0
        size = sum(batch.size for batch in batches)
        self._in_flight.update(batches)
        try:
            await self._deliver_all(batches, full)
            self._last_answer_s, answered = self._clock(), size
        except asyncio.CancelledError:
            _fail(batches, closed_in_flight("the producer was closed; the message may or may not be stored"))
            raise
        except Exception as exc:  # whatever the error is, no caller may be left waiting
            self._window.failed()
            _fail(batches, exc)
        finally:
            self._in_flight.difference_update(batches)
            self._backlog.remove(size)
            self._rate.answered(answered, self._clock(), more_waits=bool(self._waiting))
            for batch in batches:
                batch.end()

    async def _deliver_all(self, batches: Sequence[Batch], full: bool) -> None:
        begun_s = self._clock()
        try:
            produced, receipt = await self._deliver(self, batches)
        except KeelMQError as exc:
            if (
                len(batches) == 1
                or exc.retryable
                or exc.outcome_unknown
                or isinstance(exc, BrokerFault | Corrupt | Closed)
            ):
                raise
            # The request was refused as a whole, so nothing was stored. Sending each batch alone, in order, finds the
            # culprit.
            for batch in batches:
                await self._deliver_alone(batch)
            return
        for batch, placed in zip(batches, produced, strict=True):
            batch.resolve(self.topic, placed, receipt)
        self._window.answered(self._clock() - begun_s, self._answers.least_s, full=full)
        if self._waiting:
            self._start_workers()

    async def _deliver_alone(self, batch: Batch) -> None:
        try:
            (placed,), receipt = await self._deliver(self, [batch])
        except KeelMQError as exc:
            batch.fail(exc)
        else:
            batch.resolve(self.topic, placed, receipt)


def _fail(batches: Sequence[Batch], error: Exception) -> None:
    for batch in batches:
        batch.fail(error)
