"""Handling of a consumer's messages: calls of the application's handler, or the loop that iterates it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from keelmq.consuming.handler_call import Handle, handle_of
from keelmq.consuming.handover import Handover, OnTimeout
from keelmq.errors import InvalidRequest
from keelmq.limits import check_range
from keelmq.message import ReceivedMessage
from keelmq.plain_calls import WorkerThreads

CONSUME_TIMEOUT_MS_MAX: Final = 7 * 24 * 3_600_000


class Handlers:
    """Owns the threads of a plain handler until `close`, and the handover to the loop if there is no handler."""

    def __init__(
        self,
        handler: Callable[[ReceivedMessage], object] | None,
        batch_handler: Callable[[Sequence[ReceivedMessage]], object] | None,
        concurrency: int,
        consume_timeout_ms: int,
        on_timeout: OnTimeout,
        group: str,
        client_id: str,
    ) -> None:
        """Prepare the calls. `on_timeout` is told of a loop that takes longer than `consume_timeout_ms` for a message.
        Raises InvalidRequest for two handlers, and for one that cannot be called.
        """
        if handler is not None and batch_handler is not None:
            raise InvalidRequest("invalid_request", "give handler or batch_handler, not both")
        check_range("concurrency", concurrency, 1, 1_024)
        check_range("consume_timeout_ms", consume_timeout_ms, 1, CONSUME_TIMEOUT_MS_MAX)
        iterated = handler is None and batch_handler is None
        self.handover = Handover(consume_timeout_ms, on_timeout) if iterated else None
        """Passes the messages to the loop; None with a handler."""
        self._threads = WorkerThreads(concurrency)
        self.handle: Handle = handle_of(handler, batch_handler, self.handover, self._threads, group, client_id)
        self.slots = asyncio.Semaphore(1 if iterated else concurrency)
        """Bounds the handler calls of all queues that run at the same time."""
        self.call_timeout_ms = None if iterated else consume_timeout_ms
        """Time after which a handler call is cancelled; None for a loop, which nothing can cancel."""

    def close(self) -> None:
        """End the threads; functions that still run go on."""
        self._threads.close()
