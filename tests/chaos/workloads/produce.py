"""Producers of the SDK: atomic batches, single sends that batch themselves, and ordered sends by sharding key."""

import asyncio
from collections import deque
from typing import Final

import keelmq
from keelmq.producing.routing import queue_for_key
from store.limits import DEDUPE_WINDOW_MS
from tests.chaos.ledger import Place, WorkerLedger
from tests.chaos.message import body_of, name_of, number_of
from tests.chaos.violations import Kind
from tests.chaos.workloads.worker import KEYED_TOPIC, PLAIN_TOPIC, TOPICS, Field, paced, settle_error, write_operation

KEYS: Final = 8
KEYED_AT_ONCE: Final = 24
SINGLE_SENDERS: Final = 8
RESEND_SHARE: Final = 0.1
"""Share of idempotent messages that are sent again at once after their acknowledgement, and share sent again later."""
LATE_MESSAGES_MAX: Final = 2_000
LATE_S_MAX: Final = DEDUPE_WINDOW_MS / 1000 / 3
"""Maximum age of a message that is sent again: far within the dedupe window, whatever clocks do meanwhile."""


class Batches:
    """Sends batches by send_batch: all of a batch is stored or nothing, at consecutive offsets."""

    def __init__(self, field: Field, messages: int, interval_s: float, *, compress: bool = True) -> None:
        self._field = field
        self._compress = compress
        self._ledger = field.book.worker("batch")
        self._messages = messages
        self._interval_s = interval_s

    async def run(self, stop: asyncio.Event) -> None:
        async with keelmq.Producer(self._field.urls, compress=self._compress) as producer:
            await paced(lambda: self._send(producer), self._interval_s, stop)

    async def _send(self, producer: keelmq.Producer) -> None:
        field, ledger, count = self._field, self._ledger, self._messages
        begin_s = field.history.now_s()
        first = ledger.begin(count)
        try:
            result = await producer.send_batch(PLAIN_TOPIC, [body_of(each) for each in ledger.numbers(first, count)])
        except keelmq.KeelMQError as error:
            settle_error(field, ledger, first, count, error, begin_s)
            return
        if result.count != count:
            field.violations.add(Kind.CONTRACT, f"a batch of {count} was acknowledged as {result.count} messages")
        index = 0 if result.duplicate else result.receipt.index
        assert result.offset is not None  # nothing was delayed
        ledger.acked(first, count, Place(PLAIN_TOPIC, result.queue, result.offset), index)
        write_operation(
            field, ledger, first, count, begin_s, "ok", queue=result.queue, offset=result.offset, index=index
        )


class Singles:
    """Sends single messages concurrently; the SDK makes batches of them."""

    def __init__(self, field: Field, interval_s: float) -> None:
        self._field = field
        self._interval_s = interval_s
        self._ledger = field.book.worker("single")

    async def run(self, stop: asyncio.Event) -> None:
        async with keelmq.Producer(self._field.urls) as producer, asyncio.TaskGroup() as tasks:
            for _ in range(SINGLE_SENDERS):
                tasks.create_task(paced(lambda: self._send(producer), self._interval_s, stop))

    async def _send(self, producer: keelmq.Producer) -> None:
        field, ledger = self._field, self._ledger
        begin_s = field.history.now_s()
        sequence = ledger.begin()
        try:
            result = await producer.send(PLAIN_TOPIC, body_of(number_of(ledger.worker, sequence)))
        except keelmq.KeelMQError as error:
            settle_error(field, ledger, sequence, 1, error, begin_s)
            return
        index = 0 if result.duplicate else result.receipt.index
        assert result.offset is not None  # nothing was delayed
        ledger.acked(sequence, 1, Place(PLAIN_TOPIC, result.queue, result.offset), index)
        write_operation(
            field, ledger, sequence, 1, begin_s, "ok", queue=result.queue, offset=result.offset, index=index
        )


class Keyed:
    """Sends in a known order, with many messages under way at a time; each sharding key must keep that order."""

    def __init__(self, field: Field, interval_s: float) -> None:
        self._field = field
        self._interval_s = interval_s
        self._ledger = field.book.worker("keyed", keys=KEYS)

    async def run(self, stop: asyncio.Event) -> None:
        async with keelmq.Producer(self._field.urls) as producer:
            await paced(lambda: self._send_some(producer), self._interval_s, stop)

    async def _send_some(self, producer: keelmq.Producer) -> None:
        begin_s = self._field.history.now_s()
        first = self._ledger.begin(KEYED_AT_ONCE)
        # Tasks begin in the order in which they are made: that is the order of the calls.
        async with asyncio.TaskGroup() as tasks:
            for sequence in range(first, first + KEYED_AT_ONCE):
                tasks.create_task(self._send(producer, sequence, begin_s))

    async def _send(self, producer: keelmq.Producer, sequence: int, begin_s: float) -> None:
        field, ledger = self._field, self._ledger
        key = f"key-{ledger.worker}-{sequence % KEYS}"
        body = body_of(number_of(ledger.worker, sequence))
        try:
            result = await producer.send(KEYED_TOPIC, body, sharding_key=key)
        except keelmq.KeelMQError as error:
            settle_error(field, ledger, sequence, 1, error, begin_s)
            return
        if result.queue != queue_for_key(key, TOPICS[KEYED_TOPIC]):
            field.violations.add(Kind.CONTRACT, f"key {key} went to queue {result.queue}")
        index = 0 if result.duplicate else result.receipt.index
        assert result.offset is not None  # nothing was delayed
        ledger.acked(sequence, 1, Place(KEYED_TOPIC, result.queue, result.offset), index)
        write_operation(
            field, ledger, sequence, 1, begin_s, "ok", queue=result.queue, offset=result.offset, index=index
        )


class Idempotent:
    """Sends with its own message ids: repeats until the outcome is known, and sometimes again later."""

    def __init__(
        self, field: Field, interval_s: float, topic: str = PLAIN_TOPIC, ledger: WorkerLedger | None = None
    ) -> None:
        """Create the worker; `ledger` is a new one if None."""
        self._field = field
        self._interval_s = interval_s
        self._topic = topic
        self._ledger = field.book.worker("idempotent") if ledger is None else ledger
        self._rng = field.rng(self._ledger.name)
        self._acked: deque[tuple[float, int, Place]] = deque(maxlen=LATE_MESSAGES_MAX)

    async def run(self, stop: asyncio.Event) -> None:
        async with keelmq.Producer(self._field.urls) as producer:
            await paced(lambda: self._send(producer, stop), self._interval_s, stop)

    async def _send(self, producer: keelmq.Producer, stop: asyncio.Event) -> None:
        field, ledger = self._field, self._ledger
        begin_s = field.history.now_s()
        sequence = ledger.begin()
        certain = True
        while True:
            try:
                result = await self._send_once(producer, sequence)
                break
            except keelmq.KeelMQError as error:
                certain = certain and not error.outcome_unknown
                if stop.is_set():
                    if certain:
                        settle_error(field, ledger, sequence, 1, error, begin_s)
                    return
        assert result.offset is not None  # nothing was delayed
        place = Place(self._topic, result.queue, result.offset)
        ledger.acked(sequence, 1, place, 0 if result.duplicate else result.receipt.index)
        write_operation(field, ledger, sequence, 1, begin_s, "ok", queue=place.queue, offset=place.offset)
        self._acked.append((begin_s, sequence, place))
        if self._rng.random() < RESEND_SHARE:
            await self._send_again(producer, sequence, place)
        if self._rng.random() < RESEND_SHARE:
            sent_s, sequence, place = self._rng.choice(self._acked)
            if field.history.now_s() - sent_s < LATE_S_MAX:
                await self._send_again(producer, sequence, place)

    async def _send_again(self, producer: keelmq.Producer, sequence: int, place: Place) -> None:
        try:
            again = await self._send_once(producer, sequence)
        except keelmq.KeelMQError:
            return
        if not again.duplicate or (again.queue, again.offset) != (place.queue, place.offset):
            name = name_of(number_of(self._ledger.worker, sequence))
            self._field.violations.add(
                Kind.MOVED,
                f"message {name} is at {place}, sending it again says queue {again.queue}, offset {again.offset}, "
                f"duplicate {again.duplicate}",
            )

    async def _send_once(self, producer: keelmq.Producer, sequence: int) -> keelmq.SendResult:
        number = number_of(self._ledger.worker, sequence)
        return await producer.send(
            self._topic, body_of(number), message_id=f"{self._field.run_id}:{self._ledger.worker}:{sequence}"
        )
