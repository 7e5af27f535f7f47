"""Iteration of a consumer: passes one message at a time from a queue reader to the iterating loop."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from keelmq.errors import ConsumeTimeout
from keelmq.message import ReceivedMessage

OnTimeout = Callable[[ConsumeTimeout, Sequence[ReceivedMessage]], None]
_Offer = tuple[ReceivedMessage, asyncio.Future[None]]


class Withdrawn(Exception):
    """The message on offer was withdrawn before a loop took it."""


class Handover:
    """Passes messages to the loop that iterates a consumer. `handle` is the handler of the queue readers.

    `handle` ends when the loop has asked for the message after. The loop's work on a message cannot be cancelled from
    here: if it takes longer than `timeout_ms`, `on_timeout` is called.
    """

    def __init__(self, timeout_ms: int, on_timeout: OnTimeout) -> None:
        self._timeout_ms = timeout_ms
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None
        self._offers: deque[_Offer] = deque()
        self._taken: asyncio.Future[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False

    async def handle(self, messages: Sequence[ReceivedMessage]) -> None:
        for message in messages:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._offers.append((message, done))
            self._changed.set()
            if self._closed:
                done.cancel()
            try:
                await done
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._closed or task is None or task.cancelling():
                    raise
                raise Withdrawn from None

    async def next(self) -> ReceivedMessage | None:
        """Return the next message, None after `close`. The previous message counts as processed."""
        self.finish()
        while not self._closed:
            while self._offers:
                message, done = self._offers.popleft()
                if not done.done():  # otherwise its queue was taken away meanwhile
                    self._taken = done
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(self._timeout_ms / 1000, self._late, message)
                    return message
            self._changed.clear()
            await self._changed.wait()
        return None

    def finish(self) -> None:
        """Mark the last message that was handed over as processed."""
        self._stop_timer()
        if self._taken is not None and not self._taken.done():
            self._taken.set_result(None)
        self._taken = None

    def withdraw(self, place: tuple[str, int]) -> None:
        """Withdraw the queue's messages that are on offer and not taken yet; they return to their reader."""
        for message, done in self._offers:
            if (message.topic, message.queue) == place:
                done.cancel()

    def close(self) -> None:
        """Hand over no more messages; messages that are handed over and not finished stay unprocessed."""
        self._closed = True
        self._stop_timer()
        self._changed.set()
        for done in [done for _, done in self._offers] + ([self._taken] if self._taken is not None else []):
            done.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, message: ReceivedMessage) -> None:
        error = ConsumeTimeout("consume_timeout", f"the loop has not finished the message within {self._timeout_ms} ms")
        self._on_timeout(error, [message])
