"""Commands about transactions, each with its result."""

from typing import Literal

import msgspec

from store.commands.base import CommandBase
from store.commands.messages import BatchHeader, Position

Decision = Literal["commit", "rollback", "unknown"]
DecisionSource = Literal["producer", "check", "operator"]
CheckVia = Literal["poll", "webhook"]
TransactionState = Literal["prepared", "committed", "rolled_back", "discarded"]


class Prepare(CommandBase, frozen=True, tag=4):
    """Store a half transaction: its batches stay invisible until it is committed."""

    transaction_id: str
    producer_group: str
    client_id: str
    check_after_ms: int | None
    batches: tuple[BatchHeader, ...]


class Prepared(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of Prepare. `state` is the recorded one: the transaction of a duplicate may have been decided
    meanwhile.
    """

    transaction_id: str
    state: TransactionState
    duplicate: bool
    prepared_at_ms: int


class Decide(CommandBase, frozen=True, tag=5):
    transaction_id: str
    decision: Decision
    source: DecisionSource = "producer"
    client_id: str = ""
    producer_group: str | None = None
    force: bool = False
    """True decides a discarded transaction too. Only for an operator, who must give a name and a reason."""
    reason: str = ""
    operator: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of Decide; `positions` is empty unless the state is committed."""

    transaction_id: str
    state: TransactionState
    positions: tuple[Position, ...] = ()


class RecordChecks(CommandBase, frozen=True, tag=6):
    """Record that these transactions' check-backs were delivered to `client_id`; the next ones are due after
    `next_check_after_ms`.
    """

    transaction_ids: tuple[str, ...]
    client_id: str
    via: CheckVia
    next_check_after_ms: int


class ChecksRecorded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The transactions that were still prepared, and so were recorded."""

    transaction_ids: tuple[str, ...]


class Discard(CommandBase, frozen=True, tag=7):
    """Discard transactions that nobody decided."""

    transaction_ids: tuple[str, ...]
    check_times: tuple[int, ...] = ()
    """The number of check-backs of each transaction when this command was proposed: a transaction that was resumed
    since is left alone. Empty in entries written before the field existed: then all transactions are discarded.
    """


class Discarded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The transactions that were still prepared, and so were discarded."""

    transaction_ids: tuple[str, ...]


class ResumeTransaction(CommandBase, frozen=True, tag=16):
    """Make a discarded transaction prepared again: its check-backs resume, counted from zero."""

    transaction_id: str
    operator: str
    reason: str
    next_check_after_ms: int


class Resumed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    transaction_id: str
    state: TransactionState
    next_check_at_ms: int


class SetCheckUrl(CommandBase, frozen=True, tag=8):
    producer_group: str
    url: str | None


class CheckUrlSet(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    producer_group: str
    check_url: str | None
