"""A group that gives back messages that its handlers cannot process: each comes again, and ends as a dead letter."""

from collections import Counter
from typing import Final

import keelmq
from tests.chaos.message import number_in
from tests.chaos.workloads.consume import SESSION_TIMEOUT_MS, Members
from tests.chaos.workloads.worker import DELAYED_TOPIC, TRANSACTION_TOPICS, Field

RETURNS_GROUP: Final = "chaos-returns"
RETURNS_TOPICS: Final = (*TRANSACTION_TOPICS, DELAYED_TOPIC)
RETRY_TOPIC: Final = f"%RETRY%{RETURNS_GROUP}"
MAX_ATTEMPTS: Final = 3
RETRY_DELAYS_MS: Final = (200, 500)
_KINDS: Final = 10


def is_doomed(number: int) -> bool:
    """Return whether no handler can ever process the message."""
    return number % _KINDS == 0


def fails(number: int, attempt: int) -> bool:
    """Return whether handlers must fail on the message: a tenth of all messages always, a fifth at first."""
    return is_doomed(number) or (attempt == 0 and number % _KINDS in (1, 2))


class CannotProcess(Exception):
    """Raised by the handler for messages that it was made to fail on."""


class Returns(Members):
    """Members that give back. `processed` counts the finished handlers by message number."""

    def __init__(self, field: Field, members: int) -> None:
        super().__init__(field, members, "returns")
        self.processed: Counter[int] = Counter()

    async def prepare(self) -> None:
        """Set the group's limits, on a cluster that is ready. Idempotent."""
        await self._field.put_group(RETURNS_GROUP, MAX_ATTEMPTS, RETRY_DELAYS_MS)

    def _consumer(self, connection: keelmq.Connection) -> keelmq.Consumer:
        return keelmq.Consumer(
            self._field.urls,
            RETURNS_GROUP,
            list(RETURNS_TOPICS),
            self._handle,
            ordered=False,
            on_error="give_back",
            start="earliest",
            wait_ms=2_000,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            connection=connection,
        )

    async def _handle(self, message: keelmq.ReceivedMessage) -> None:
        self._field.reads.read((message.topic, message.queue), message.offset, message.body, RETURNS_GROUP)
        number = number_in(message.body)
        if number is None:
            return  # a violation, and noted as one
        if fails(number, message.attempt):
            raise CannotProcess(f"message {number:x}")
        self.processed[number] += 1
