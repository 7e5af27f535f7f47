"""Decisions about transactions."""

import enum
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from keelmq.message import Message


class Decision(enum.StrEnum):
    """The outcome of a local transaction. UNKNOWN leaves the decision to a later check."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class RollbackTransaction(Exception):
    """Raised by a local transaction that failed in a known way: its messages are dropped."""


class Transaction(msgspec.Struct, frozen=True, kw_only=True):
    """A half transaction, as the local transaction and the check handler see it.

    `check_times` and `prepared_at_ms` are 0 in the local transaction.
    """

    id: str
    producer_group: str
    messages: Sequence[Message]
    check_times: int = 0
    prepared_at_ms: int = 0


class Position(msgspec.Struct, frozen=True):
    """The place of messages of a committed transaction: `count` messages from `offset` on.

    Messages that wait for their delivery time have `deliver_at_ms` instead of an offset."""

    topic: str
    queue: int
    offset: int | None
    count: int
    deliver_at_ms: int | None = None


CheckHandler = Callable[[Transaction], Awaitable[Decision]]
"""Returns the outcome of a transaction, from the application's own durable state."""
PlainCheckHandler = Callable[[Transaction], Decision]
"""A check handler as a plain function, which runs in a worker thread."""
