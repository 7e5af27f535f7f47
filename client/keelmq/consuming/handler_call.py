"""Handler calls of one processor: each call has a time limit, and its messages are visible while it runs."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from keelmq.causation import processing
from keelmq.consuming.handover import Handover
from keelmq.errors import ConsumeTimeout
from keelmq.line_log import log
from keelmq.message import ReceivedMessage
from keelmq.plain_calls import WorkerThreads, check_function
from keelmq.tracing import process_span

Handle = Callable[[Sequence[ReceivedMessage]], Awaitable[None]]


class HandlerCall:
    """Runs one handler call at a time in the task that handles a queue's messages.

    All calls share one timer, which is armed again only when it fires, so a call costs no timer of its own.
    """

    __slots__ = ("_ends_s", "_expired", "_task", "_timeout_ms", "_timer", "messages")

    def __init__(self, timeout_ms: int | None) -> None:
        self.messages: Sequence[ReceivedMessage] | None = None
        """Arguments of the handler call that runs now; None while none runs."""
        self._timeout_ms = timeout_ms
        self._ends_s = 0.0
        self._expired = False
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def run(self, handle: Handle, messages: Sequence[ReceivedMessage]) -> None:
        """Call `handle`, and raise what it raises.

        Raises ConsumeTimeout when the call was cancelled because it took longer than the timeout. A handler that is
        late but returns all the same has processed its messages."""
        self.messages = messages
        if self._timeout_ms is not None:
            self._begin(self._timeout_ms)
        try:
            await handle(messages)
        except asyncio.CancelledError:
            if not self._taken_back():
                raise
            raise ConsumeTimeout(
                "consume_timeout",
                f"the handler did not end within {self._timeout_ms} ms and was cancelled",
            ) from None
        finally:
            self.messages = None
            if self._taken_back():
                first = messages[0]
                log.warning(
                    "%s/%d: the handler of offset %d was cancelled after %d ms and did not heed that",
                    first.topic,
                    first.queue,
                    first.offset,
                    self._timeout_ms,
                )

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._ends_s = loop.time() + timeout_ms / 1000
        self._task = asyncio.current_task()
        if self._timer is None:
            self._timer = loop.call_at(self._ends_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self.messages is None or self._expired:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._ends_s:  # the timer was armed for an earlier call
            self._timer = loop.call_at(self._ends_s, self._look)
            return
        assert self._task is not None
        self._expired = True
        self._task.cancel()

    def _taken_back(self) -> bool:
        """Return whether only the timeout had cancelled the task, and undo the cancellation: the task goes on."""
        if not self._expired:
            return False
        self._expired = False
        assert self._task is not None
        return self._task.uncancel() == 0


def handle_of(
    handler: Callable[[ReceivedMessage], object] | None,
    batch_handler: Callable[[Sequence[ReceivedMessage]], object] | None,
    handover: Handover | None,
    threads: WorkerThreads,
    group: str,
    client_id: str,
) -> Handle:
    """Return the function that readers call for one of the two handlers or the handover.

    Messages that an application's handler sends carry the handled messages as their cause. Raises InvalidRequest for a
    handler that cannot be called."""
    if handover is not None:
        return handover.handle
    check_function("handler" if handler is not None else "batch_handler", handler or batch_handler)
    if handler is not None:
        of_one = threads.awaitable(handler)

        async def one(messages: Sequence[ReceivedMessage]) -> None:
            with processing(messages, group), process_span(messages, group, client_id):
                await of_one(messages[0])

        return one
    assert batch_handler is not None
    of_several = threads.awaitable(batch_handler)

    async def several(messages: Sequence[ReceivedMessage]) -> None:
        with processing(messages, group), process_span(messages, group, client_id):
            await of_several(list(messages))  # the handler's own: it may take messages from it

    return several
