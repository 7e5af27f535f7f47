"""Lanes: where sends wait, become batches and leave in order.

One lane per topic for messages that may go to any queue, one per (topic, queue) for messages that name a queue or a
sharding key. A lane sends at once while fewer than `in_flight_max` of its batches are under way; what arrives
meanwhile collects into the next batch. A queue's lane has one batch in flight, so its order is that of the calls.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from keelmq.batch import BatchIds, Block, Entry, encode_entries
from keelmq.delay import Delay
from keelmq.errors import Closed, Overloaded, SendTimeout, Unavailable
from keelmq.message import BatchResult, MessagePlace, Receipt, SendResult
from keelmq.wire import ProducedBatch

MESSAGE_ID_FIELD = 5  # of a block entry


class Backlog:
    """Bytes that wait or are under way in one producer. Invariant: 0 <= bytes; beyond the limit nothing is added."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max

    def add(self, size: int) -> None:
        """Raises Overloaded: the caller has to wait for earlier sends."""
        if self.bytes + size > self.bytes_max and self.bytes:
            raise Overloaded(
                "overloaded",
                f"{self.bytes} bytes wait in this producer, max_pending_bytes is {self.bytes_max}: await earlier sends",
            )
        self.bytes += size

    def remove(self, size: int) -> None:
        self.bytes -= size


class Batch:
    """Messages that travel together and become visible together, or one block that was given whole (then there is one
    future for all of it).

    `futures` and `deadlines_s` are parallel to `entries`; deadlines ascend.
    """

    __slots__ = ("batch_id", "block", "deadlines_s", "delay", "entries", "futures", "size", "tries")

    def __init__(self, batch_id: str, tries: int, delay: Delay, block: Block | None = None) -> None:
        self.batch_id = batch_id
        self.tries = tries
        self.delay = delay
        self.block = block
        self.entries: list[Entry] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.deadlines_s: list[float] = []
        self.size = 0

    def seal(self, *, compressed: bool) -> Block:
        """The encoded block; the same on every call, so a retry repeats the batch exactly."""
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
        """End the waits whose time is over; the batch itself is under way and cannot be taken back."""
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

    def drop_unsent(self, now_s: float) -> None:
        """Take out the messages whose time is over before they were sent: they are certainly not stored."""
        late = 0
        while late < len(self.deadlines_s) and self.deadlines_s[late] <= now_s:
            if not self.futures[late].done():
                self.futures[late].set_exception(
                    Unavailable("not_sent", "the time budget was over before the message could be sent: not stored")
                )
            late += 1
        if late:
            del self.entries[:late], self.futures[:late], self.deadlines_s[:late]


class Lane:
    """See the text of the module. `deliver` sends one batch and raises KeelMQError when it could not."""

    __slots__ = (
        "_backlog",
        "_deliver",
        "_ids",
        "_in_flight",
        "_in_flight_max",
        "_waiting",
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
        backlog: Backlog,
        ids: BatchIds,
        deliver: "Callable[[Lane, Batch], Awaitable[tuple[ProducedBatch, Receipt]]]",
    ) -> None:
        self.topic = topic
        self.queue = queue
        self._in_flight_max = in_flight_max
        self._backlog = backlog
        self._ids = ids
        self._deliver = deliver
        self._waiting: deque[Batch] = deque()
        self._in_flight: set[Batch] = set()
        self._workers: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> set[asyncio.Task[None]]:
        """Tasks that send; none when nothing waits and nothing is under way."""
        return self._workers

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
        """Put one message into the batch that collects, or a new one when that has no room. Raises Overloaded.

        The messages of a batch are tried equally often (those that are sent one way once), and have the same delay.
        """
        self._backlog.add(size)
        waiting = self._waiting
        if waiting:
            batch = waiting[-1]
            fits = batch.size + size <= bytes_max and len(batch.entries) < count_max
            if batch.block is None and batch.tries == tries and batch.delay == delay and fits:
                batch.entries.append(entry)
                batch.futures.append(future)
                batch.deadlines_s.append(deadline_s)
                batch.size += size
                return
        batch = Batch(self._ids.next_id(), tries, delay)
        batch.entries.append(entry)
        batch.futures.append(future)
        batch.deadlines_s.append(deadline_s)
        batch.size = size
        self._push(batch)

    def add_block(
        self, block: Block, future: asyncio.Future[BatchResult], deadline_s: float, tries: int, delay: Delay
    ) -> None:
        """Put a whole batch behind what waits. Raises Overloaded."""
        self._backlog.add(len(block.data))
        batch = Batch(self._ids.next_id(), tries, delay, block)
        batch.futures.append(future)
        batch.deadlines_s.append(deadline_s)
        batch.size = len(block.data)
        self._push(batch)

    def expire(self, now_s: float) -> None:
        """Fail every message whose time budget is over."""
        for batch in self._in_flight:
            batch.expire_sent(now_s)
        while self._waiting:
            first = self._waiting[0]
            first.drop_unsent(now_s)
            if first.futures:
                break
            self._waiting.popleft()
            self._backlog.remove(first.size)

    def abort(self) -> None:
        """Stop sending; whoever still waits gets Closed."""
        for batch in self._waiting:
            batch.fail(Closed("closed", "the producer was closed before the message was sent: not stored"))
            self._backlog.remove(batch.size)
        self._waiting.clear()
        for worker in self._workers:
            worker.cancel()

    def _push(self, batch: Batch) -> None:
        self._waiting.append(batch)
        if len(self._workers) < self._in_flight_max:
            self._workers.add(asyncio.create_task(self._work()))

    async def _work(self) -> None:
        # Starts one loop iteration after the first message was added: all that is sent in that iteration goes together.
        task = asyncio.current_task()
        assert task is not None
        try:
            await self._send_waiting()
        finally:
            # At once, not in a done callback: a message added in between would find every worker taken and stay.
            self._workers.discard(task)

    async def _send_waiting(self) -> None:
        while self._waiting:
            batch = self._waiting.popleft()
            self._in_flight.add(batch)
            try:
                produced, receipt = await self._deliver(self, batch)
                batch.resolve(self.topic, produced, receipt)
            except asyncio.CancelledError:
                batch.fail(Closed("closed", "the producer was closed; the message may or may not be stored"))
                raise
            except Exception as exc:  # whatever it is, nobody may be left waiting
                batch.fail(exc)
            finally:
                self._in_flight.discard(batch)
                self._backlog.remove(batch.size)
