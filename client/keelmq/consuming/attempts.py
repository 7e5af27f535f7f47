"""Logs failed handler calls."""

import logging
from collections.abc import Sequence

from keelmq.consuming.redelivery import RetryLater
from keelmq.errors import ConsumeTimeout
from keelmq.line_log import log
from keelmq.message import ReceivedMessage


class HandlerCancelled(Exception):
    """A handler raised CancelledError although its task had not been cancelled."""


def log_failed_attempt(
    failure: BaseException, messages: Sequence[ReceivedMessage], attempt: int, following: str
) -> None:
    """Log one line with the message, the attempt and the next step.

    The traceback is logged at DEBUG level, unless the failure is not an error of the handler."""
    first = messages[0]
    expected = isinstance(failure, RetryLater | ConsumeTimeout | HandlerCancelled)
    log.log(
        logging.INFO if isinstance(failure, RetryLater) else logging.ERROR,
        "%s/%d: the handler failed on message %s (offset %d%s), attempt %d%s: %s: %s; %s",
        first.topic,
        first.queue,
        first.message_id,
        first.offset,
        f", and {len(messages) - 1} more" if len(messages) > 1 else "",
        attempt,
        f", given back {first.attempt} times before" if first.attempt else "",
        type(failure).__name__,
        failure,
        following,
    )
    if not expected:
        log.debug("message %s, attempt %d: traceback", first.message_id, attempt, exc_info=failure)
