"""Broken interventions of operators, and broken requests with several transactions."""

from collections.abc import Sequence
from typing import Any

from cluster.core.core import Core
from raft.proposals import Applied
from store.commands.cluster import Settings
from store.commands.entry import Proposal
from store.commands.transactions import Decide, Decided, Prepare, Prepared, Resumed, ResumeTransaction
from store.errors import TRANSACTIONS_REJECTED, Refused
from store.messages.placement import At
from store.steps import Steps
from store.transactions.settings import ClusterSettings
from store.transactions.table import DISCARDED, PREPARED, TransactionRecord, TransactionTable
from store.transactions.transactions import Transactions
from tests.sim.variant import Swap, mutant

_prepare, _decide, _resume = Transactions.prepare, Transactions.decide, Transactions.resume
_propose_all, _resume_record = Core.propose_all, TransactionTable.resume


def a_late_decision_counts(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """A producer that comes too late decides a transaction that was discarded."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state == DISCARDED and command.decision != "unknown":
        transactions.table.resume(command.transaction_id, record, at.clock_ms)
    return _decide(transactions, command, at)


def force_overrides_a_decision(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """An operator's force undoes a commit or a rollback."""
    record = transactions.table.get(command.transaction_id)
    if command.force and record is not None and record.state not in (PREPARED, DISCARDED):
        transactions.table.decide(command.transaction_id, record, DISCARDED)
    return _decide(transactions, command, at)


def force_is_for_prepared_ones(transactions: Transactions, command: Decide, at: At) -> Decided | Steps[Decided]:
    """A forced decision of a discarded transaction is refused like any other."""
    if command.force:
        named = {"operator": command.operator, "reason": command.reason, "source": command.source}
        command = Decide(command.transaction_id, command.decision, **named)  # type: ignore[arg-type]
    return _decide(transactions, command, at)


def force_leaves_no_trace(transactions: Transactions, command: Decide, at: At) -> Steps[Decided]:
    """The operator of a forced decision, and the reason, are not kept."""
    decided = _decide(transactions, command, at)
    decided = decided if isinstance(decided, Decided) else (yield from decided)
    record = transactions.table.get(command.transaction_id)
    if command.force and record is not None and record.forced:
        record.forced, record.operator, record.reason = False, None, None
        transactions.table.update(command.transaction_id, record)
    return decided


def resumes_what_is_decided(transactions: Transactions, command: ResumeTransaction, at: At) -> Resumed:
    """A transaction that was committed or rolled back can be resumed, and decided once more."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state not in (PREPARED, DISCARDED):
        transactions.table.decide(command.transaction_id, record, DISCARDED)
    return _resume(transactions, command, at)


def resumes_in_the_answer_alone(transactions: Transactions, command: ResumeTransaction, at: At) -> Resumed:
    """A resume is answered with success and changes nothing."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state == DISCARDED:
        return Resumed(command.transaction_id, "prepared", at.clock_ms + command.next_check_after_ms)
    return _resume(transactions, command, at)


def a_resume_keeps_the_count(
    table: TransactionTable, transaction_id: str, record: TransactionRecord, next_check_at_ms: int
) -> None:
    """A resumed transaction has had all its checks, and is discarded again without being asked about."""
    check_times = record.check_times
    _resume_record(table, transaction_id, record, next_check_at_ms)
    record.check_times = check_times
    table.update(transaction_id, record)


def a_resume_is_never_checked(
    table: TransactionTable, transaction_id: str, record: TransactionRecord, next_check_at_ms: int
) -> None:
    """A resumed transaction is prepared, but nobody is asked about it."""
    _resume_record(table, transaction_id, record, next_check_at_ms + 3_600_000)


def a_resume_forgets_the_discard(table: TransactionTable, transaction_id: str, record: TransactionRecord) -> None:
    """The earlier discard is gone from the timeline of a transaction that was resumed or forced."""


def anybody_resumes_again(transactions: Transactions, command: ResumeTransaction, at: At) -> Resumed:
    """A resume of a prepared transaction is answered as if this operator had resumed it."""
    record = transactions.table.get(command.transaction_id)
    if record is not None and record.state == PREPARED:
        return Resumed(command.transaction_id, "prepared", record.next_check_at_ms)
    return _resume(transactions, command, at)


def ignores_the_switch(settings: ClusterSettings) -> None:
    """New transactions are taken although they are switched off."""


def the_switch_stops_retries(
    transactions: Transactions, command: Prepare, at: At, block_offsets: Sequence[int]
) -> Steps[Prepared]:
    """A prepare that is sent again while transactions are switched off is refused too."""
    if transactions._settings.current.reject_transactions:
        raise Refused(TRANSACTIONS_REJECTED, "an operator switched them off")
    return _prepare(transactions, command, at, block_offsets)


def forgets_the_switch_at_a_restart(settings: ClusterSettings, index: Any) -> None:
    """The settings are in memory only."""
    settings._index = index
    settings.current = Settings()


async def mixes_up_a_request(core: Core, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
    """The outcomes of transactions that shared a request are interchanged."""
    outcomes = await _propose_all(core, proposals)
    return outcomes[1:] + outcomes[:1]


async def one_fails_all(core: Core, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
    """A refused transaction refuses the transactions that shared its request, but only in the answers."""
    outcomes = await _propose_all(core, proposals)
    refused = next((each for each in outcomes if isinstance(each, Refused)), None)
    return outcomes if refused is None else [refused] * len(outcomes)


async def answers_a_request_early(core: Core, proposals: Sequence[Proposal]) -> list[Applied | Exception]:
    """The last of the transactions that share a request is answered as soon as the first is."""
    outcomes = await _propose_all(core, proposals[:1])
    first = outcomes[0] if outcomes else None
    if len(proposals) == 1 or not isinstance(first, Applied):
        return [*outcomes, *(await _propose_all(core, proposals[1:]))]
    for proposal in proposals[1:]:
        core.raft.propose(proposal).add_done_callback(lambda future: future.cancelled() or future.exception())
    return [first, *(_promised(core, each, first) for each in proposals[1:])]


def _promised(core: Core, proposal: Proposal, first: Applied) -> Applied:
    command = proposal.command
    if isinstance(command, Decide):
        state: Any = {"commit": "committed", "rollback": "rolled_back"}.get(command.decision, "prepared")
        result: Any = Decided(command.transaction_id, state)
    else:
        assert isinstance(command, Prepare)
        result = Prepared(command.transaction_id, "prepared", False, first.timestamp_ms)
    return Applied(result, core.raft.term, core.log.last_index, core.now_ms(), (core.raft.node_id,))


MUTANTS = (
    mutant(6, Swap(Transactions, "decide", a_late_decision_counts), rare=True),
    mutant(6, Swap(Transactions, "decide", force_overrides_a_decision)),
    mutant(6, Swap(Transactions, "decide", force_is_for_prepared_ones)),
    mutant(6, Swap(Transactions, "decide", force_leaves_no_trace)),
    mutant(6, Swap(Transactions, "resume", resumes_what_is_decided)),
    mutant(6, Swap(Transactions, "resume", resumes_in_the_answer_alone), rare=True),
    mutant(6, Swap(TransactionTable, "resume", a_resume_keeps_the_count), rare=True),
    mutant(6, Swap(TransactionTable, "resume", a_resume_is_never_checked), rare=True),
    mutant(6, Swap(TransactionTable, "reopen_timeline", a_resume_forgets_the_discard), rare=True),
    mutant(6, Swap(Transactions, "resume", anybody_resumes_again)),
    mutant(6, Swap(ClusterSettings, "require_transactions", ignores_the_switch)),
    mutant(6, Swap(Transactions, "prepare", the_switch_stops_retries), rare=True),
    mutant(8, Swap(ClusterSettings, "__init__", forgets_the_switch_at_a_restart)),
    mutant(6, Swap(Core, "propose_all", mixes_up_a_request)),
    mutant(6, Swap(Core, "propose_all", one_fails_all)),
    mutant(2, Swap(Core, "propose_all", answers_a_request_early)),
)
