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
    """`state` is the recorded one: a duplicate may have been decided meanwhile."""

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
    """Decide a discarded transaction too. Only of an operator, who gives a name and a reason."""
    reason: str = ""
    operator: str = ""


class Decided(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`positions` is empty unless the state is committed."""

    transaction_id: str
    state: TransactionState
    positions: tuple[Position, ...] = ()


class RecordChecks(CommandBase, frozen=True, tag=6):
    """These transactions' checks were delivered to `client_id`; the next ones are due after `next_check_after_ms`."""

    transaction_ids: tuple[str, ...]
    client_id: str
    via: CheckVia
    next_check_after_ms: int


class ChecksRecorded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The transactions that were still prepared."""

    transaction_ids: tuple[str, ...]


class Discard(CommandBase, frozen=True, tag=7):
    """Give up on transactions that nobody decided."""

    transaction_ids: tuple[str, ...]
    check_times: tuple[int, ...] = ()
    """How often each had been asked about when this was proposed: one that was resumed since is left alone. Empty in
    entries of before that was known: then all are given up."""


class Discarded(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The transactions that were still prepared."""

    transaction_ids: tuple[str, ...]


class ResumeTransaction(CommandBase, frozen=True, tag=16):
    """Ask about a discarded transaction again: it is prepared, its checks are counted anew."""

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
