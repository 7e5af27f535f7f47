"""The first decision wins; a committed transaction is delivered, a rolled-back or undecided one never is."""

from collections.abc import Collection, Mapping

from store.state.machine import StateMachine

from .violation import Violation

_DECIDED_BY = {"committed": "commit", "rolled_back": "rollback"}


def check_one_outcome(transaction_id: str, outcomes: Collection[str]) -> None:
    """Check that all final states which answers have named, to anybody, are one; `outcomes` are these states."""
    if len(outcomes) > 1:
        raise Violation("first_decision_wins", f"transaction {transaction_id} was said to be {sorted(outcomes)}")


def check_transaction(
    machine: StateMachine,
    transaction_id: str,
    batch_ids: Collection[str],
    *,
    prepared: bool,
    asked: Collection[str],
    outcomes: Collection[str],
    places: Mapping[str, object],
    forgotten: str | None = None,
) -> None:
    """Compare one node's final state with the promises to the producer, the decisions asked for, and the visible
    messages.

    `forgotten` is the last state of a transaction whose time was over.
    """
    view = machine.transaction(transaction_id)
    state = view.state if view is not None else forgotten
    if prepared and state is None:
        raise Violation("acknowledged_lost", f"the prepared transaction {transaction_id} is gone")
    check_one_outcome(transaction_id, outcomes)
    for outcome in outcomes:
        if state != outcome:
            raise Violation("first_decision_wins", f"transaction {transaction_id}: answered {outcome}, now {state}")
    if state in _DECIDED_BY and _DECIDED_BY[state] not in asked:
        raise Violation("phantom", f"transaction {transaction_id} is {state}; nobody asked for that")
    check_delivered_whole(batch_ids, places, committed=state == "committed")


def check_delivered_whole(batch_ids: Collection[str], places: Mapping[str, object], *, committed: bool) -> None:
    """Check that all batches of a committed transaction are delivered, and none of any other."""
    visible = [batch_id for batch_id in batch_ids if batch_id in places]
    if visible != (list(batch_ids) if committed else []):
        raise Violation(
            "transaction_visibility",
            f"a transaction is committed: {committed}; of its batches {list(batch_ids)}, {visible} are delivered",
        )
