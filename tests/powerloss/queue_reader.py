"""Reads the cluster as consumers see it: every queue from where the last reading ended."""

from typing import Final

from tests.chaos.ledger import Place
from tests.e2e.cluster_process import NodeProcess
from tests.powerloss.ledger import Ledger
from tests.powerloss.messages import number_in
from tests.powerloss.violation import Violation
from tests.powerloss.writer import QUEUES, TOPICS

_MESSAGES_PER_PULL: Final = 5_000
_BYTES_PER_PULL: Final = 16 << 20


class QueueReader:
    """Collects the messages read. `seen` maps a message to the place where it was read, `starts` a queue to its first
    offset.

    Reading from another node must continue the earlier readings.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._next = {(topic, queue): 0 for topic in TOPICS for queue in range(QUEUES)}
        self.seen: dict[int, Place] = {}
        self.starts = dict.fromkeys(self._next, 0)

    def read(self, node: NodeProcess) -> list[Violation]:
        """Read everything new on `node`. Raises OSError when the node does not answer or cannot know yet: ask again."""
        found: list[Violation] = []
        for topic, queue in self._next:
            while self._read_some(node, topic, queue, found):
                pass
            self._read_start(node, topic, queue)
        return found

    def accounts_for(self, number: int, place: Place) -> bool:
        """Return whether the message was read at `place`, or is gone after its time."""
        read = self.seen.get(number)
        if read is not None:
            return read == place
        return place.offset < self.starts[place.topic, place.queue] and self._ledger.is_over(number)

    def kept(self) -> dict[int, Place]:
        """Return the messages read that are still there."""
        return {
            number: place
            for number, place in self.seen.items()
            if place.offset >= self.starts[place.topic, place.queue]
        }

    def _read_start(self, node: NodeProcess, topic: str, queue: int) -> None:
        reply = node.request("GET", f"/v1/topics/{topic}/queues/{queue}/offsets?at=earliest")
        start = reply.json()["offset"] if reply.status == 200 else -1
        if start < self.starts[topic, queue]:  # it lags behind others: a queue's start never moves back
            raise ConnectionError(f"node {node.node_id} says that {topic}/{queue} begins at {start}")
        self.starts[topic, queue] = start

    def _read_some(self, node: NodeProcess, topic: str, queue: int, found: list[Violation]) -> bool:
        """Read a page; returns True when there is more."""
        begin = self._next[topic, queue]
        query = f"offset={begin}&max_messages={_MESSAGES_PER_PULL}&max_bytes={_BYTES_PER_PULL}"
        reply = node.request("GET", f"/v1/topics/{topic}/queues/{queue}/messages?{query}")
        if reply.status != 200:
            raise ConnectionError(f"node {node.node_id} answered {reply.status} for {topic}/{queue} from {begin}")
        page = reply.json()
        for message in page["messages"]:
            place = Place(topic, queue, message["offset"])
            begin = self._next[topic, queue]
            if place.offset > begin:
                self._read_start(node, topic, queue)
            if place.offset != begin and not begin < place.offset <= self.starts[topic, queue]:
                found.append(Violation("lost", f"{place} follows offset {begin - 1}"))
            self._next[topic, queue] = place.offset + 1
            found += self._judge(message["body"].encode(), place)
        return bool(page["messages"]) and page["max_offset"] > self._next[topic, queue]

    def _judge(self, body: bytes, place: Place) -> list[Violation]:
        number = number_in(body)
        if number is None or not self._ledger.was_sent(number):
            return [Violation("phantom", f"{place} holds a body nobody sent: {body[:40]!r}")]
        if number in self.seen:
            return [Violation("phantom", f"message {number} is at {self.seen[number]} and at {place}")]
        self.seen[number] = place
        if not self._ledger.may_be_visible(number):
            return [Violation("phantom", f"message {number} is at {place}, though refused or not committed")]
        return []
