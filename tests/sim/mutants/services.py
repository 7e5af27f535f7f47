"""Broken services of a node: check service, transactions, group coordinator."""

import asyncio
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import cluster.core.core
import raft.entries.proposing
import store.groups.groups
from cluster.core.core import Core
from cluster.groups.sessions import Session, Sessions
from cluster.transactions.check_service import CheckService
from raft.errors import Overloaded
from raft.proposals import Applied, Proposed
from store.commands.entry import Command
from store.commands.groups import CommitOffsets, OffsetsCommitted
from store.commands.transactions import ChecksRecorded, Decide, Decided, RecordChecks
from store.commands.views import DueCheck
from store.groups.assignment import TopicQueue, assign
from store.groups.groups import Groups
from store.groups.record import Group
from store.messages.placement import At
from store.transactions.table import TransactionTable
from store.transactions.transactions import Transactions
from tests.sim.variant import Swap, mutant

_due_checks, _hand_out, _record_checks = (
    TransactionTable.due_checks,
    CheckService._hand_out,
    Transactions.record_checks,
)
_propose, _applied_before, _rebalance = Core.propose, Core._applied_before, Groups._rebalance


def _in_background(work: Coroutine[Any, Any, Any]) -> None:
    """Run the work in a task and ignore its outcome."""
    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def asks_before_the_immunity_is_over(
    table: TransactionTable, now_ms: int, limit: int, after: tuple[int, str] | None = None
) -> list[DueCheck]:
    """Half transactions are asked about while their producers still work on them."""
    return _due_checks(table, now_ms + 3_600_000, limit, after)


def counts_undelivered_checks(service: CheckService, check: DueCheck, now_ms: int) -> None:
    """A check counts when it is handed out, whether it reaches anybody or not."""
    _hand_out(service, check, now_ms)
    _in_background(service.delivered((check.transaction_id,), check.client_id, "poll"))


def discards_instead_of_asking(service: CheckService, check: DueCheck, now_ms: int) -> None:
    """A transaction is discarded when its first check is due."""
    _in_background(service._discard({check.transaction_id: check.check_times}))


def loses_the_check_count_at_a_restart(transactions: Transactions, command: RecordChecks, at: At) -> ChecksRecorded:
    """The count of a transaction's checks is kept in memory: a failover or a restart begins to count anew."""
    counts: dict[str, int] = transactions.__dict__.setdefault("_counts", {})
    recorded = _record_checks(transactions, command, at)
    for transaction_id in recorded.transaction_ids:
        record = transactions.table.get(transaction_id)
        assert record is not None
        counts[transaction_id] = record.check_times = counts.get(transaction_id, 0) + 1
        transactions.table.update(transaction_id, record)
    return recorded


async def decides_alone(core: Core, command: Command, blocks: Sequence[bytes] = (), **more: Any) -> Applied:
    """A decision is answered before it is replicated."""
    if not isinstance(command, Decide):
        return await _propose(core, command, blocks, **more)
    _in_background(_propose(core, command, blocks, **more))
    state = {"commit": "committed", "rollback": "rolled_back"}.get(command.decision, "prepared")
    decided: Any = Decided(command.transaction_id, state)  # type: ignore[arg-type]
    return Applied(decided, core.raft.term, core.log.last_index, core.now_ms(), (core.raft.node_id,))


def names_the_last_entry_for_what_was_stored_before(
    core: Core, command: Command, blocks: Sequence[bytes]
) -> Applied | None:
    """A batch that is sent again after it was stored is answered with a receipt of the last entry that is applied."""
    before = _applied_before(core, command, blocks)
    return before and replace(before, term=core.state.applied_term, index=core.state.applied_index)


async def commits_offsets_alone(core: Core, command: Command, blocks: Sequence[bytes] = (), **more: Any) -> Applied:
    """A commit of offsets is answered before it is replicated."""
    if not isinstance(command, CommitOffsets):
        return await _propose(core, command, blocks, **more)
    _in_background(_propose(core, command, blocks, **more))
    committed = OffsetsCommitted(command.group, command.offsets)
    return Applied(committed, core.raft.term, core.log.last_index, core.now_ms(), (core.raft.node_id,))


def expires_members_it_never_heard(sessions: Sessions, group: str, member_id: str) -> None:
    """A new leader takes members for gone that have not spoken to it yet: a failover is a rebalance."""
    session = Session(group, member_id)
    if session not in sessions._heard_s:
        sessions._heard_s[session] = -math.inf
        sessions._push(session, -math.inf)


def goes_by_heartbeats_of_long_ago(sessions: Sessions, term: int) -> bool:
    """A node that leads again goes by the heartbeats of when it led before."""
    is_new, sessions._term = term != sessions._term, term
    return is_new


def a_rebalance_skips_to_the_end(groups: Groups, group: Group) -> None:
    """A member begins at the end of each queue it is assigned, whatever was processed of the queue."""
    _rebalance(groups, group)
    for name in group.record.topics:
        topic = groups._topics.get(name)
        if topic is not None:
            groups._set_offsets(group, [(topic, queue, end) for queue, end in enumerate(topic.ends)])


def a_rebalance_keeps_the_generation(groups: Groups, group: Group) -> None:
    """A member that has lost a queue can go on committing its offsets."""
    generation = group.record.generation
    _rebalance(groups, group)
    group.record.generation = max(generation, 1)


def gives_a_queue_to_two(held: Mapping[str, Sequence[TopicQueue]], queues: Sequence[TopicQueue]) -> Any:
    """The first queue is assigned to all members."""
    assigned = assign(held, queues)
    return {member: sorted({*places, *queues[:1]}) for member, places in assigned.items()}


def gives_a_queue_to_nobody(held: Mapping[str, Sequence[TopicQueue]], queues: Sequence[TopicQueue]) -> Any:
    """The last queue is assigned to nobody."""
    return assign(held, queues[:-1])


class CallsTheUnknownRefused(Overloaded):
    """A command that is in the log when leadership is lost is answered as if nothing was stored."""


def says_that_nothing_was_stored(proposed: Proposed, timeout_s: float) -> Overloaded:
    """A request that took too long is answered as if it had still waited for a place in the log."""
    return Overloaded(f"waited {timeout_s} s")


MUTANTS = (
    mutant(6, Swap(TransactionTable, "due_checks", asks_before_the_immunity_is_over)),
    mutant(6, Swap(CheckService, "_hand_out", counts_undelivered_checks)),
    mutant(6, Swap(CheckService, "_hand_out", discards_instead_of_asking)),
    mutant(6, Swap(Transactions, "record_checks", loses_the_check_count_at_a_restart)),
    mutant(6, Swap(Core, "propose", decides_alone)),
    mutant(1, Swap(Core, "_applied_before", names_the_last_entry_for_what_was_stored_before), rare=True),
    mutant(7, Swap(Core, "propose", commits_offsets_alone)),
    mutant(7, Swap(Sessions, "meet", expires_members_it_never_heard)),
    mutant(7, Swap(Sessions, "begin", goes_by_heartbeats_of_long_ago), rare=True),
    mutant(7, Swap(Groups, "_rebalance", a_rebalance_skips_to_the_end)),
    mutant(7, Swap(Groups, "_rebalance", a_rebalance_keeps_the_generation)),
    mutant(7, Swap(store.groups.groups, "assign", gives_a_queue_to_two)),
    mutant(7, Swap(store.groups.groups, "assign", gives_a_queue_to_nobody)),
    mutant(
        11,
        Swap(raft.entries.proposing, "UnknownOutcome", CallsTheUnknownRefused),
        first_seed=77_003,
        only_kinds=("isolate", "halves", "freeze"),
    ),
    mutant(11, Swap(cluster.core.core, "late", says_that_nothing_was_stored), first_seed=77_006),
)
