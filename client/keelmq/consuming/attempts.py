"""The line in the log about a handler call that failed."""

import logging
from collections.abc import Sequence

from keelmq.consuming.redelivery import RetryLater
from keelmq.errors import ConsumeTimeout
from keelmq.message import ReceivedMessage

log = logging.getLogger("keelmq")


class HandlerCancelled(Exception):
    """A handler raised CancelledError though nobody had cancelled it."""


def log_failed_attempt(
    failure: BaseException, messages: Sequence[ReceivedMessage], attempt: int, following: str
) -> None:
    """One line with the message, the attempt and what comes next; the first attempt's has the traceback behind it,
    unless the failure is no error of the handler."""
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
        exc_info=failure if attempt == 1 and not expected else None,
    )
