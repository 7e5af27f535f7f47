"""Broken care for an entry that is applied in part."""

from collections.abc import Callable, Iterator, Sequence

from store.commands.entry import Result
from store.commands.messages import Position
from store.errors import Refused
from store.index.index import Index
from store.log.record import Entry
from store.messages.placement import At
from store.messages.queues import Unshown
from store.state.machine import StateMachine
from store.state.rows_hash import rows_hash
from store.steps import Steps
from store.transactions.table import TransactionRecord
from store.transactions.transactions import Transactions
from tests.sim.variant import Swap, mutant

_apply, _place = StateMachine.apply, Transactions._place


def writes_an_entry_in_parts(
    machine: StateMachine, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
) -> list[list[Result | Refused]]:
    """A part of an entry reaches the disk at a pause: a crash in between does it twice."""
    results = _apply(machine, entries, may_go_on)
    if machine.is_paused and machine._index._batch is None:
        machine._index.commit()
        machine._index.flush()
    return results


def hashes_where_it_pauses(
    machine: StateMachine, entries: Sequence[Entry], may_go_on: Callable[[], bool] = lambda: True
) -> list[list[Result | Refused]]:
    """The rows of before a pause are hashed at the pause, so that the hash depends on the pauses."""
    results = _apply(machine, entries, may_go_on)
    if machine.is_paused:
        applied, touched = machine._applied, machine._index.touched
        applied.rows_hash = rows_hash(touched, applied.rows_hash, summed=machine._sums_rows)
    return results


def copies_what_is_staged(index: Index) -> Iterator[tuple[bytes, bytes]]:
    """A snapshot holds what an entry has done before it paused, and says that it is of the entry before."""
    return iter([*index.scan(b"", b"\xff")])


def decides_in_steps(
    transactions: Transactions, transaction_id: str, record: TransactionRecord, at: At, unshown: Unshown
) -> Steps[tuple[Position, ...]]:
    """A commit pauses between its messages and its state."""
    positions = yield from _place(transactions, transaction_id, record, at, unshown)
    transactions._queues.show(unshown)
    unshown.rows.clear()
    yield
    return positions


def _shown_index(machine: StateMachine) -> int:
    """The state says that it has applied an entry of which it has done a part."""
    return machine.shown_index


class _NamesAnEntryAppliedInPart(property):
    __name__ = "names-an-entry-applied-in-part"


MUTANTS = (
    mutant(8, Swap(StateMachine, "apply", writes_an_entry_in_parts)),
    mutant(22, Swap(StateMachine, "apply", hashes_where_it_pauses)),
    mutant(8, Swap(StateMachine, "applied_index", _NamesAnEntryAppliedInPart(_shown_index))),
    mutant(5, Swap(Transactions, "_place", decides_in_steps)),
    mutant(16, Swap(Index, "pairs", copies_what_is_staged)),
)
