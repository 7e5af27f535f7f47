"""Delivery times: computes when a message becomes visible."""

from typing import Final, NamedTuple

from keelmq.errors import InvalidRequest
from keelmq.limits import DELAY_LEVELS_S, DELAY_MS_MAX, INT64_MAX, check_range


class Delay(NamedTuple):
    """A delivery time: a fixed time, or a delay after the message is accepted. With neither, delivery is immediate."""

    deliver_at_ms: int | None = None
    delay_ms: int | None = None


AT_ONCE: Final = Delay()


def delay_of(delay_level: int | None, delay_ms: int | None, deliver_at_ms: int | None) -> Delay:
    """Return the requested delay. Raises InvalidRequest beyond the limits, and when more than one option is given.

    Only the broker can tell whether `deliver_at_ms` is too far ahead, because its clock counts.
    """
    if delay_level is None and delay_ms is None and deliver_at_ms is None:
        return AT_ONCE
    if (delay_level is not None) + (delay_ms is not None) + (deliver_at_ms is not None) > 1:
        raise InvalidRequest("invalid_request", "give one of delay_level, delay_ms and deliver_at_ms")
    if delay_level is not None:
        check_range("delay_level", delay_level, 1, len(DELAY_LEVELS_S))
        return Delay(delay_ms=DELAY_LEVELS_S[delay_level - 1] * 1000)
    if delay_ms is not None:
        check_range("delay_ms", delay_ms, 0, DELAY_MS_MAX)
        return Delay(delay_ms=delay_ms)
    check_range("deliver_at_ms", deliver_at_ms, 0, INT64_MAX)
    return Delay(deliver_at_ms=deliver_at_ms)
