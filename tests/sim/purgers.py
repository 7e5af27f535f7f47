"""Operators who purge the clients' topics, change their limits in bytes, and raise the feature level; and clients of a
topic that is deleted and made anew, with other numbers of queues, under their hands.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from crc32c import crc32c

from .checkers import Violation
from .checkers.history import History
from .checkers.transaction_model import PLACE_MISSING
from .clients import Answer, Clients, json_request, msgpack_request
from .ledger import Ledger, SentTransaction
from .purge_settings import PurgeSettings
from .wire import Request
from .world import World

TOPIC = "parcels"
"""The topic that is deleted. The models of members and pop consumers know topics that stay."""
GROUP, PRODUCER_GROUP = "parcel-readers", "parcel-senders"
QUEUES_MAX = 4
DELAY_MS_MAX = 800
LIMITS_BYTES = (-1, 1, 500, 3_000, 20_000)
LOG_LIMITS_BYTES = (-1, 20_000, 60_000)
REFUSALS = ("topic_not_found", "queue_not_found", "feature_not_enabled")
"""Refusals that any request may meet: of a topic that is deleted, and of a leader that does not know the feature level
yet, such as one that was frozen while another took its place.
"""
NOT_RAISED = ("change_in_progress", "feature_level_not_known")
RAISE_PAUSE_US = 100_000
CREATE_PAUSE_US = 300_000
ROLL_BACK_PAUSE_US = 500_000


class Purgers:
    """All of them. They do nothing in seeds without PurgeSettings."""

    def __init__(
        self,
        world: World,
        clients: Clients,
        ledger: Ledger,
        history: History,
        queues: Mapping[str, int],
        settings: PurgeSettings | None,
    ) -> None:
        self._world, self._clients, self._ledger, self._history = world, clients, ledger, history
        self._queues, self._settings = queues, settings
        self._random = world.random_of("purgers")
        self._made = 0
        self._undecided: set[str] = set()
        self._acknowledged: set[str] = set()
        """Batches that were acknowledged with an offset."""
        self._raised = False
        self.running = True

    def start(self) -> None:
        if self._settings is None:
            return
        self._create()
        self._act_later(self._settings.pause_us, self._settings.deletes)
        # A new cluster raises itself, if all nodes meet before the first command.
        self._world.after(self._settings.raised_at_us or 0, self._raise_level)

    def heal(self) -> None:
        """Begin nothing new, and decide all transactions, also those whose half message is still on its way."""
        self.running = False
        if self._settings is not None:
            self._roll_back_prepared()

    def _roll_back_prepared(self) -> None:
        for transaction_id in sorted(self._undecided & self._history.transactions.undecided.keys()):
            self._decide(transaction_id, "rollback")
        self._world.after(ROLL_BACK_PAUSE_US, self._roll_back_prepared)

    def unsettled(self) -> str:
        """Describe the work that is not done; empty when all is done."""
        if self._settings is None:
            return ""
        if not self._raised:
            return "the feature level is not raised"
        undecided = sorted(self._undecided & self._history.transactions.undecided.keys())
        return f"{undecided} are undecided" if undecided else ""

    def check_account(self) -> None:
        """Check that every acknowledged batch was stored. The models know why it is gone, if it is."""
        lost = self._acknowledged - self._history.retention.ever.get(TOPIC, set())
        if lost:
            raise Violation("acknowledged_lost", f"of {TOPIC}, {sorted(lost)} were acknowledged and never stored")

    # --- operators -------------------------------------------------------------------------------------------

    def _raise_level(self) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self._raised = True
            elif answer is None or answer.code in NOT_RAISED:
                self._world.after(RAISE_PAUSE_US, self._raise_level)
            else:
                raise Violation("refused", f"raising the feature level was refused: {answer}")

        self._clients.call(json_request("POST", "/v1/cluster/feature-level"), on_answer)

    def _act_later(self, pause_us: int, deletes: int) -> None:
        def act() -> None:
            if self.running:
                acts = (self._purge, self._purge, self._limit, self._send, self._send, self._send, self._prepare)
                rarely = (self._read, self._commit_offset, self._limit_log, *(self._delete,) * deletes)
                self._random.choice((*acts, *acts, *rarely))()
                self._act_later(pause_us, deletes)

        self._world.after(self._random.randint(1, 2 * pause_us), act)

    def _purge(self) -> None:
        topic = self._random.choice((*self._queues, TOPIC))
        queue = self._random.choice((None, self._random.randrange(QUEUES_MAX)))

        def on_answer(answer: Answer | None) -> None:
            for each in self._body(answer, f"purging {topic} {queue}")["queues"]:
                if topic != TOPIC:
                    self._ledger.note_purged((topic, each["queue"]), each["min_offset"])

        body = {} if queue is None else {"queue": queue}
        self._call(json_request("POST", f"/v1/topics/{topic}/purge", body), on_answer)

    def _limit(self) -> None:
        """Change the limit in bytes of a topic that is there."""
        topic, limit = self._random.choice(list(self._queues)), self._random.choice(LIMITS_BYTES)
        if not self._history.retention.exists((topic, 0)):
            return  # it would be created, with another number of queues
        request = json_request("PUT", f"/v1/topics/{topic}", {"retention_bytes": limit})
        self._call(request, lambda answer: self._is_answered(answer, f"limiting {topic}"))

    def _limit_log(self) -> None:
        limit = self._random.choice(LOG_LIMITS_BYTES)
        request = json_request("PUT", "/v1/cluster/settings", {"log_retention_bytes": limit})
        self._call(request, lambda answer: self._is_answered(answer, "limiting the log"))

    def _create(self) -> None:
        """Make the topic, or let it grow; with fewer queues than it has that is refused."""
        body: dict[str, Any] = {"queues": self._random.randint(1, QUEUES_MAX), "type": "any", "retention_ms": -1}
        if self._raised:
            body["retention_bytes"] = self._random.choice(LIMITS_BYTES)

        def on_answer(answer: Answer | None) -> None:
            self._is_answered(answer, "creating", "topic_exists_with_more_queues")
            if self.running and not self._history.retention.exists((TOPIC, 0)):
                self._world.after(CREATE_PAUSE_US, self._create)

        self._call(json_request("PUT", f"/v1/topics/{TOPIC}", body), on_answer)

    def _delete(self) -> None:
        """Delete the topic and make it anew, now and then in one entry."""

        def on_answer(answer: Answer | None) -> None:
            self._is_answered(answer, "deleting")
            self._create()

        self._call(json_request("DELETE", f"/v1/topics/{TOPIC}"), on_answer)
        if self._random.random() < 0.5:
            self._create()

    # --- clients of the topic that is deleted ------------------------------------------------------------------

    def _batch(self) -> dict[str, Any]:
        self._made += 1
        name = f"p{self._made}"
        messages = [[f"{name}:".encode() * self._random.choice((1, 20))] for _ in range(self._random.randint(1, 3))]
        block = msgspec.msgpack.encode(messages)
        queue = self._random.randrange(QUEUES_MAX)
        return {"queue": queue, "batch_id": name, "crc32c": crc32c(block), "block": block}

    def _send(self) -> None:
        """Send one or two batches, some of them delayed. Queues that the topic does not have are refused."""
        batches = [self._batch() for _ in range(self._random.choice((1, 1, 2)))]
        for batch in batches:
            if self._random.random() < 0.2:
                batch["delay_ms"] = self._random.randint(1, DELAY_MS_MAX)

        def on_answer(answer: Answer | None) -> None:
            results = self._body(answer, f"sending to {TOPIC}")["results"]
            self._acknowledged.update(each["batch_id"] for each in results if each.get("offset") is not None)

        self._call(msgpack_request("POST", f"/v1/topics/{TOPIC}/messages", {"batches": batches}), on_answer)

    def _prepare(self) -> None:
        """Prepare a transaction, which may find no topic at its commit, or another one."""
        self._made += 1
        transaction_id = f"parcel-{self._made}"
        sent = self._ledger.transactions[transaction_id] = SentTransaction((), PRODUCER_GROUP)
        self._undecided.add(transaction_id)

        def on_answer(answer: Answer | None) -> None:
            sent.prepared = self._is_answered(answer, "preparing", "transactions_rejected")
            if self.running and self._random.random() < 0.8:
                self._world.after(self._random.randint(1, 600_000), lambda: self._decide(transaction_id, "commit"))

        body = {
            "transaction_id": transaction_id,
            "producer_group": PRODUCER_GROUP,
            "client_id": "p-0",
            "batches": [{"topic": TOPIC, **self._batch()}],
        }
        self._call(msgpack_request("POST", "/v1/transactions", body), on_answer)

    def _decide(self, transaction_id: str, decision: str) -> None:
        sent = self._ledger.transactions[transaction_id]
        sent.asked.add(decision)

        def on_answer(answer: Answer | None) -> None:
            if answer is None:
                return
            if answer.ok or answer.code == "transaction_conflict":
                sent.reborn = transaction_id in self._history.transactions.reborn
                sent.told(transaction_id, answer.body["state"])
            elif answer.code not in (*PLACE_MISSING, "transaction_not_found"):
                raise Violation("refused", f"{decision} of {transaction_id} was refused: {answer}")

        body = {"producer_group": PRODUCER_GROUP, "client_id": "p-0", "source": "producer"}
        self._clients.call(json_request("POST", f"/v1/transactions/{transaction_id}/{decision}", body), on_answer)

    def _read(self) -> None:
        """Read a queue from any node. Only messages that somebody sent there are in it."""
        queue = self._random.randrange(QUEUES_MAX)
        target = f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset=0&max_messages=1000&wait_ms=0"

        def on_answer(answer: Answer | None) -> None:
            body = self._body(answer, f"reading {TOPIC}")
            for offset, message in enumerate(body["messages"], body["min_offset"]):
                batch_id = message["message_id"].rpartition("-")[0]
                if message["offset"] != offset or not message["body"].startswith(f"{batch_id}:"):
                    raise Violation("queue_prefix", f"{TOPIC} {queue} has {message} where {offset} was due")

        self._call(Request("GET", target), on_answer)

    def _commit_offset(self) -> None:
        """Commit for a group without members, wherever the queue ends, or did in an earlier life."""
        place = {"topic": TOPIC, "queue": self._random.randrange(QUEUES_MAX), "offset": self._random.randrange(8)}
        request = json_request("PUT", f"/v1/groups/{GROUP}/offsets", {"offsets": [place]})
        codes = ("offset_moves_back", "offset_out_of_range")
        self._call(request, lambda answer: self._is_answered(answer, "committing", *codes))

    def _body(self, answer: Answer | None, what: str) -> dict[str, Any]:
        """Return the body of an answer; a body of nothing when the request was not carried out."""
        if self._is_answered(answer, what) and answer is not None:
            body: dict[str, Any] = answer.body
            return body
        return {"queues": (), "results": (), "messages": (), "min_offset": 0}

    def _is_answered(self, answer: Answer | None, what: str, *codes: str) -> bool:
        """Return whether the request was carried out. Raises Violation when it was refused for no good reason."""
        if answer is None:
            self._ledger.unknown += 1
            return False
        self._ledger.acknowledged += answer.ok
        self._ledger.refused += not answer.ok
        if not answer.ok and answer.code not in (*REFUSALS, *codes):
            raise Violation("refused", f"{what} was refused: {answer}")
        return answer.ok

    def _call(self, request: Request, on_answer: Any) -> None:
        self._clients.call(request, on_answer)
