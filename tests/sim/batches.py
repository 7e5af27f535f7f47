"""Message batches as clients make them, and checks of read messages against the batches that were sent."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from .checkers import Violation
from .checkers.transaction_model import TransactionModel
from .ledger import BatchKey, Ledger, SentBatch
from .world import EPOCH_MS, World

EXPLICIT_ID_PROBABILITY = 0.3
MESSAGES_MAX = 4
DELAYED_PROBABILITY, DELAY_MS_MAX = 0.08, 1_500
RECENT_MAX = 40
LARGE_PROBABILITY, LARGE_BYTES_MIN, LARGE_BYTES_MAX = 0.03, 100_000, 1_500_000


class _Recent(NamedTuple):
    """A batch that was sent a while ago."""

    key: BatchKey
    request: dict[str, Any]
    messages: list[list[Any]]


class Batches:
    """Make batches with ids of their own and recognise each batch that is read."""

    def __init__(self, world: World, random: Random, ledger: Ledger, model: TransactionModel) -> None:
        self._world, self._random, self._ledger, self._model = world, random, ledger, model
        self._made = 0
        self._recent: deque[_Recent] = deque(maxlen=RECENT_MAX)
        self.clocks_are_true: Callable[[], bool] = lambda: True
        """Returns whether no clock has leapt: until then, deliveries can be compared with the true time."""
        self.first_kept: Callable[[tuple[str, int]], int] = lambda place: 0
        """Returns the first offset of a queue that is not gone."""
        self.large = False
        """True when a message is sometimes large, so that a thin link is busy with it for longer than an election
        takes.
        """
        self._large_random = world.random_of("large messages")

    def new_id(self, kind: str) -> str:
        self._made += 1
        return f"{kind}{self._made}"

    def make(self, topic: str, queues: int, transaction_id: str | None = None) -> dict[str, Any]:
        """Return one batch of a msgpack request."""
        batch_id = self.new_id("b")
        queue, count = self._random.randrange(queues), self._random.randint(1, MESSAGES_MAX)
        explicit = self._random.random() < EXPLICIT_ID_PROBABILITY
        body = f"{batch_id}:".encode() * self._random.choice((1, 3, 20))
        if self.large and self._large_random.random() < LARGE_PROBABILITY:
            count, body = 1, body.ljust(self._large_random.randint(LARGE_BYTES_MIN, LARGE_BYTES_MAX), b".")
        messages: list[list[Any]] = [
            [body, None, [], {}, None, f"{batch_id}-{ordinal}"] if explicit else [body] for ordinal in range(count)
        ]
        block = msgspec.msgpack.encode(messages)
        checksum = crc32c(block)
        purged_before = self._ledger.purged_before(topic, queue)
        sent = SentBatch(topic, queue, count, checksum, purged_before, transaction_id=transaction_id)
        self._ledger.batches[topic, batch_id] = sent
        batch = {"queue": queue, "batch_id": batch_id, "crc32c": checksum, "block": block}
        if transaction_id is None:
            self._recent.append(_Recent((topic, batch_id), dict(batch), messages))
        if self._random.random() < DELAYED_PROBABILITY:
            batch["delay_ms"] = sent.delay_ms = self._random.randint(1, DELAY_MS_MAX)
        return batch

    def make_echo(self, queues: Mapping[str, int]) -> tuple[str, dict[str, Any]] | None:
        """Copy a batch of one topic, ids and all, for another topic, where it is another batch. Returns it and that
        topic.
        """
        known = self._ledger.batches
        found = [
            (recent, topic)
            for recent in self._recent
            for topic in queues
            if (topic, recent.key[1]) not in known and not known[recent.key].known
        ]
        if not found:
            return None
        recent, topic = self._random.choice(found)
        queue = self._random.randrange(queues[topic])
        known[topic, recent.key[1]] = SentBatch(topic, queue, len(recent.messages), recent.request["crc32c"])
        return topic, {**recent.request, "queue": queue}

    def make_overlap(self, queues: Mapping[str, int]) -> tuple[str, dict[str, Any]] | None:
        """Make a batch with the messages of an acknowledged one, known by their ids, and one more. Returns it and its
        topic.
        """
        known = self._ledger.batches
        found = [
            recent
            for recent in self._recent
            if len(recent.messages[0]) > 1 and known[recent.key].placed is not None and not known[recent.key].known
        ]
        if not found:
            return None
        recent = self._random.choice(found)
        topic, batch_id, old = recent.key[0], self.new_id("b"), len(recent.messages)
        new: list[Any] = [f"{batch_id}:".encode(), None, [], {}, None, f"{batch_id}-{old}"]
        block = msgspec.msgpack.encode([*recent.messages, new])
        queue, checksum = self._random.randrange(queues[topic]), crc32c(block)
        known[topic, batch_id] = SentBatch(topic, queue, old + 1, checksum, known=old)
        return topic, {"queue": queue, "batch_id": batch_id, "crc32c": checksum, "block": block}

    def make_json(self, topic: str, queues: int) -> tuple[str, dict[str, Any]]:
        """Return an idempotency key, which becomes the batch id, and the body of a JSON request with one batch."""
        batch_id = self.new_id("j")
        queue, count = self._random.randrange(queues), self._random.randint(1, MESSAGES_MAX)
        bodies = [f"{batch_id}:{ordinal}" for ordinal in range(count)]
        block = msgspec.msgpack.encode([[body.encode(), None, [], {}, None, None, 0] for body in bodies])
        self._ledger.batches[topic, batch_id] = SentBatch(topic, queue, count, crc32c(block))
        return batch_id, {"messages": [{"body": body, "queue": queue} for body in bodies]}

    def check_pulled(self, node_id: int, topic: str, queue: int, offset: int, body: dict[str, Any]) -> int:
        """Check the msgpack answer of a pull from `offset` on. Returns the offset at which it ends."""
        expected = self._begin(node_id, topic, queue, offset, body["min_offset"])
        for ordinal, batch in enumerate(body["batches"]):
            where = f"node {node_id}, {topic} {queue}: batch {batch['batch_id']} at {batch['base_offset']}"
            begins = batch["base_offset"]
            if begins > expected or (ordinal and begins != expected):
                raise Violation("queue_prefix", f"{where} follows where {expected} was due")
            if crc32c(batch["block"]) != batch["crc32c"]:
                raise Violation("queue_prefix", f"{where} is damaged")
            sent = self._visible(where, batch["batch_id"], topic, queue)
            if sent.crc32c != batch["crc32c"] or sent.transaction_id != batch["transaction_id"]:
                raise Violation("queue_prefix", f"{where} is not what was sent: {sent}")
            if (batch["count"], len(batch["skip"])) != (sent.count - sent.known, sent.known):
                raise Violation("queue_prefix", f"{where} has {batch['count']} messages of {sent.count}")
            ordinals = [each for each in range(sent.count) if each not in batch["skip"]]
            names = [f"{batch['batch_id']}-{each}" for each in ordinals]
            self._same_for_all(where, topic, queue, begins, names)
            expected = begins + batch["count"]
        self._note_end(node_id, topic, queue, expected, body)
        return expected

    def check_pulled_json(self, node_id: int, topic: str, queue: int, offset: int, body: dict[str, Any]) -> int:
        """Check the JSON answer of a pull from `offset` on. Returns the offset at which it ends."""
        expected = self._begin(node_id, topic, queue, offset, body["min_offset"])
        for message in body["messages"]:
            where = f"node {node_id}, {topic} {queue}: message {message['message_id']} at {message['offset']}"
            if message["offset"] != expected:
                raise Violation("queue_prefix", f"{where} follows where {expected} was due")
            batch_id = message["message_id"].rpartition("-")[0]
            self._visible(where, batch_id, topic, queue)
            if not message["body"].startswith(f"{batch_id}:"):
                raise Violation("queue_prefix", f"{where} is not what was sent: {message['body']}")
            self._same_for_all(where, topic, queue, expected, [message["message_id"]])
            expected += 1
        self._note_end(node_id, topic, queue, expected, body)
        return expected

    def check_given_again(self, node_id: int, topic: str, offset: int, body: dict[str, Any]) -> int:
        """Check the msgpack answer of a pull of given-back messages: single messages, each as it was sent."""
        expected = self._begin(node_id, topic, 0, offset, body["min_offset"])
        for batch in body["batches"]:
            where = f"node {node_id}, {topic}: message {batch['only']} of {batch['batch_id']} at {batch['base_offset']}"
            if batch["base_offset"] != expected or batch["count"] != 1 or batch["attempt"] < 0:
                raise Violation("queue_prefix", f"{where} is not where {expected} was due: {batch}")
            (message,) = msgspec.msgpack.decode(batch["block"])
            if crc32c(batch["block"]) != batch["crc32c"] or not message[0].startswith(f"{batch['batch_id']}:".encode()):
                raise Violation("queue_prefix", f"{where} is not what was sent: {message}")
            name = f"{batch['batch_id']}-{batch['only']}"
            origin = batch["origin"]
            first = self._ledger.read.get((origin["topic"], origin["queue"], origin["offset"]), name)
            if first != name:
                raise Violation("given_back", f"{where} comes from {origin}, where {first} is")
            self._visible(where, batch["batch_id"], origin["topic"], origin["queue"])
            self._same_for_all(where, topic, 0, expected, [name])
            expected += 1
        self._note_end(node_id, topic, 0, expected, body)
        return expected

    def check_popped(self, node_id: int, origin: dict[str, Any], message_id: str, batch_id: str) -> None:
        """Check a message that was popped; `origin` is the place where it was first."""
        topic, queue, offset = origin["topic"], origin["queue"], origin["offset"]
        where = f"node {node_id}, popped {message_id} of {topic} {queue} at {offset}"
        self._visible(where, batch_id, topic, queue)
        self._same_for_all(where, topic, queue, offset, [message_id])

    def check_asked(self, check: dict[str, Any], batches: Sequence[BatchKey]) -> None:
        """Check that a check shows the whole transaction that it is about."""
        shown = list(dict.fromkeys(message["message_id"].rpartition("-")[0] for message in check["messages"]))
        counts = sum(self._ledger.batches[key].count for key in batches)
        if shown != [batch_id for _, batch_id in batches] or counts != len(check["messages"]):
            raise Violation("check_content", f"transaction of {batches} is asked about as {check}")

    def _begin(self, node_id: int, topic: str, queue: int, offset: int, min_offset: int) -> int:
        """Return the offset at which an answer begins. Only messages that are gone are told to be."""
        if min_offset > self.first_kept((topic, queue)):
            raise Violation("said_gone", f"node {node_id} lets {topic} {queue} begin at {min_offset}")
        return max(offset, min_offset)

    def _visible(self, where: str, batch_id: str, topic: str, queue: int) -> SentBatch:
        sent = self._ledger.batches.get((topic, batch_id))
        if sent is None or sent.queue != queue:
            raise Violation("phantom", f"{where} was never sent there")
        if sent.deliver_at_ms is not None and self.clocks_are_true():
            # Not by its age: a delay that counts from a replicated clock that was behind is shorter by as much.
            true_ms = EPOCH_MS + self._world.now_us // 1000 + 1
            if true_ms < sent.deliver_at_ms:
                raise Violation("delivered_early", f"{where} is delivered at {true_ms} ms: {sent}")
        if sent.transaction_id is not None and not self._model.was_committed(sent.transaction_id):
            state = self._model.state_of(sent.transaction_id)
            raise Violation("transaction_visibility", f"{where} is delivered; {sent.transaction_id} is {state}")
        return sent

    def _same_for_all(self, where: str, topic: str, queue: int, offset: int, names: Sequence[str]) -> None:
        for at, name in enumerate(names, start=offset):
            first = self._ledger.read.setdefault((topic, queue, at), name)
            if first != name:
                raise Violation("queue_prefix", f"{where}: {name} at offset {at}, where {first} was read before")

    def _note_end(self, node_id: int, topic: str, queue: int, expected: int, body: dict[str, Any]) -> None:
        """Check where an answer sends its reader next: behind the last message that it shows, and also an answer that
        shows none passes by no message.
        """
        if expected != body["next_offset"]:
            found = f"goes on at {body['next_offset']}, {expected} was due"
            raise Violation("queue_prefix", f"node {node_id}, {topic} {queue}: {found}")
        self._ledger.ends[topic, queue] = max(body["max_offset"], self._ledger.ends.get((topic, queue), 0))
