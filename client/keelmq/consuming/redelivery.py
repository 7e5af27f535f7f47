"""Redelivery of messages that a handler cannot process now; after too many attempts they become dead letters."""

from typing import Final

from keelmq.limits import DELAY_MS_MAX, check_range
from keelmq.printable import error_text

REASON_BYTES_MAX: Final = 255


class RetryLater(Exception):
    """Raised by a handler to give its messages back for redelivery after `delay_ms`, by default the group's backoff.

    `reason` is kept with the message, cut to 255 bytes. Raises InvalidRequest for a delay beyond 40 days.
    """

    def __init__(self, delay_ms: int | None = None, reason: str = "") -> None:
        if delay_ms is not None:
            check_range("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        super().__init__(reason)
        self.delay_ms = delay_ms
        self.reason = reason


def wish_of(failure: BaseException) -> tuple[int | None, str]:
    """Return the delay and the reason with which a message is given back."""
    if isinstance(failure, RetryLater):
        return failure.delay_ms, _cut(failure.reason)
    return None, _cut(f"{type(failure).__name__}: {error_text(failure)}")


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore")
