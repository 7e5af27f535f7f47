"""Redelivery of messages that a handler cannot process now; after too many attempts they become dead letters."""

from typing import Literal

from keelmq.errors import InvalidRequest
from keelmq.limits import DELAY_MS_MAX, GIVE_BACK_REASON_BYTES_MAX, check_range
from keelmq.printable import error_text

OnError = Literal["block", "give_back"]


class RetryLater(Exception):
    """Raised by a handler to give its messages back for redelivery after `delay_ms`, by default the group's backoff.

    `reason`, a text or an error, is kept with the message, cut to 255 bytes. Raises InvalidRequest for a delay beyond
    40 days.
    """

    def __init__(self, delay_ms: int | None = None, reason: str | BaseException = "") -> None:
        if delay_ms is not None:
            check_range("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        text = error_text(reason) if isinstance(reason, BaseException) else str(reason or "")
        super().__init__(text)
        self.delay_ms = delay_ms
        self.reason = text


def tries_before_giving_back(on_error: OnError | None, tries: int, *, ordered: bool) -> int | None:
    """Return the number of calls of a raising handler before its messages are given back; None to call it until it
    succeeds. Raises InvalidRequest.
    """
    check_range("tries", tries, 1, 1_000)
    if on_error not in (None, "block", "give_back"):
        raise InvalidRequest("invalid_request", "on_error: block or give_back")
    return tries if (on_error or ("block" if ordered else "give_back")) == "give_back" else None


def wish_of(failure: BaseException) -> tuple[int | None, str]:
    """Return the delay and the reason with which a message is given back."""
    if isinstance(failure, RetryLater):
        return failure.delay_ms, _cut(failure.reason)
    return None, _cut(f"{type(failure).__name__}: {error_text(failure)}")


def _cut(reason: str) -> str:
    return reason.encode(errors="replace")[:GIVE_BACK_REASON_BYTES_MAX].decode(errors="ignore")
