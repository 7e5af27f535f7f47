"""Checks the broker's outcome of every transaction against the application's database."""

from collections.abc import Callable, Mapping

from tests.chaos.message import sequence_of
from tests.chaos.violations import Kind, Violations
from tests.chaos.workloads.transactions import MESSAGES, Database, Decided, Told, describe


def judge_transactions(database: Database, states: Mapping[str, str], violations: Violations) -> None:
    """Check `states`, the broker's state of each transaction id after it has had the time to send all check-backs."""
    for number, transaction_id in database.ids():
        state = states.get(transaction_id)
        told, decided = Told(database.told[number]), Decided(database.decided[number])
        verdict = _verdict(state, told, decided, database.abandoned)
        if verdict is not None:
            violations.add(verdict[0], f"{describe(database, number)}: the broker has it {state}: {verdict[1]}")


def unresolved(database: Database, states: Mapping[str, str]) -> int:
    """Return how many open transactions have a producer that can answer for them."""
    if database.abandoned:
        return 0
    return sum(states.get(transaction_id) == "prepared" for _, transaction_id in database.ids())


def committed_by(database: Database, states: Mapping[str, str]) -> Callable[[int], bool]:
    """Return a function that tells whether a number belongs to a transaction that the broker has committed."""
    committed = bytearray(states.get(transaction_id) == "committed" for _, transaction_id in database.ids())
    return lambda number: bool(committed[sequence_of(number) // MESSAGES])


def _verdict(state: str | None, told: Told, decided: Decided, abandoned: bool) -> tuple[Kind, str] | None:
    if state is None:
        gone = told >= Told.PREPARED or decided is Decided.COMMIT
        return (Kind.LOST, "its half message was acknowledged") if gone else None
    if told is Told.REFUSED:
        return Kind.FAILED_BUT_STORED, "its half message was refused for certain"
    if state == "committed":
        return None if decided is Decided.COMMIT else (Kind.TRANSACTION, "nobody decided to commit it")
    if decided is Decided.COMMIT and state != "prepared":
        return Kind.TRANSACTION, "the application committed it"
    if told is Told.COMMITTED:
        return Kind.TRANSACTION, "its commit was acknowledged"
    if told is Told.ROLLED_BACK and state != "rolled_back":
        return Kind.TRANSACTION, "its rollback was acknowledged"
    if state == "prepared" and not abandoned:
        return Kind.UNRESOLVED, "the checks did not finish it"
    return None
