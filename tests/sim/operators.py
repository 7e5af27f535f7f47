"""Operators who resume discarded and other transactions, force decisions, and switch transactions off for a while."""

from typing import Any

from .checkers import Violation
from .checkers.transaction_model import PLACE_MISSING, TransactionModel
from .clients import Answer, Clients, json_request
from .ledger import Ledger
from .together import Item, Together
from .world import World

PAUSE_US_MAX = 300_000
DISCARDED_PROBABILITY, UNDECIDED_PROBABILITY = 0.8, 0.5
SWITCH_PROBABILITY, OFF_US_MAX = 0.02, 400_000
NAMES, REASONS = ("ann", "bob"), ("by phone", "shop is back")
SETTINGS = "/v1/cluster/settings"


class Operators:
    """Operators of transactions. `decisions` carries their forced decisions, beside those of producers and sometimes in
    one request with them.
    """

    def __init__(
        self, world: World, clients: Clients, ledger: Ledger, model: TransactionModel, decisions: Together
    ) -> None:
        self._world, self._clients, self._ledger, self._model = world, clients, ledger, model
        self._decisions = decisions
        self._random = world.random_of("operators")
        self._running = True
        self.switched = False
        """True if somebody may have been refused because of the switch."""

    def start(self) -> None:
        self._act_later()

    def heal(self) -> None:
        """Stop the operators and leave transactions switched on."""
        self._running = False
        if self.switched:
            self._switch(False)

    def _act_later(self) -> None:
        def act() -> None:
            if self._running:
                self._act()
                self._act_later()

        self._world.after(self._random.randint(1, PAUSE_US_MAX), act)

    def _act(self) -> None:
        if self._random.random() < SWITCH_PROBABILITY:
            self._switch(True)
            self._world.after(self._random.randint(1, OFF_US_MAX), lambda: self._switch(False))
            return
        transaction_id = self._choose()
        if transaction_id is not None:
            actions = (self._resume, self._resume, self._resume, self._force, self._force, self._decide)
            self._random.choice(actions)(transaction_id)

    def _choose(self) -> str | None:
        """Return a discarded transaction, an undecided one, or any."""
        known = self._model.known
        discarded = [each for each, of in known.items() if of.state == "discarded"]
        if discarded and self._random.random() < DISCARDED_PROBABILITY:
            return self._random.choice(discarded)
        if self._model.undecided and self._random.random() < UNDECIDED_PROBABILITY:
            return self._random.choice(list(self._model.undecided))
        return self._random.choice(list(self._ledger.transactions)) if self._ledger.transactions else None

    def _audit(self) -> dict[str, str]:
        return {"operator": self._random.choice(NAMES), "reason": self._random.choice(REASONS)}

    def _resume(self, transaction_id: str) -> None:
        sent = self._ledger.transactions[transaction_id]
        sent.operated, prepared = True, sent.prepared
        target = f"/v1/transactions/{transaction_id}/resume"
        self._clients.call(
            json_request("POST", target, self._audit()),
            lambda answer: self._on_answer("resume", transaction_id, prepared, answer),
        )

    def _force(self, transaction_id: str) -> None:
        self._ask(transaction_id, {"force": True, **self._audit()})

    def _decide(self, transaction_id: str) -> None:
        """Decide without force: a discarded transaction stays discarded."""
        self._ask(transaction_id, self._random.choice(({}, self._audit())))

    def _ask(self, transaction_id: str, how: dict[str, Any]) -> None:
        decision = self._random.choice(("commit", "rollback"))
        sent = self._ledger.transactions[transaction_id]
        sent.operated = sent.operated or "force" in how
        sent.asked.add(decision)
        prepared = sent.prepared
        item: Item = {"transaction_id": transaction_id, "decision": decision, "source": "operator", **how}
        self._decisions.call(item, lambda answer: self._on_answer(decision, transaction_id, prepared, answer))

    def _on_answer(self, what: str, transaction_id: str, prepared: bool, answer: Answer | None) -> None:
        """Check the answer to a decision. `prepared` says whether the transaction was known to be prepared when
        asked.
        """
        if answer is None:
            self._ledger.unknown += 1
            return
        self._ledger.acknowledged += answer.ok
        self._ledger.refused += not answer.ok
        sent = self._ledger.transactions[transaction_id]
        if answer.ok or answer.code == "transaction_conflict":
            sent.reborn = transaction_id in self._model.reborn
            sent.told(transaction_id, answer.body["state"])
        elif answer.code in PLACE_MISSING and not sent.batches:
            return  # of a topic that is deleted and made anew
        elif answer.code != "transaction_not_found":
            raise Violation("refused", f"{what} of {transaction_id} by an operator was refused: {answer}")
        elif prepared and transaction_id not in self._model.forgotten:
            raise Violation("acknowledged_lost", f"{transaction_id} was prepared: {answer}")

    def _switch(self, reject: bool) -> None:
        self.switched = True

        def on_answer(answer: Answer | None) -> None:
            if answer is None and not reject:
                self._switch(False)

        self._clients.call(json_request("PUT", SETTINGS, {"reject_transactions": reject}), on_answer)
