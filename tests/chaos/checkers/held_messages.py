"""Checks the leases of popped messages: no other consumer gets a message until its time is over, by the broker's own
clock.

Each time a message is handed out is another attempt at it, and the message comes again no earlier than the end of its
lease. The broker's answers say both in the replicated clock, so no wrong clock can affect the check.
"""

from dataclasses import dataclass

from tests.chaos.message import name_of
from tests.chaos.violations import Kind, Violations


@dataclass
class _Hold:
    """One lease of a message. The message could be leased from `stored_at_ms` on."""

    consumer: str
    stored_at_ms: int
    until_ms: int
    given_back: bool = False


class HeldMessages:
    """Checks leases of messages by their number; attempts count from 0."""

    def __init__(self, violations: Violations) -> None:
        self.handed_out = 0
        self._violations = violations
        self._holds: dict[int, dict[int, _Hold]] = {}

    def popped(self, consumer: str, number: int, attempt: int, stored_at_ms: int, until_ms: int) -> None:
        """Note that the consumer got the message in an answer and owns it until `until_ms`."""
        self.handed_out += 1
        holds = self._holds.setdefault(number, {})
        if attempt in holds:
            detail = f"attempt {attempt} is handed out to {consumer}, and was to {holds[attempt].consumer}"
            self._add(number, detail)
            return
        holds[attempt] = _Hold(consumer, stored_at_ms, until_ms)
        self._check(number, attempt)
        self._check(number, attempt + 1)  # the next attempt's answer may have arrived first

    def held_until(self, number: int, attempt: int, until_ms: int) -> None:
        """Note that the message's consumer was told that its lease is extended."""
        self._holds[number][attempt].until_ms = until_ms

    def giving_back(self, number: int, attempt: int) -> None:
        """Note that the message's consumer is about to give it back: it may come again at any time."""
        self._holds[number][attempt].given_back = True

    def _check(self, number: int, attempt: int) -> None:
        holds = self._holds[number]
        before, after = holds.get(attempt - 1), holds.get(attempt)
        if before is None or after is None or before.given_back:
            return
        early_ms = before.until_ms - after.stored_at_ms
        if early_ms > 0:
            self._add(
                number,
                f"comes to {after.consumer} as attempt {attempt}, {early_ms} ms before the time of {before.consumer} "
                "was over",
            )

    def _add(self, number: int, detail: str) -> None:
        self._violations.add(Kind.POPPED_TWICE, f"{name_of(number)} {detail}")
