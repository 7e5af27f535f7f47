"""Clients of a topic of delayed messages, who take some of them back: in time, too late, or twice."""

from typing import Any

import msgspec
from crc32c import crc32c

from .checkers import Violation
from .checkers.history import History
from .clients import Answer, Clients, decode_body, json_request, msgpack_request
from .ledger import Ledger
from .wire import Reply, Request
from .world import EPOCH_MS, World

TOPIC, QUEUES = "letters", 2
DELAY_MS_MAX = 1_500
MESSAGES_MAX = 3
PAUSE_US_MAX = 120_000
READ_TIMEOUT_US = 800_000
RECENT = 12


class Delayers:
    """All of them. They do nothing in seeds in which nobody takes messages back."""

    def __init__(
        self, world: World, clients: Clients, ledger: Ledger, history: History, *, are_there: bool = False
    ) -> None:
        self._world, self._clients, self._ledger, self._history = world, clients, ledger, history
        self._are_there = are_there
        self._random = world.random_of("delayers")
        self._sent: dict[str, tuple[Request, int]] = {}
        """The request of each batch, and the number of its messages."""
        self._acknowledged: set[str] = set()
        self._taken_back: set[str] = set()
        """Messages whose taking back was acknowledged."""
        self.running = True

    def start(self) -> None:
        if self._are_there:
            self._create()

    def heal(self) -> None:
        """Begin nothing new."""
        self.running = False

    def check_account(self) -> None:
        """Check that every acknowledged message was delivered, unless it was taken back."""
        stored = self._history.retention.ever.get(TOPIC, set())
        for name in sorted(self._acknowledged - stored):
            left = set(self._messages(name)) - {message for _, message in self._history.delays.taken_back}
            if left:
                raise Violation("acknowledged_lost", f"of {TOPIC}, {sorted(left)} were acknowledged and never came")

    def _create(self) -> None:
        def on_answer(answer: Answer | None) -> None:
            if answer is not None and answer.ok:
                self._act_later()
            else:
                self._create()

        settings = {"queues": QUEUES, "type": "any", "retention_ms": -1}
        self._clients.call(json_request("PUT", f"/v1/topics/{TOPIC}", settings), on_answer)

    def _act_later(self) -> None:
        def act() -> None:
            if self.running:
                self._random.choice(
                    (self._send, self._send, self._take_back, self._take_back, self._again, self._read)
                )()
                self._act_later()

        self._world.after(self._random.randint(1, PAUSE_US_MAX), act)

    def _send(self) -> None:
        name, count = f"l{len(self._sent) + 1}", self._random.randint(1, MESSAGES_MAX)
        explicit = self._random.random() < 0.5
        block = msgspec.msgpack.encode(
            [
                [f"{name}:".encode(), None, [], {}, None, message] if explicit else [f"{name}:".encode()]
                for message in (f"{name}-{ordinal}" for ordinal in range(count))
            ]
        )
        batch: dict[str, Any] = {
            "queue": self._random.randrange(QUEUES),
            "batch_id": name,
            "crc32c": crc32c(block),
            "block": block,
        }
        delay_ms = self._random.randint(1, DELAY_MS_MAX)
        if self._random.random() < 0.5:
            batch["delay_ms"] = delay_ms
        else:
            batch["deliver_at_ms"] = EPOCH_MS + self._world.now_us // 1000 + delay_ms
        request = msgpack_request("POST", f"/v1/topics/{TOPIC}/messages", {"batches": [batch]})
        self._sent[name] = request, count
        self._produce(name, request)

    def _again(self) -> None:
        """Send a batch again, some of whose messages may have been taken back since."""
        name = self._recent()
        if name is not None:
            self._produce(name, self._sent[name][0])

    def _produce(self, name: str, request: Request) -> None:
        def on_answer(answer: Answer | None) -> None:
            if self._is_answered(answer, f"sending {name}"):
                self._acknowledged.add(name)

        self._clients.call(request, on_answer)

    def _take_back(self) -> None:
        name = self._recent()
        if name is None:
            return
        message = self._random.choice(self._messages(name))

        def on_answer(answer: Answer | None) -> None:
            if not self._is_answered(answer, f"taking {message} back", "not_scheduled"):
                return
            self._taken_back.add(message)
            if (TOPIC, message) not in self._history.delays.taken_back:
                raise Violation("taken_back", f"{message} was said to be taken back, by the log it was not")

        request = json_request("DELETE", f"/v1/topics/{TOPIC}/scheduled/{message}")
        for _ in range(self._random.choice((1, 1, 1, 2))):
            self._clients.call(request, on_answer)

    def _read(self) -> None:
        """Read a queue from any node. It has messages that somebody sent, and none that was taken back."""
        queue, taken_back = self._random.randrange(QUEUES), frozenset(self._taken_back)
        target = f"/v1/topics/{TOPIC}/queues/{queue}/messages?offset=0&max_messages=1000&wait_ms=0"

        def on_reply(reply: Reply | None) -> None:
            if reply is None or reply.status != 200:
                return
            body = decode_body(reply)
            for offset, message in enumerate(body["messages"], body["min_offset"]):
                message_id = message["message_id"]
                if message_id in taken_back:
                    raise Violation("taken_back", f"node {reply.node_id} delivers {message_id}, which was taken back")
                name = message_id.rpartition("-")[0]
                if message["offset"] != offset or message["body"] != f"{name}:" or name not in self._sent:
                    raise Violation("queue_prefix", f"{TOPIC} {queue} has {message} where {offset} was due")

        self._clients.ask(self._clients.any_node, Request("GET", target), on_reply, timeout_us=READ_TIMEOUT_US)

    def _recent(self) -> str | None:
        return self._random.choice(list(self._sent)[-RECENT:]) if self._sent else None

    def _messages(self, name: str) -> list[str]:
        return [f"{name}-{ordinal}" for ordinal in range(self._sent[name][1])]

    def _is_answered(self, answer: Answer | None, what: str, *codes: str) -> bool:
        """Return whether the request was carried out. Raises Violation when it was refused for no good reason."""
        if answer is None:
            self._ledger.unknown += 1
            return False
        self._ledger.acknowledged += answer.ok
        self._ledger.refused += not answer.ok
        if not answer.ok and answer.code not in codes:
            raise Violation("refused", f"{what} was refused: {answer}")
        return answer.ok
