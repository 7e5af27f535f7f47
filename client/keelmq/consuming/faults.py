"""Reports faults of handler calls that raise no error in the application."""

from collections.abc import Callable, Sequence
from typing import Final

from keelmq.errors import ConsumeTimeout, MessagesExpired, QueueLost
from keelmq.line_log import log, log_error_of_application
from keelmq.message import ReceivedMessage
from keelmq.plain_calls import check_plain_function

FAULT_PAUSE_S: Final = 2.0
"""Seconds before a consumer's background work is tried again after an unexpected error, which is logged with its
traceback."""

Fault = ConsumeTimeout | MessagesExpired | QueueLost
OnFault = Callable[[Fault, Sequence[ReceivedMessage]], object]
"""Receives the fault and the messages of the handler call (no messages for MessagesExpired).
Its own exceptions are logged."""


class Faults:
    def __init__(self, on_fault: OnFault | None) -> None:
        """Create a reporter. Raises InvalidRequest unless `on_fault` is a plain function."""
        if on_fault is not None:
            check_plain_function("on_fault", on_fault)
        self._on_fault = on_fault

    def timed_out(self, error: ConsumeTimeout, messages: Sequence[ReceivedMessage]) -> None:
        first = messages[0]
        log.error("%s/%d: message %s (offset %d): %s", first.topic, first.queue, first.message_id, first.offset, error)
        self.tell(error, messages)

    def expired(self, topic: str, queue: int, first: int, start: int) -> None:
        """Report expired messages: the group's next offset was `first`, and the retained messages begin at `start`."""
        detail = f"{topic}/{queue}: {start - first} messages from offset {first} on expired before they were consumed"
        log.error("%s; going on at offset %d", detail, start)
        extra = {"topic": topic, "queue": queue, "offset": first, "skipped": start - first}
        self.tell(MessagesExpired("messages_expired", detail, extra=extra), ())

    def fenced(self, calls: Sequence[Sequence[ReceivedMessage]], why: str) -> None:
        """Report running `calls` of a queue that may belong to another member, which may handle the messages again."""
        for messages in calls:
            first = messages[0]
            log.warning("%s/%d: the handler of offset %d is fenced: %s", first.topic, first.queue, first.offset, why)
            self.tell(QueueLost("queue_lost", why), messages)

    def tell(self, error: Fault, messages: Sequence[ReceivedMessage]) -> None:
        """Call `on_fault` without writing a line to the log."""
        if self._on_fault is None:
            return
        try:
            self._on_fault(error, messages)
        except Exception as exc:
            log_error_of_application("on_fault failed", exc)
