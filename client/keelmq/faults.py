"""Telling the application of handler calls that have gone wrong without raising."""

import logging
from collections.abc import Callable, Sequence

from keelmq.errors import ConsumeTimeout, QueueLost
from keelmq.message import ReceivedMessage

log = logging.getLogger("keelmq")

Fault = ConsumeTimeout | QueueLost
OnFault = Callable[[Fault, Sequence[ReceivedMessage]], object]
"""Called with what happened and the messages of the handler call; what it raises is logged."""


class Faults:
    def __init__(self, on_fault: OnFault | None) -> None:
        self._on_fault = on_fault

    def timed_out(self, error: ConsumeTimeout, messages: Sequence[ReceivedMessage]) -> None:
        first = messages[0]
        log.error("%s/%d: offset %d: %s", first.topic, first.queue, first.offset, error)
        self._tell(error, messages)

    def fenced(self, calls: Sequence[Sequence[ReceivedMessage]], why: str) -> None:
        """`calls` run for a queue that is, or may be, another member's: what they do may be done there again."""
        for messages in calls:
            first = messages[0]
            log.warning("%s/%d: the handler of offset %d is fenced: %s", first.topic, first.queue, first.offset, why)
            self._tell(QueueLost("queue_lost", why), messages)

    def _tell(self, error: Fault, messages: Sequence[ReceivedMessage]) -> None:
        if self._on_fault is None:
            return
        try:
            self._on_fault(error, messages)
        except Exception:
            log.exception("on_fault failed")
