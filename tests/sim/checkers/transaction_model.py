"""What transactions must come to, by rules of its own: fed with every applied command and its result, once per index.

The first decision wins; checks are counted as they are recorded, not before the immunity is over, and not more of them
than left a node; nothing is discarded before it was asked as often as configured.
"""

from collections import Counter
from dataclasses import dataclass

from store.command import Decide, Discard, Prepare, RecordChecks
from store.errors import Refused
from store.results import ChecksRecorded, Decided, Discarded, Prepared
from store.state_machine import StateMachine

from .violation import Violation

_STATE_OF = {"commit": "committed", "rollback": "rolled_back"}


@dataclass
class Known:
    """One transaction as the log tells it."""

    producer_group: str
    prepared_at_ms: int
    check_due_ms: int
    state: str = "prepared"
    check_times: int = 0


class TransactionModel:
    def __init__(self) -> None:
        self.check_max = 15
        self.known: dict[str, Known] = {}
        self.undecided: dict[str, None] = {}
        """In the order they were prepared."""
        self.left: Counter[str] = Counter()
        """Checks that left a node, or that a webhook answered, by transaction."""

    def prepare(self, command: Prepare, result: object, clock_ms: int) -> None:
        if not isinstance(result, Prepared):
            return
        transaction_id = command.transaction_id
        known = self.known.get(transaction_id)
        if known is None:
            assert command.check_after_ms is not None, "the API fills it in"
            due_ms = clock_ms + command.check_after_ms
            known = self.known[transaction_id] = Known(command.producer_group, clock_ms, due_ms)
            self.undecided[transaction_id] = None
            if result.duplicate:
                _fail("idempotent_prepare", transaction_id, f"is called a duplicate at its first prepare: {result}")
        elif not result.duplicate:
            _fail("idempotent_prepare", transaction_id, f"was prepared before, and again: {result}")
        if result.state != known.state:
            _fail("first_decision_wins", transaction_id, f"is {known.state}, preparing again says {result.state}")

    def decide(self, command: Decide, result: object) -> None:
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
        wanted = _STATE_OF.get(command.decision, known.state)
        if known.state not in ("prepared", wanted):
            if not isinstance(result, Refused) or result.extra.get("state") != known.state:
                _fail("first_decision_wins", transaction_id, f"is {known.state}, {command.decision} gives {result}")
            return
        if not isinstance(result, Decided) or result.state != wanted:
            _fail("first_decision_wins", transaction_id, f"is {known.state}, {command.decision} gives {result}")
        self._settle(transaction_id, wanted)

    def record(self, command: RecordChecks, result: object, clock_ms: int) -> None:
        prepared = [each for each in dict.fromkeys(command.transaction_ids) if each in self.undecided]
        if not isinstance(result, ChecksRecorded) or list(result.transaction_ids) != prepared:
            _fail("checks_counted", ", ".join(command.transaction_ids), f"of these {prepared} are undecided: {result}")
        for transaction_id in prepared:
            known = self.known[transaction_id]
            known.check_times += 1
            if clock_ms < known.check_due_ms:
                _fail("immunity", transaction_id, f"is asked about at {clock_ms}, due at {known.check_due_ms}")
            if known.check_times > self.left[transaction_id]:
                _fail(
                    "checks_counted",
                    transaction_id,
                    f"has {known.check_times} checks recorded, {self.left[transaction_id]} left any node",
                )

    def discard(self, command: Discard, result: object) -> None:
        prepared = [each for each in dict.fromkeys(command.transaction_ids) if each in self.undecided]
        if not isinstance(result, Discarded) or list(result.transaction_ids) != prepared:
            _fail("discarded", ", ".join(command.transaction_ids), f"of these {prepared} are undecided: {result}")
        for transaction_id in prepared:
            known = self.known[transaction_id]
            if known.check_times < self.check_max:
                _fail("discarded", transaction_id, f"after {known.check_times} checks, not {self.check_max}")
            self._settle(transaction_id, "discarded")

    def check_replica(self, node_id: int, machine: StateMachine) -> None:
        """The node's state is what the log says, the timeline included."""
        for transaction_id, known in self.known.items():
            view = machine.transaction(transaction_id)
            found = (view.state, view.check_times) if view is not None else None
            if found != (known.state, known.check_times):
                _fail("checks_counted", transaction_id, f"is {known} by the log; node {node_id} has {found}")
            timeline = machine.timeline(transaction_id) or []
            checks = sum(event.event == "check" for event in timeline)
            if checks != known.check_times:
                _fail("checks_counted", transaction_id, f"was asked about {known.check_times} times, not {timeline}")

    def _settle(self, transaction_id: str, state: str) -> None:
        self.known[transaction_id].state = state
        if state != "prepared":
            self.undecided.pop(transaction_id, None)


def _fail(invariant: str, transaction_id: str, found: str) -> None:
    raise Violation(invariant, f"transaction {transaction_id} {found}")
