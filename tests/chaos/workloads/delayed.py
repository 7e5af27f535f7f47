"""Messages that wait for their time, some of which are taken back before it comes."""

import asyncio
from typing import Final

import keelmq
from tests.chaos.message import body_of, number_of
from tests.chaos.workloads.worker import DELAYED_TOPIC, Field, paced, settle_error, write_operation

DELAY_MS: Final = (50, 6_000)
AT_ONCE: Final = 4
TAKEN_BACK_SHARE: Final = 0.3
TAKEN_BACK_AFTER: Final = (0.0, 1.2)
"""Shares of the delay after which a message is taken back, which may be too late."""


class Delayed:
    """Sends delayed messages. Each is delivered once, unless its taking back was acknowledged: then never."""

    def __init__(self, field: Field, interval_s: float) -> None:
        self._field = field
        self._interval_s = interval_s
        self._ledger = field.book.worker("delayed")
        self._rng = field.rng("delayed")

    async def run(self, stop: asyncio.Event) -> None:
        async with keelmq.Producer(self._field.urls) as producer, asyncio.TaskGroup() as tasks:
            for _ in range(AT_ONCE):
                tasks.create_task(paced(lambda: self._send(producer), self._interval_s * AT_ONCE, stop))

    async def _send(self, producer: keelmq.Producer) -> None:
        field, ledger = self._field, self._ledger
        begin_s = field.history.now_s()
        sequence = ledger.begin()
        message_id = f"{field.run_id}:{ledger.worker}:{sequence}"
        delay_ms = self._rng.randint(*DELAY_MS)
        body = body_of(number_of(ledger.worker, sequence))
        try:
            result = await producer.send(DELAYED_TOPIC, body, delay_ms=delay_ms, message_id=message_id)
        except keelmq.KeelMQError as error:
            settle_error(field, ledger, sequence, 1, error, begin_s)
            return
        if result.deliver_at_ms is not None:
            ledger.due_ms[sequence] = result.deliver_at_ms
        index = 0 if result.duplicate else result.receipt.index
        if self._rng.random() < TAKEN_BACK_SHARE:
            await asyncio.sleep(delay_ms * self._rng.uniform(*TAKEN_BACK_AFTER) / 1000)
            await self._take_back(producer, sequence, message_id, begin_s)
            return
        ledger.acked_without_place(sequence, 1, index)
        write_operation(field, ledger, sequence, 1, begin_s, "ok", delay_ms=delay_ms, index=index)

    async def _take_back(self, producer: keelmq.Producer, sequence: int, message_id: str, begin_s: float) -> None:
        """Take a message back. Its outcome stays unknown until the broker says that it will never be delivered. The
        answer *too late* settles nothing: a second try also gets it after a first one that was carried out and never
        answered.
        """
        try:
            taken_back = await producer.cancel(DELAYED_TOPIC, message_id)
        except keelmq.KeelMQError as error:
            write_operation(
                self._field, self._ledger, sequence, 1, begin_s, "take back: unknown", error=str(error)[:200]
            )
            return
        if taken_back:
            self._ledger.taken_back(sequence)
        outcome = "taken back" if taken_back else "take back: too late"
        write_operation(self._field, self._ledger, sequence, 1, begin_s, outcome)
