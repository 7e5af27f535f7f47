"""Broken ways to handle half messages and decisions."""

from collections.abc import Sequence

from store.commands.messages import Position
from store.commands.transactions import Decide, Decided, Prepare, Prepared
from store.commands.views import TimelineEvent
from store.errors import Refused
from store.messages.placement import At
from store.messages.queues import Unshown
from store.steps import Steps, finish
from store.transactions.table import PREPARED, ROLLED_BACK, TransactionRecord
from store.transactions.transactions import Transactions
from tests.sim.variant import Swap, mutant

_prepare, _decide, _place = Transactions.prepare, Transactions.decide, Transactions._place


def _deliver(transactions: Transactions, transaction_id: str, record: TransactionRecord, at: At) -> Steps[None]:
    unshown = Unshown()
    yield from _place(transactions, transaction_id, record, at, unshown)
    transactions._queues.show(unshown)


def delivers_half_messages(
    transactions: Transactions, command: Prepare, at: At, block_offsets: Sequence[int]
) -> Steps[Prepared]:
    """Half messages are visible as soon as they are prepared."""
    prepared = yield from _prepare(transactions, command, at, block_offsets)
    record = transactions.table.get(command.transaction_id)
    assert record is not None
    yield from _deliver(transactions, command.transaction_id, record, at)
    return prepared


def prepares_a_decided_transaction(
    transactions: Transactions, command: Prepare, at: At, block_offsets: Sequence[int]
) -> Steps[Prepared]:
    """A prepare that is sent again makes the transaction undecided again."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state != PREPARED:
        transactions.table.decide(command.transaction_id, record, PREPARED)
    return _prepare(transactions, command, at, block_offsets)


def delivers_the_first_batch_only(
    transactions: Transactions, transaction_id: str, record: TransactionRecord, at: At, unshown: Unshown
) -> Steps[tuple[Position, ...]]:
    """Only the first batch of a transaction with several batches is delivered."""
    first = record.batches[:1]
    whole, record.batches = record.batches, first
    positions = yield from _place(transactions, transaction_id, record, at, unshown)
    record.batches = whole
    return positions


def delivers_nothing(
    transactions: Transactions, transaction_id: str, record: TransactionRecord, at: At, unshown: Unshown
) -> Steps[tuple[Position, ...]]:
    """A committed transaction is recorded and not delivered."""
    yield from ()
    return ()


def rollback_delivers(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """The messages of a transaction that is rolled back are delivered all the same."""
    record = transactions.table.get(command.transaction_id)
    if command.decision == "rollback" and record is not None and record.state == PREPARED:
        finish(_deliver(transactions, command.transaction_id, record, at))
    return _decide(transactions, command, at)


def last_decision_wins(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """The opposite of a recorded decision overwrites it."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and command.decision != "unknown" and record.state != PREPARED:
        transactions.table.decide(command.transaction_id, record, PREPARED)
    return _decide(transactions, command, at)


def calls_a_rollback_committed(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """A commit after a rollback is answered with success, and changes nothing: a silent loss."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state == ROLLED_BACK and command.decision == "commit":
        return Decided(command.transaction_id, "committed", ())
    return _decide(transactions, command, at)


def unknown_decides(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """`unknown` counts as a commit."""
    if command.decision == "unknown":
        command = Decide(command.transaction_id, "commit", command.source, command.client_id)
    return _decide(transactions, command, at)


def notes_what_it_refuses(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """A refused decision leaves its trace in the timeline of the transaction."""
    try:
        return _decide(transactions, command, at)
    except Refused:
        record = transactions.table.get(command.transaction_id)
        if record is not None:
            event = TimelineEvent(at.clock_ms, "answer", at.raft_index, command.client_id, answer=command.decision)
            transactions.table.add_event(command.transaction_id, record, event)
        raise


MUTANTS = (
    mutant(5, Swap(Transactions, "prepare", delivers_half_messages)),
    mutant(6, Swap(Transactions, "prepare", prepares_a_decided_transaction)),
    mutant(5, Swap(Transactions, "_place", delivers_the_first_batch_only)),
    mutant(5, Swap(Transactions, "_place", delivers_nothing)),
    mutant(5, Swap(Transactions, "decide", rollback_delivers)),
    mutant(6, Swap(Transactions, "decide", last_decision_wins)),
    mutant(6, Swap(Transactions, "decide", calls_a_rollback_committed)),
    mutant(6, Swap(Transactions, "decide", unknown_decides)),
    mutant(11, Swap(Transactions, "decide", notes_what_it_refuses)),
)
