"""What is decided about a transaction."""

import enum
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from keelmq.message import Message


class Decision(enum.StrEnum):
    """The outcome of a local transaction. UNKNOWN leaves it to a later check."""

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
    """Where messages of a committed transaction are: `count` of them at `offset` and on. Those that wait for their
    time have `deliver_at_ms` instead."""

    topic: str
    queue: int
    offset: int | None
    count: int
    deliver_at_ms: int | None = None


CheckHandler = Callable[[Transaction], Awaitable[Decision]]
"""Answers what became of a transaction, from the application's own durable state."""
PlainCheckHandler = Callable[[Transaction], Decision]
"""The same as a plain function, which runs in a worker thread."""
