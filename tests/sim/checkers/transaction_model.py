"""A model of transactions with rules of its own. It is fed with every applied command and its result, once per index.

The first decision wins. Checks are counted when they are recorded, not before the immunity is over, and no more of them
than left a node. No transaction is discarded before its producers were asked as often as configured. Only an operator,
by name and with a reason, gets a transaction out of `discarded`; the timeline tells of it. No new transaction is
accepted while transactions are switched off. A decided or discarded transaction is forgotten when its time is over by
the replicated clock, the oldest first, and not before; an undecided transaction never is. A transaction that is
prepared with the same id after that is another one.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from store.commands.cluster import PutSettings, SettingsPut
from store.commands.retention import Expired, ExpireMessages
from store.commands.transactions import (
    ChecksRecorded,
    Decide,
    Decided,
    Discard,
    Discarded,
    Prepare,
    Prepared,
    RecordChecks,
    Resumed,
    ResumeTransaction,
)
from store.errors import QUEUE_NOT_FOUND, TOPIC_NOT_FOUND, TRANSACTIONS_REJECTED, Refused
from store.limits import TRANSACTION_RETENTION_MS
from store.state.machine import StateMachine

from .violation import Violation

PLACE_MISSING = (TOPIC_NOT_FOUND, QUEUE_NOT_FOUND)
"""Codes of a commit whose topic was deleted, or made anew with fewer queues."""
_STATE_OF = {"commit": "committed", "rollback": "rolled_back"}


Audit = tuple[str, str | None, str | None, bool]
"""Event, operator, reason, and whether it was forced."""


@dataclass
class Known:
    """The state of one transaction according to the log."""

    producer_group: str
    prepared_at_ms: int
    check_due_ms: int
    places: tuple[tuple[str, int], ...]
    """Topic and queue of each of its batches."""
    state: str = "prepared"
    decided_at_ms: int | None = None
    """Time of the decision or the discard; None while the transaction is undecided."""
    check_times: int = 0
    """Number of checks since the transaction was prepared, or resumed last."""
    checks: int = 0
    """Number of all checks."""
    discards: int = 0
    resumed_by: tuple[str, str] | None = None
    """The operator and the reason of the last time."""
    audit: list[Audit] = field(default_factory=list)
    """The actions of operators, in order."""


class TransactionModel:
    def __init__(self) -> None:
        self.check_max = 15
        self.known: dict[str, Known] = {}
        self.undecided: dict[str, None] = {}
        """Undecided transactions in the order in which they were prepared."""
        self.left: Counter[str] = Counter()
        """Checks that left a node, or that a webhook answered, by transaction."""
        self.rejecting = False
        self.exists: Callable[[tuple[str, int]], bool] = lambda place: True
        """Returns whether a topic has a queue."""
        self.retention_ms = TRANSACTION_RETENTION_MS
        self.forgotten: dict[str, str] = {}
        """Forgotten transactions with their last states."""
        self.reborn: set[str] = set()
        """Prepared again since: what is said of them is about either."""
        self._committed: set[str] = set()
        self._decisions: set[tuple[int, str]] = set()
        """Times and ids of all decisions, also of decisions that were undone since."""
        self._gone_now: list[str] = []

    def state_of(self, transaction_id: str) -> str | None:
        """Return the transaction's state, or its last state before it was forgotten."""
        known = self.known.get(transaction_id)
        return known.state if known is not None else self.forgotten.get(transaction_id)

    def was_committed(self, transaction_id: str) -> bool:
        """Return whether a transaction with this id was committed, even if it is forgotten since."""
        return transaction_id in self._committed

    def put_settings(self, command: PutSettings, result: object) -> None:
        if command.reject_transactions is not None:
            self.rejecting = command.reject_transactions
        if not isinstance(result, SettingsPut) or result.settings.reject_transactions != self.rejecting:
            raise Violation("settings", f"transactions are rejected: {self.rejecting}, by the log; it gives {result}")

    def prepare(self, command: Prepare, result: object, clock_ms: int) -> None:
        transaction_id = command.transaction_id
        known = self.known.get(transaction_id)
        rejected = isinstance(result, Refused) and result.code == TRANSACTIONS_REJECTED
        if rejected != (self.rejecting and known is None):
            _fail(
                "settings", transaction_id, f"known: {known}; switched off: {self.rejecting}; preparing gives {result}"
            )
        if not isinstance(result, Prepared):
            return
        if known is None:
            assert command.check_after_ms is not None, "the API fills it in"
            due_ms = clock_ms + command.check_after_ms
            places = tuple((header.topic, header.queue) for header in command.batches)
            known = self.known[transaction_id] = Known(command.producer_group, clock_ms, due_ms, places)
            self.undecided[transaction_id] = None
            if transaction_id in self.forgotten:
                self.reborn.add(transaction_id)
            if result.duplicate:
                _fail("idempotent_prepare", transaction_id, f"is called a duplicate at its first prepare: {result}")
        elif not result.duplicate:
            _fail("idempotent_prepare", transaction_id, f"was prepared before, and again: {result}")
        if result.state != known.state:
            _fail("first_decision_wins", transaction_id, f"is {known.state}, preparing again says {result.state}")

    def decide(self, command: Decide, result: object, clock_ms: int) -> None:
        transaction_id = command.transaction_id
        known = self.known.get(transaction_id)
        if known is None:
            if not isinstance(result, Refused):
                _fail("phantom", transaction_id, f"was never prepared, and {command.decision} is answered {result}")
            return
        if command.producer_group not in (None, known.producer_group):
            if not isinstance(result, Refused):
                _fail("first_decision_wins", transaction_id, f"was decided by a stranger, {command.producer_group}")
            return
        audited = command.source == "operator" and command.operator and command.reason
        if command.force and not audited and not isinstance(result, Refused):
            _fail("audit", transaction_id, f"was forced by nobody, or for no reason: {command}")
        wanted = _STATE_OF.get(command.decision, known.state)
        decidable = ("prepared", "discarded") if command.force else ("prepared",)
        if known.state not in (*decidable, wanted):
            if not isinstance(result, Refused) or result.extra.get("state") != known.state:
                _fail("first_decision_wins", transaction_id, f"is {known.state}, {command.decision} gives {result}")
            return
        if wanted == "committed" and known.state in decidable and not all(map(self.exists, known.places)):
            if not isinstance(result, Refused) or result.code not in PLACE_MISSING:
                _fail("transaction_visibility", transaction_id, f"goes to {known.places}, not all are there: {result}")
            return
        if not isinstance(result, Decided) or result.state != wanted:
            _fail("first_decision_wins", transaction_id, f"is {known.state}, {command.decision} gives {result}")
        if known.state in decidable and known.state != wanted and command.source == "operator":
            known.audit.append((wanted, command.operator or None, command.reason or None, command.force))
        self._settle(transaction_id, wanted, clock_ms)

    def resume(self, command: ResumeTransaction, result: object, clock_ms: int) -> None:
        transaction_id, by = command.transaction_id, (command.operator, command.reason)
        known = self.known.get(transaction_id)
        if known is None or not all(by):
            if not isinstance(result, Refused):
                _fail("audit", transaction_id, f"is {known}, and resumed by {by}: {result}")
            return
        if known.state != "discarded":
            again = known.state == "prepared" and known.resumed_by == by
            if isinstance(result, Resumed) != again:
                _fail("resumed", transaction_id, f"is {known}, resumed by {by}: {result}")
            return
        due_ms = clock_ms + command.next_check_after_ms
        if not isinstance(result, Resumed) or (result.state, result.next_check_at_ms) != ("prepared", due_ms):
            _fail("resumed", transaction_id, f"was discarded; resumed by {by}, due at {due_ms}: {result}")
        known.state, known.check_times, known.resumed_by, known.decided_at_ms = "prepared", 0, by, None
        known.audit.append(("resumed", *by, False))
        self.undecided[transaction_id] = None

    def record(self, command: RecordChecks, result: object, clock_ms: int) -> None:
        prepared = [each for each in dict.fromkeys(command.transaction_ids) if each in self.undecided]
        if not isinstance(result, ChecksRecorded) or list(result.transaction_ids) != prepared:
            _fail("checks_counted", ", ".join(command.transaction_ids), f"of these {prepared} are undecided: {result}")
        for transaction_id in prepared:
            known = self.known[transaction_id]
            known.check_times += 1
            known.checks += 1
            # A check of the one that was forgotten may have been on its way.
            if clock_ms < known.check_due_ms and transaction_id not in self.reborn:
                _fail("immunity", transaction_id, f"is asked about at {clock_ms}, due at {known.check_due_ms}")
            if known.checks > self.left[transaction_id]:
                _fail(
                    "checks_counted",
                    transaction_id,
                    f"has {known.checks} checks recorded, {self.left[transaction_id]} left any node",
                )

    def discard(self, command: Discard, result: object, clock_ms: int) -> None:
        seen = dict(zip(command.transaction_ids, command.check_times, strict=False))
        prepared = [
            each
            for each in dict.fromkeys(command.transaction_ids)
            if each in self.undecided and self.known[each].check_times >= seen.get(each, 0)
        ]
        if not isinstance(result, Discarded) or list(result.transaction_ids) != prepared:
            _fail("discarded", ", ".join(command.transaction_ids), f"of these {prepared} are undecided: {result}")
        for transaction_id in prepared:
            known = self.known[transaction_id]
            if known.check_times < self.check_max:
                _fail("discarded", transaction_id, f"after {known.check_times} checks, not {self.check_max}")
            known.discards += 1
            self._settle(transaction_id, "discarded", clock_ms)

    def expire(self, command: ExpireMessages, result: object, clock_ms: int) -> None:
        assert isinstance(result, Expired)
        due = sorted(each for each in self._decisions if each[0] + self.retention_ms <= clock_ms)[: command.limit]
        if result.transactions != len(due):
            raise Violation("forgotten", f"at {clock_ms} these are over: {due}; it is said: {result}")
        for decided_at_ms, transaction_id in due:
            self._decisions.remove((decided_at_ms, transaction_id))
            known = self.known.get(transaction_id)
            if known is not None and known.decided_at_ms == decided_at_ms:
                self.forgotten[transaction_id] = self.known.pop(transaction_id).state
                self._gone_now.append(transaction_id)

    def check_gone(self, machine: StateMachine) -> None:
        """Check, after an entry, that the transactions which it forgot are gone."""
        for transaction_id in self._gone_now:
            found = machine.transaction(transaction_id)
            if transaction_id not in self.known and found is not None:
                _fail("forgotten", transaction_id, f"its time is over, and there is {found}")
        self._gone_now.clear()

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """Check that the node's state, the timeline included, is as the log says."""
        for transaction_id, known in self.known.items():
            view = machine.transaction(transaction_id)
            found = (view.state, view.check_times) if view is not None else None
            if found != (known.state, known.check_times):
                _fail("checks_counted", transaction_id, f"is {known} by the log; node {node_id} has {found}")
            timeline = machine.timeline(transaction_id) or []
            checks = sum(event.event == "check" for event in timeline)
            if checks != known.checks:
                _fail("checks_counted", transaction_id, f"was asked about {known.checks} times, not {timeline}")
            audit = [
                (event.event, event.operator, event.reason, event.forced)
                for event in timeline
                if event.source == "operator" and event.event != "answer"
            ]
            if audit != known.audit:
                _fail("audit", transaction_id, f"was stepped into as {known.audit}; node {node_id} has {timeline}")
            if sum(event.event == "discarded" for event in timeline) != known.discards:
                _fail("audit", transaction_id, f"was discarded {known.discards} times; node {node_id} has {timeline}")

    def _settle(self, transaction_id: str, state: str, clock_ms: int) -> None:
        known = self.known[transaction_id]
        if state not in ("prepared", known.state):
            known.decided_at_ms = clock_ms
            self._decisions.add((clock_ms, transaction_id))
            self.undecided.pop(transaction_id, None)
        if state == "committed":
            self._committed.add(transaction_id)
        known.state = state


def _fail(invariant: str, transaction_id: str, found: str) -> None:
    raise Violation(invariant, f"transaction {transaction_id} {found}")
