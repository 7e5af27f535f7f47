"""Producers of transactions: they decide, die before they do, answer checks late, differently, or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cluster.transactions.webhooks import WebhookReply

from .batches import Batches
from .checkers import Violation
from .checkers.transaction_model import TransactionModel
from .clients import Answer, Clients, decode_body, json_request, msgpack_request
from .ledger import Ledger, SentTransaction
from .operators import Operators
from .service_settings import ServiceSettings
from .settings import WEBHOOKS_URL
from .together import Item, Together
from .wire import Reply, Request
from .world import EPOCH_MS, World

CLIENTS_PER_GROUP = 2
POLL_WAIT_MS = 300
POLL_TIMEOUT_US = 700_000
POLL_PAUSE_US_MAX = 200_000
DEATH_PROBABILITY = 0.04  # per poll
DEAD_US_MAX = 1_200_000
DECIDE_US_MAX = 300_000
REMEMBERS_PROBABILITY, REMEMBERS_US_MAX = 0.3, 5_000_000  # it may have been given up by then
SWITCH_US_MAX = 5_000_000
OWN_IMMUNITY_PROBABILITY = 0.2
STRANGER_PROBABILITY = 0.03

# How a producer goes about its transaction.
COMMITS, ROLLS_BACK, RIVALS, DIES, CHANGES_ITS_MIND, LIES, FORGETS = range(7)
_WAYS = (COMMITS, COMMITS, COMMITS, ROLLS_BACK, RIVALS, DIES, DIES, CHANGES_ITS_MIND, LIES, FORGETS)
_POLLERS = {"poll": CLIENTS_PER_GROUP, "webhook": 1, "nobody": 0}
_DECISIONS = ("commit", "rollback", "unknown")


@dataclass
class _Story:
    """The course of one transaction, as its producer has it in mind."""

    way: int
    truth: str
    sent: SentTransaction
    client_id: str


@dataclass
class _Client:
    """One process of a producer group."""

    group: str
    client_id: str
    polls: int = field(default=0)


class Producers:
    """Groups of producers. Each group is asked by long polls or by a webhook, and sometimes changes between them."""

    def __init__(
        self,
        world: World,
        clients: Clients,
        batches: Batches,
        ledger: Ledger,
        model: TransactionModel,
        topics: Mapping[str, int],
        settings: ServiceSettings,
    ) -> None:
        self._world, self._clients, self._batches, self._ledger = world, clients, batches, ledger
        self._model, self._topics, self._settings = model, topics, settings
        self._random = world.random_of("producers")
        self._stories: dict[str, _Story] = {}
        self._running = True
        self._groups = {"pay": "poll", "stock": "webhook"} if settings.checks else {"pay": "nobody"}
        self._halves = Together(
            world,
            clients,
            "/v1/transactions/batch",
            "transactions",
            lambda half: msgpack_request("POST", "/v1/transactions", half),
        )
        self._decisions = Together(world, clients, "/v1/transactions/decisions", "decisions", _decision_request)
        self.operators = Operators(world, clients, ledger, model, self._decisions)
        self.healed = False
        clients.network.webhook = self._on_webhook
        clients.network.on_webhook_answered = self._on_webhook_answered

    def start(self) -> None:
        for group, way in self._groups.items():
            if way == "webhook":
                self._register(group, f"{WEBHOOKS_URL}{group}")
                self._switch_later(group, to_webhook=False)
            for number in range(_POLLERS[way]):
                self._poll_later(_Client(group, f"{group}-{number}"))
        self.operators.start()

    def heal(self) -> None:
        """Answer every check from now on, and let no operator step in."""
        self.healed = True
        self.operators.heal()

    def stop(self) -> None:
        self._running = False

    def unsettled(self) -> str:
        """Describe the work that is not done; empty when all is done. No transaction stays undecided where checks are
        answered, or given up in the end.
        """
        if self._halves.waits or self._decisions.waits:
            return "requests are about to be sent"
        undecided = self._model.undecided if self._settings.checks else ()
        return f"{', '.join(undecided)} stay undecided" if undecided else ""

    # --- transactions ----------------------------------------------------------------------------------------

    def transact(self) -> None:
        random = self._random
        transaction_id, group = self._batches.new_id("t"), random.choice(list(self._groups))
        topics = [random.choice(list(self._topics)) for _ in range(random.choice((1, 2, 2)))]
        batches = [
            {"topic": topic, **self._batches.make(topic, self._topics[topic], transaction_id)} for topic in topics
        ]
        check_after_ms = random.randint(0, 1_000) if random.random() < OWN_IMMUNITY_PROBABILITY else None
        sent = SentTransaction(tuple((batch["topic"], batch["batch_id"]) for batch in batches), group)
        client_id = f"{group}-{random.randrange(CLIENTS_PER_GROUP)}"
        story = _Story(random.choice(_WAYS), random.choice(("commit", "rollback")), sent, client_id)
        self._ledger.transactions[transaction_id], self._stories[transaction_id] = sent, story
        body: dict[str, Any] = {
            "transaction_id": transaction_id,
            "producer_group": group,
            "client_id": client_id,
            "batches": batches,
        }
        if check_after_ms is not None:
            body["check_after_ms"] = check_after_ms

        def on_prepared(answer: Answer | None) -> None:
            if answer is not None and not answer.ok:
                if answer.code == "transactions_rejected" and self.operators.switched:
                    return
                raise Violation("refused", f"preparing {transaction_id} was refused: {answer}")
            sent.prepared = answer is not None
            self._ledger.acknowledged += sent.prepared
            self._go_on(transaction_id, story)

        self._halves.call(body, on_prepared)

    def _go_on(self, transaction_id: str, story: _Story) -> None:
        decide = {COMMITS: ("commit",), ROLLS_BACK: ("rollback",), DIES: (), LIES: ("unknown",), FORGETS: ()}
        first = story.truth
        second = "rollback" if first == "commit" else "commit"
        if story.way == RIVALS:
            self._decide(transaction_id, story, first)
            self._decide(transaction_id, story, second)
        elif story.way == CHANGES_ITS_MIND:
            self._decide_later(transaction_id, story, first, 0)
            self._decide_later(transaction_id, story, second, 2 * DECIDE_US_MAX)
        elif story.way == FORGETS and self._random.random() < REMEMBERS_PROBABILITY:
            self._decide_later(transaction_id, story, first, self._random.randint(0, REMEMBERS_US_MAX))
        else:
            for decision in decide[story.way]:
                story.truth = decision
                self._decide_later(transaction_id, story, decision, 0)

    def _decide_later(self, transaction_id: str, story: _Story, decision: str, after_us: int) -> None:
        delay_us = after_us + self._random.randint(0, DECIDE_US_MAX)
        self._world.after(delay_us, lambda: self._decide(transaction_id, story, decision))

    def _decide(self, transaction_id: str, story: _Story, decision: str, source: str = "producer") -> None:
        if not self._running:
            return
        sent = story.sent
        stranger = self._random.random() < STRANGER_PROBABILITY
        if not stranger:
            sent.asked.add(decision)

        def on_decided(answer: Answer | None) -> None:
            if answer is None:
                self._ledger.unknown += 1
                return
            self._ledger.acknowledged += answer.ok
            self._ledger.refused += not answer.ok
            if answer.ok and stranger:
                raise Violation("first_decision_wins", f"a stranger decides {transaction_id}: {answer}")
            if answer.ok or answer.code == "transaction_conflict":
                sent.reborn = transaction_id in self._model.reborn
                sent.told(transaction_id, answer.body["state"])
            elif answer.code == "transaction_not_found":
                if sent.prepared and transaction_id not in self._model.forgotten:
                    raise Violation("acknowledged_lost", f"{transaction_id} was prepared: {answer}")
            elif answer.code != "producer_group_mismatch" or not stranger:
                raise Violation("refused", f"{decision} of {transaction_id} was refused: {answer}")

        group = "strangers" if stranger else sent.producer_group
        told = {"transaction_id": transaction_id, "decision": decision}
        who = {"producer_group": group, "client_id": story.client_id, "source": source}
        self._decisions.call({**told, **who}, on_decided)

    # --- checks ----------------------------------------------------------------------------------------------

    def _poll_later(self, client: _Client) -> None:
        random = self._random
        dies = not self.healed and random.random() < DEATH_PROBABILITY
        delay_us = random.randint(0, DEAD_US_MAX if dies else POLL_PAUSE_US_MAX)
        self._world.after(delay_us, lambda: self._poll(client))

    def _poll(self, client: _Client) -> None:
        if not self._running:
            return
        client.polls += 1
        wait_ms = self._random.choice((0, POLL_WAIT_MS, POLL_WAIT_MS, POLL_WAIT_MS))
        target = f"/v1/producer-groups/{client.group}/checks?wait_ms={wait_ms}&client_id={client.client_id}"

        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                for check in answer.body["checks"]:
                    self._answer_check(check, client.client_id)
            self._poll_later(client)

        request = json_request("GET", f"{target}&max={self._random.choice((1, 4, 32))}")
        request = request._replace(on_written=self._on_checks_written, on_left=self._on_checks_left)
        self._clients.try_once(request, on_answer, timeout_us=POLL_TIMEOUT_US)

    def _on_webhook_answered(self, body: bytes) -> None:
        check = msgspec.json.decode(body)
        self._model.left[check["transaction_id"]] += 1
        self._on_check_left(check)

    def _on_checks_written(self, reply: Reply) -> None:
        """Record checks that a node has written, which may count them from now on."""
        if reply.status == 200:
            self._model.left.update(check["transaction_id"] for check in decode_body(reply)["checks"])

    def _on_checks_left(self, reply: Reply) -> None:
        """Compare checks that have left a node with what is known of their transactions."""
        if reply.status == 200:
            for check in decode_body(reply)["checks"]:
                self._on_check_left(check)

    def _on_check_left(self, check: dict[str, Any]) -> None:
        transaction_id = check["transaction_id"]
        sent, known = self._ledger.transactions[transaction_id], self._model.known.get(transaction_id)
        if known is None:
            if transaction_id not in self._model.forgotten:
                raise Violation("checks_counted", f"{transaction_id} is asked about, and was never prepared")
            return
        if check["check_times"] > known.checks + 1:
            raise Violation("checks_counted", f"{check['check_times']} checks of {transaction_id}, by the log {known}")
        self._batches.check_asked(check, sent.batches)
        if not known.checks and transaction_id not in self._model.reborn and self._batches.clocks_are_true():
            # Not by its age: an immunity that counts from a replicated clock that was behind is shorter by as much.
            true_ms = EPOCH_MS + self._world.now_us // 1000 + 1
            if true_ms < known.check_due_ms:
                raise Violation(
                    "immunity", f"{transaction_id} is asked about at {true_ms} ms, due at {known.check_due_ms}: {sent}"
                )

    def _answer_check(self, check: dict[str, Any], client_id: str) -> None:
        transaction_id = check["transaction_id"]
        story = self._stories[transaction_id]
        decision = self._decision(story)
        if decision is not None:
            self._decide(transaction_id, story, decision, "check")

    def _decision(self, story: _Story) -> str | None:
        """Return the answer of a process of the group to a check; None when it says nothing."""
        random = self._random
        if story.way == FORGETS:
            return random.choice((None, "unknown"))
        if story.way == LIES:
            return random.choice((*_DECISIONS, None))
        return random.choice((story.truth, story.truth, story.truth, "unknown", None))

    def _register(self, group: str, url: str | None) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is None and self._running:
                self._register(group, url)

        self._clients.call(json_request("PUT", f"/v1/producer-groups/{group}", {"check_url": url}), on_answer)

    def _switch_later(self, group: str, *, to_webhook: bool) -> None:
        def switch() -> None:
            if self._running and not self.healed:
                self._register(group, f"{WEBHOOKS_URL}{group}" if to_webhook else None)
                self._switch_later(group, to_webhook=not to_webhook)

        self._world.after(self._random.randint(1, SWITCH_US_MAX), switch)

    def _on_webhook(self, url: str, body: bytes) -> WebhookReply | None:
        """Let the webhook answer a check, fail, talk nonsense or hang."""
        check = msgspec.json.decode(body)
        story = self._stories[check["transaction_id"]]
        fate = self._random.random() if not self.healed else 1.0
        if fate < 0.1:
            return None
        if fate < 0.25:
            return WebhookReply(self._random.choice((302, 404, 500, 503)), b"")
        decision = self._decision(story)
        if decision is None:
            return WebhookReply(200, b"I have seen it")
        story.sent.asked.add(decision)
        return WebhookReply(200, msgspec.json.encode({"decision": decision}))


def _decision_request(item: Item) -> Request:
    how = {name: value for name, value in item.items() if name not in ("transaction_id", "decision")}
    return json_request("POST", f"/v1/transactions/{item['transaction_id']}/{item['decision']}", how)
